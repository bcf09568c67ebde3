package core_test

import (
	"bytes"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// checkpoint is a snapshot that is taken while the server continues to run.
type checkpoint struct {
	pos     int // the position in the log up to which it has everything
	snap    *core.Snapshot
	state   []byte // as package durable encodes it
	entries []core.Entry
}

// checkpoints takes snapshots now and then, in pieces.
func (w *world) checkpoints() {
	if w.snapshots++; w.snapshots > 4 {
		return
	}
	restarts := w.restarts
	w.after(w.between(0, 20*time.Millisecond), func() {
		if w.down || w.ending || restarts != w.restarts {
			return
		}
		c := &checkpoint{pos: len(w.log), snap: w.m.Snapshot()}
		w.trace.note(w, "a snapshot after %d", c.pos)
		w.piece(c)
	})
}

func (w *world) piece(c *checkpoint) {
	entries, more := c.snap.Next(w.upTo(2), 1<<20)
	c.entries = append(c.entries, entries...)
	if !more {
		var state bytes.Buffer
		if err := wire.WriteMsgPack(&state, c.snap.State); err != nil {
			panic(err)
		}
		c.state = state.Bytes()
		w.checkpoint = c
		w.checkpoints()
		return
	}
	restarts := w.restarts
	w.after(w.between(0, 6*time.Millisecond), func() {
		if !w.down && restarts == w.restarts {
			w.piece(c)
		}
	})
}

// restore makes a machine from the last durable snapshot and the log after it.
func (w *world) restore() *core.Machine {
	c := w.checkpoint
	if c == nil || c.pos > len(w.log) {
		return nil
	}
	var state core.State
	if err := wire.ReadMsgPack(bytes.NewReader(c.state), &state); err != nil {
		panic(err)
	}
	m, err := core.Restore(core.Limits{}, &state, func(yield func(core.Entry, error) bool) {
		for _, e := range c.entries {
			if !yield(e, nil) {
				return
			}
		}
	})
	if err != nil {
		breaks("S3 a snapshot can be restored", "%v", err)
	}
	m.SetBounds(w.bounds)
	for _, e := range w.log[c.pos:] {
		if err := m.Replay(e.event); err != nil {
			breaks("S3 an event can be replayed", "%s: %v", e.cl, err)
		}
	}
	w.tally["restarts from a snapshot"]++
	return m
}

// s3SameState compares a machine that was restored with the expected state.
func s3SameState(how string, m *core.Machine, want string) {
	if got := m.Portrait(); got != want {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		from := max(0, i-100)
		breaks("S3 what is restored is the same", "%s: …%.300s\nand not …%.300s", how, got[from:], want[from:])
	}
}
