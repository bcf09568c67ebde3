package core_test

import (
	"encoding/binary"
	"strconv"
	"time"

	"github.com/muster-pg/muster/wire"
)

// sequence is one rank's sequence of collective verbs on one channel.
type sequence struct {
	mb      *member
	gen     uint64
	channel string
	use     *use
	seq     uint64
	heardOf uint64 // the last sequence number whose answer came
	step    int
}

func (l *sequence) next() {
	if !l.mb.in(l.gen) {
		return
	}
	w := l.mb.p.w
	w.after(w.between(0, time.Millisecond)+w.lateness(), l.cast)
}

// cast calls the next verb of the program.
func (l *sequence) cast() {
	mb := l.mb
	w := mb.p.w
	if !mb.in(l.gen) {
		return
	}
	program := mb.plan.program(l.gen, l.channel, l.use.nth, mb.size)
	if l.step == len(program) {
		l.use.done()
		return
	}
	o := program[l.step]
	if w.chance(w.odds.leave) { // closes the channel before the others expect it
		l.use.close()
		return
	}
	l.step++
	l.seq++
	l.mischief(o)
	if w.chance(w.odds.skip) {
		l.next()
		return
	}
	if w.chance(w.odds.leave) {
		mb.gen = 0
		mb.leave(l.gen, func(*wire.Reply) { mb.finish() })
		return
	}
	c, payload := l.vote(o)
	c, payload = l.deviate(c, payload)
	if w.chance(w.odds.stall) {
		c.Stall = w.between(1, 40*time.Millisecond)
	}
	l.send(c, payload)
	if w.chance(w.odds.repeat) {
		seq := l.seq
		w.after(w.between(0, 3*time.Millisecond), func() {
			if mb.in(l.gen) && l.seq == seq {
				again, other := l.vote(o)
				again.Want, again.Type = c.Want, c.Type
				if again.Verb == c.Verb && again.Root == c.Root && c.No == wire.CodeOK {
					l.send(again, other)
				}
			}
		})
	}
	if w.chance(w.odds.hasty) {
		l.heardOf = l.seq
		l.next()
	}
}

// send casts a vote, and waits for the answer.
func (l *sequence) send(c wire.Contribution, payload []byte) {
	w := l.mb.p.w
	req := wire.Request{Op: wire.OpCollect, Group: c, Value: payload}
	cancel := time.Duration(0)
	req.Timeout, cancel = w.timeouts()
	l.mb.p.call(req, cancel, func(rep *wire.Reply) { l.received(c.Seq, rep) })
}

// received handles the answer to the vote for seq; nil means that there is none.
func (l *sequence) received(seq uint64, rep *wire.Reply) {
	mb := l.mb
	if seq != l.seq || l.heardOf == seq || !mb.in(l.gen) || rep != nil && rep.Code == wire.CodeConflict {
		return // the answer to an earlier vote, or one that a later vote will have
	}
	l.heardOf = seq
	if rep != nil && mb.p.w.chance(0.7) {
		switch rep.Code {
		case wire.CodeLost, wire.CodeMismatch, wire.CodeFull:
			mb.lost(l.gen)
			return
		case wire.CodeAborted, wire.CodeLeft:
			if mb.p.w.chance(0.5) {
				mb.lost(l.gen)
				return
			}
		}
	}
	l.next()
}

// vote returns the yes vote for o, as pgroup encodes it.
func (l *sequence) vote(o op) (wire.Contribution, []byte) {
	mb := l.mb
	c := mb.contribution()
	c.Channel, c.Seq, c.Verb, c.Type, c.Want = l.channel, l.seq, o.verb, o.typ, wire.WantNothing
	if mb.p.w.chance(0.1) {
		c.Type = ""
	}
	switch o.verb {
	case "allgather":
		c.Want = wire.WantAll
		return c, l.payload()
	case "broadcast":
		c.Root, c.RootOnly, c.Want = o.root, true, int32(o.root)
		if o.root == mb.cur {
			c.Want = wire.WantNothing
			return c, l.payload()
		}
	case "gather":
		c.Root = o.root
		if o.root == mb.cur {
			c.Want = wire.WantAll
		}
		return c, l.payload()
	case "scatter":
		c.Root, c.RootOnly, c.Want = o.root, true, wire.WantPart
		if o.root == mb.cur {
			return c, l.payloads()
		}
	case "alltoall":
		c.Want = wire.WantPart
		return c, l.payloads()
	case "allreduce":
		c.Type, c.Label, c.Want = "[]int64", "sum of 2", wire.WantReduced
		c.Reduction = wire.Reduction{Op: wire.ReduceSum, Kind: wire.Int64}
		return c, l.numbers()
	}
	return c, nil
}

// payload returns a unique payload.
func (l *sequence) payload() []byte {
	w := l.mb.p.w
	w.turn++
	b := append(make([]byte, 0, 48), "payload "...)
	b = strconv.AppendUint(b, w.turn, 10)
	b = append(b, " of rank "...)
	b = strconv.AppendInt(b, int64(l.mb.cur), 10)
	b = append(b, " for #"...)
	return strconv.AppendUint(b, l.seq, 10)
}

// payloads returns one payload for each rank.
func (l *sequence) payloads() []byte {
	parts := make([][]byte, l.mb.size)
	for i := range parts {
		parts[i] = l.payload()
	}
	return wire.AppendParts(nil, parts)
}

func (l *sequence) numbers() []byte {
	w := l.mb.p.w
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, w.rng.Uint64()), uint64(l.mb.cur))
}

// deviate turns a vote into one that a correct program would not cast: a no, another verb,
// nonsense.
func (l *sequence) deviate(c wire.Contribution, payload []byte) (wire.Contribution, []byte) {
	w := l.mb.p.w
	switch {
	case w.chance(w.odds.no): // its context has ended, or its object cannot be encoded
		c.No = []wire.Code{wire.CodeTimeout, wire.CodeCancelled, wire.CodeInvalid}[w.upTo(3)]
		c.Reason = "rank " + strconv.Itoa(l.mb.cur) + " cannot"
		return c, nil
	case w.chance(w.odds.disagree):
		switch w.upTo(6) {
		case 0:
			c.Verb = "other " + c.Verb
		case 1:
			c.Root = (c.Root + 1) % l.mb.size
		case 2:
			c.Type = "map[string]int"
		case 3:
			c.Label = "other"
		case 4:
			c.Reduction = wire.Reduction{Op: wire.ReduceMax, Kind: wire.Int64}
			payload = l.numbers()
		case 5:
			c.RootOnly, c.Root = !c.RootOnly, max(c.Root, 0)
		}
	case w.chance(w.odds.absurd):
		switch w.upTo(4) {
		case 0:
			c.Root = l.mb.size + 3
		case 1:
			c.Want = int32(l.mb.size)
		case 2:
			c.Want, payload = wire.WantPart, []byte{1, 2, 3}
		case 3:
			c.Root, c.RootOnly = -1, true
		}
	}
	return c, payload
}

// mischief makes invalid calls beside the votes: in the name of other ranks, and for generations
// and records that are over.
func (l *sequence) mischief(o op) {
	mb := l.mb
	w := mb.p.w
	ignore := func(*wire.Reply) {}
	collect := func(c wire.Contribution, payload []byte) {
		mb.p.call(wire.Request{Op: wire.OpCollect, Group: c, Value: payload, Timeout: time.Second}, 0, ignore)
	}
	if w.chance(w.odds.stale) {
		c, payload := l.vote(o)
		if c.Seq = uint64(w.upTo(int(l.seq))); c.Seq+1 < l.seq || c.Seq == 0 {
			if w.chance(0.5) {
				c.Verb = "other"
			}
			collect(c, payload)
		}
	}
	if w.chance(w.odds.rogue) {
		c, payload := l.vote(o)
		c.Seq += uint64(w.upTo(2))
		if w.chance(0.3) {
			c.No, c.Reason = wire.CodeInvalid, "a rogue says so"
		}
		switch w.upTo(3) {
		case 0:
			c.Rank = w.upTo(mb.size+2) - 1
		case 1:
			c.Generation -= uint64(w.upTo(2) + 1)
		case 2:
			c.Generation += uint64(w.upTo(2) + 1)
			c.Rank = w.upTo(mb.size)
		}
		if !mb.holds(&c) {
			collect(c, payload)
		}
	}
	if w.chance(w.odds.abort) {
		mb.abort()
	}
}

// holds reports whether a rank of this process may speak for c.
func (mb *member) holds(c *wire.Contribution) bool {
	for _, other := range mb.p.members {
		if other.gen == c.Generation && other.cur == c.Rank {
			return true
		}
	}
	return false
}
