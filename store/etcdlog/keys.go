package etcdlog

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Leader is the value of root/leader: the process that leads.
type Leader struct {
	Addr         string `json:"addr"`           // where it serves clients, host:port
	ID           string `json:"id"`             // identifies the process
	LivenessAddr string `json:"live,omitempty"` // where it accepts liveness connections, host:port
	// Since is when it began to lead, in milliseconds of Unix time by its own clock. It is only
	// shown to people.
	Since int64 `json:"since"`

	rev int64 // modification revision of root/leader; 0 if there is no leader
}

// state is the value of root/state.
type state struct {
	Incarnation uint64 `json:"incarnation"`
	Segment     uint64 `json:"segment"`    // the log segment that follows Checkpoint
	Seq         uint64 `json:"seq"`        // sequence number of the first part of Segment
	Checkpoint  uint64 `json:"checkpoint"` // its ID; 0 if there is none and the store starts empty
	Parts       int    `json:"parts"`      // number of parts of Checkpoint
	Term        uint64 `json:"term"`       // number of times that a process has begun to lead
}

// empty is the state of a store that has never had a leader.
var empty = state{Segment: 1, Seq: 1}

// logPosition identifies a part of the log by its segment and its sequence number. Sequence numbers
// do not restart with a segment.
type logPosition struct{ segment, seq uint64 }

func (p *keyspace) logKey(w logPosition) string {
	return fmt.Sprintf("%s%016x/%016x", p.logPrefix(), w.segment, w.seq)
}

// segmentKey sorts before all parts of segment, and after those of earlier segments.
func (p *keyspace) segmentKey(segment uint64) string {
	return fmt.Sprintf("%s%016x/", p.logPrefix(), segment)
}

// parseLogKey parses a key of the log.
func (p *keyspace) parseLogKey(key []byte) (w logPosition, err error) {
	segment, seq, _ := strings.Cut(strings.TrimPrefix(string(key), p.logPrefix()), "/")
	if w.segment, err = strconv.ParseUint(segment, 16, 64); err == nil {
		w.seq, err = strconv.ParseUint(seq, 16, 64)
	}
	if err != nil {
		return w, fmt.Errorf("key %q is no part of a log", key)
	}
	return w, nil
}

func (p *keyspace) checkpointKey(id uint64, part int) string {
	return fmt.Sprintf("%scheckpoint/%016x/%08x", p.Root, id, part)
}

func (p *keyspace) checkpointPrefix() string { return p.Root + "checkpoint/" }

// A part of the log begins with one byte, more or last, which says whether its batch continues in
// the next part; bytes of the batch follow. A batch is a list of entries, each preceded by its
// length (u32, little-endian). It takes effect as a whole, when its last part is applied.
const (
	more byte = iota
	last
)

// partCost is the least number of bytes that a part counts as, because etcd and standbys spend some
// hundred bytes on each part however short it is.
const partCost = 1 << 10

var errBatch = errors.New("a batch of the log is malformed")

// replay calls f with each entry of a batch, and returns the first error.
func replay(batch []byte, f func(entry []byte) error) error {
	for len(batch) > 0 {
		if len(batch) < 4 {
			return errBatch
		}
		n := int(binary.LittleEndian.Uint32(batch))
		if n > len(batch)-4 {
			return errBatch
		}
		if err := f(batch[4:][:n]); err != nil {
			return err
		}
		batch = batch[4+n:]
	}
	return nil
}

func encode(v any) string {
	b, _ := json.Marshal(v) // strings and numbers only: it cannot fail
	return string(b)
}
