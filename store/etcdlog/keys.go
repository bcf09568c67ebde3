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
	Addr string `json:"addr"`           // where it serves, host:port
	ID   string `json:"id"`             // of the process
	Live string `json:"live,omitempty"` // where it greets standbys with its ID, host:port
	// Since is when it began to lead, by its clock, in milliseconds of Unix time: for people.
	Since int64 `json:"since"`

	rev int64 // at which it was put; 0: there is none
}

// state is the value of root/state.
type state struct {
	Incarnation uint64 `json:"incarnation"`
	Segment     uint64 `json:"segment"`    // of the log, with which a start goes on
	Seq         uint64 `json:"seq"`        // of the first part of Segment
	Checkpoint  uint64 `json:"checkpoint"` // its ID; 0: there is none, and the store begins empty
	Parts       int    `json:"parts"`      // of it
	Term        uint64 `json:"term"`       // how many times a process has begun to lead
}

// empty is the state of a store that has had no leader yet.
var empty = state{Segment: 1, Seq: 1}

// where is the place of a part of the log.
type where struct{ segment, seq uint64 }

func (p *place) logKey(w where) string {
	return fmt.Sprintf("%s%016x/%016x", p.logPrefix(), w.segment, w.seq)
}

// segmentKey is before all parts of a segment, and behind those of the segments before it.
func (p *place) segmentKey(segment uint64) string {
	return fmt.Sprintf("%s%016x/", p.logPrefix(), segment)
}

// whereOf parses a key of the log.
func (p *place) whereOf(key []byte) (w where, err error) {
	segment, seq, ok := strings.Cut(strings.TrimPrefix(string(key), p.logPrefix()), "/")
	if !ok {
		return w, fmt.Errorf("key %q is no part of a log", key)
	}
	if w.segment, err = strconv.ParseUint(segment, 16, 64); err != nil {
		return w, fmt.Errorf("key %q is no part of a log", key)
	}
	if w.seq, err = strconv.ParseUint(seq, 16, 64); err != nil {
		return w, fmt.Errorf("key %q is no part of a log", key)
	}
	return w, nil
}

func (p *place) checkpointKey(id uint64, part int) string {
	return fmt.Sprintf("%scheckpoint/%016x/%08x", p.Root, id, part)
}

func (p *place) checkpointPrefix() string { return p.Root + "checkpoint/" }

// A part of the log is a byte that says whether its batch goes on in the next part, and bytes of the batch. A batch is records, each
// behind its length u32, little-endian: it takes effect as a whole, with its last part.
const (
	more byte = iota
	last
)

// partCost is as how many bytes a part counts at least: etcd and standbys spend some hundred on each, however short it is.
const partCost = 1 << 10

var errBatch = errors.New("a batch of the log is malformed")

// replay calls f with the records of a batch.
func replay(batch []byte, f func(record []byte) error) error {
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
	b, _ := json.Marshal(v) // of strings and numbers: it cannot fail
	return string(b)
}
