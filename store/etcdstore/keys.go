package etcdstore

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/wire"
)

// What is where below the engine's root. Numbers are hexadecimal and of one width, so that their order is that of the keys; names are
// escaped, so that they have no slash. Only entries and the mark of the last change are not bound to a session or a generation.
//
//	k/KEY                                an entry
//	r                                    the mark: its revision is that of the last change, its value how that was made
//	s/SESSION/SLOT                       the last change that a session made in a slot; goes with the session
//	j/NAME/RUN                           the roll of a group that is open, or complete
//	i/GEN                                the name of the roll of a generation that is complete, until it is taken out
//	g/GEN/s/SEAT                         a rank's seat; goes with its session; "left" once it has said goodbye
//	g/GEN/v/!roll, !over, !all, !shrink  the roll; why the generation is revoked, for later calls and for open records; its survivors' generation
//	g/GEN/v/c/CHANNEL/SEQ                the verdict of a record
//	g/GEN/n/CHANNEL/CALL/RANK            a rank's last vote for a call: SEQ; CALL is a hash of what ranks agree on
//	g/GEN/n/CHANNEL/r/RANK               a rank's last vote in a root's verb: SEQ/CALL
//	g/GEN/n/CHANNEL/!, ~                 nothing: the ends of that
//	g/GEN/c/CHANNEL/CALL                 what a CALL is
//	g/GEN/p/CHANNEL/SEQ/RANK             what a rank gave with its vote
//	g/GEN/t/DST/SRC/TAG/m/POS, h         a message; the position of the last one
//	g/GEN/u/SRC/DST/TAG                  the positions that the reader has acknowledged and seen
//	g/GEN/w/RANK                         what a rank waits in, if that can be seen nowhere else
type keys string // the root

func (k keys) entry(key string) string { return string(k) + "k/" + key }
func (k keys) mark() string            { return string(k) + "r" }
func (k keys) slot(session clientv3.LeaseID, n int) string {
	return fmt.Sprintf("%ss/%016x/%04x", string(k), uint64(session), n)
}
func (k keys) rolls() string { return string(k) + "j/" }
func (k keys) roll(c *wire.Contribution) string {
	return k.rolls() + url.PathEscape(c.Group) + "/" + url.PathEscape(c.Run)
}

// listed says that a generation is, or was, complete.
func (k keys) listed(gen uint64) string { return string(k) + "i/" + hex(gen) }

func (k keys) generation(gen uint64) generationKeys {
	return generationKeys(fmt.Sprintf("%sg/%x/", string(k), gen))
}

// generationKeys is what all keys of a generation begin with.
type generationKeys string

func (g generationKeys) seats() string        { return string(g) + "s/" }
func (g generationKeys) seat(seat int) string { return fmt.Sprintf("%ss/%08x", string(g), seat) }
func (g generationKeys) verdicts() string     { return string(g) + "v/" }
func (g generationKeys) rolled() string       { return string(g) + "v/!roll" }
func (g generationKeys) over() string         { return string(g) + "v/!over" }
func (g generationKeys) all() string          { return string(g) + "v/!all" }
func (g generationKeys) shrink() string       { return string(g) + "v/!shrink" }
func (g generationKeys) votes() string        { return string(g) + "n/" }
func (g generationKeys) calls() string        { return string(g) + "c/" }
func (g generationKeys) doing(rank int) string {
	return fmt.Sprintf("%sw/%08x", string(g), rank)
}

// channel are the keys of a channel's records: their verdicts, their votes, and how far readers are.
func (g generationKeys) channel(name string) channelKeys {
	name = url.PathEscape(name) + "/"
	return channelKeys{verdicts: string(g) + "v/c/" + name, payloads: string(g) + "p/" + name, votes: string(g) + "n/" + name, calls: string(g) + "c/" + name}
}

type channelKeys struct{ verdicts, payloads, votes, calls string }

func (c channelKeys) verdict(seq uint64) string { return c.verdicts + hex(seq) }

// undecided is the condition that neither record seq nor one behind it is: a request that comes again, and late, may find that it has been
// decided, and freed.
func (c channelKeys) undecided(seq uint64) cond {
	return absent(c.verdict(seq), upTo(end(c.verdicts)))
}

// hex is n in sixteen digits, whose order is that of numbers.
func hex(n uint64) string { return digits(n, 16) }

// short is the number of a rank, in five digits.
func short(n int) string { return digits(uint64(n), 5) }

func digits(n uint64, width int) string {
	var b [16]byte
	for i := width - 1; i >= 0; i-- {
		b[i] = "0123456789abcdef"[n&15]
		n >>= 4
	}
	return string(b[:width])
}

// notRevoked is the condition that the generation is not: of both keys that say so.
func (g generationKeys) notRevoked() cond {
	return absent(string(g)+"v/!a", upTo(string(g)+"v/!p"))
}

func (g generationKeys) stream(src, dst int, tag string) streamKeys {
	tag = url.PathEscape(tag)
	return streamKeys{fmt.Sprintf("%st/%08x/%08x/%s/", string(g), dst, src, tag), fmt.Sprintf("%su/%08x/%08x/%s", string(g), src, dst, tag)}
}

type streamKeys struct{ messages, seen string }

func (s streamKeys) head() string              { return s.messages + "h" }
func (s streamKeys) queue() string             { return s.messages + "m/" }
func (s streamKeys) message(pos uint64) string { return fmt.Sprintf("%sm/%016x", s.messages, pos) }

// lastNumber is the number at the end of key.
func lastNumber(key []byte) (n uint64) {
	s := string(key)
	n, _ = strconv.ParseUint(s[strings.LastIndexByte(s, '/')+1:], 16, 64)
	return n
}

// end is the end of the range of all keys that begin with prefix.
func end(prefix string) string { return clientv3.GetPrefixRangeEnd(prefix) }

// An entry's value has a byte in front: what it is, and with counted reads, how many are left.
const (
	plainValue   byte = 'v'
	countedValue byte = 'c' // four bytes: the reads that are left
	takenValue   byte = 't' // the same, and it has been read since it was set: no change for those who watch
)

func encodeValue(v []byte, reads uint32, taken bool) string {
	if reads == 0 {
		return string(plainValue) + string(v)
	}
	kind := countedValue
	if taken {
		kind = takenValue
	}
	return string([]byte{kind, byte(reads >> 24), byte(reads >> 16), byte(reads >> 8), byte(reads)}) + string(v)
}

// decodeValue is what encodeValue made b of. Anything else that somebody has put there is a value too.
func decodeValue(b []byte) (v []byte, reads uint32, taken bool) {
	switch {
	case len(b) > 0 && b[0] == plainValue:
		return b[1:], 0, false
	case len(b) >= 5 && (b[0] == countedValue || b[0] == takenValue):
		return b[5:], uint32(b[1])<<24 | uint32(b[2])<<16 | uint32(b[3])<<8 | uint32(b[4]), b[0] == takenValue
	}
	return append([]byte{}, b...), 0, false // another program may have put nothing there, which is not nil
}

// How a change was made: the value of the mark.
const (
	howSet    = "set"
	howDelete = "delete"
	howTaken  = "taken" // the last read of an entry
)
