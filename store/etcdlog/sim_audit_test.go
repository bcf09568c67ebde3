package etcdlog_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// audit records the requests of all clients and their replies, and checks them against these rules:
//
//	A1  each change has one place in the total order, behind those acknowledged before it began
//	A2  calls are linearizable: no acknowledged change is lost, none happens twice, and no reply is older
//	    than one that a client got before the call began
//	G1  a group whose ranks are alive is formed, and its verbs succeed
//	G2  a verb of a group has one outcome
//	T1  no session is lost while its client is alive; a rank that was killed together with the
//	    leader is lost
//	T2  an entry exists until its TTL has passed
//	T3  an entry is removed after its TTL has passed
//	H1  all calls are answered once faults are over
//	H2  a process follows or leads until it ends
//	D1  etcd holds one checkpoint and the log since that checkpoint
type audit struct {
	mu        sync.Mutex // protects the fields below
	broken    *broken
	ended     chan struct{}     // closed when a rule is broken
	changes   map[uint64]bool   // revisions of acknowledged changes
	latest    uint64            // the newest of them
	delivered map[string]string // the payloads and outcomes that ranks got in records
	fleeting  []string
	dead      []int // ranks that were killed
	counts    counts
}

// counts says how often schedules have reached each situation. A simulation that never reaches one
// would prove nothing about it.
type counts map[string]int

func (c counts) add(o counts) {
	for what, n := range o {
		c[what] += n
	}
}

func (c counts) check(t *testing.T) {
	t.Helper()
	for _, what := range []string{
		"terms", "kills", "stops", "ends", "outages", "cut off", "compactions", "changes", "reads", "rounds", "timeouts", "own", "repeats", "resumed", "fleeting", "checkpoints", "losses",
	} {
		if c[what] == 0 {
			t.Errorf("no schedule has met this: %s", what)
		}
	}
}

func newAudit() *audit {
	return &audit{ended: make(chan struct{}), changes: map[uint64]bool{}, delivered: map[string]string{}, counts: counts{}}
}

// breaks records that a rule is broken, which ends the schedule.
func (a *audit) breaks(property, format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fails(property, format, args...)
}

// fails is breaks with a.mu held.
func (a *audit) fails(property, format string, args ...any) {
	if a.broken == nil {
		a.broken = &broken{property, fmt.Sprintf(format, args...)}
		close(a.ended)
	}
}

func (a *audit) failed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.broken != nil
}

func (a *audit) count(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts[what]++
}

// has reports whether something has been counted.
func (a *audit) has(what string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.counts[what] > 0
}

// latestChange returns the newest revision of an acknowledged change.
func (a *audit) latestChange() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.latest
}

// answered checks the reply to a call for a key. latest is what latestChange returned when it began.
func (a *audit) answered(latest uint64, req *wire.Request, rep *wire.Reply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch rep.Code {
	case wire.CodeOK, wire.CodeNotFound, wire.CodeConflict, wire.CodeInvalid:
	default:
		a.fails("H1 all are answered", "%s of %s: %s %s", req.Op, req.Key, rep.Code, rep.Detail)
	}
	if req.Op == wire.OpGet {
		a.counts["reads"]++
		return
	}
	if rep.Code != wire.CodeOK || req.Op == wire.OpDelete {
		return
	}
	a.counts["changes"]++
	if rep.Rev <= latest || a.changes[rep.Rev] {
		a.fails("A1 each change has one place in the total order", "%s of %s has revision %d; %d was acknowledged when it began", req.Op, req.Key, rep.Rev, latest)
	}
	a.changes[rep.Rev] = true
	a.latest = max(a.latest, rep.Rev)
}

// fleets records an entry that expires.
func (a *audit) fleets(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts["fleeting"]++
	a.fleeting = append(a.fleeting, key)
}

// dies records that a rank is killed.
func (a *audit) dies(rank int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.dead = []int{rank}
}

// gathered checks what a rank got from a record, and reports whether the rank continues.
func (a *audit) gathered(seq uint64, rank, size int, payload string, rep *wire.Reply) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts["rounds"]++
	if rep.Code == wire.CodeLost && slices.Equal(rep.Failure.Lost, a.dead) {
		a.counts["losses"]++
		return false
	}
	if rep.Code != wire.CodeOK || len(rep.Values) != size {
		a.fails("G1 a group of ranks that are there succeeds", "record %d, rank %d: %s %v", seq, rank, rep.Code, rep.Failure)
		return false
	}
	if string(rep.Values[rank]) != payload {
		a.fails(ruleOne, "record %d, rank %d has said %q, and gets %q", seq, rank, payload, rep.Values[rank])
	}
	for i, v := range rep.Values {
		a.same(fmt.Sprintf("record %d, rank %d", seq, i), string(v))
	}
	return a.broken == nil
}

// decided checks the outcome of a record that may fail.
func (a *audit) decided(seq uint64, rep *wire.Reply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if rep.Code == wire.CodeTimeout {
		a.counts["timeouts"]++
	}
	a.same(fmt.Sprintf("record %d", seq), fmt.Sprintf("%s %+v", rep.Code, rep.Failure))
}

const ruleOne = "G2 a verb of a group has one outcome"

// same checks that all ranks get the same. The caller holds a.mu.
func (a *audit) same(what, got string) {
	if before, ok := a.delivered[what]; ok && before != got {
		a.fails(ruleOne, "%s: %q, and was %q", what, got, before)
	}
	a.delivered[what] = got
}

// last checks the final state of the store as a client reads it.
func (a *audit) last(c *simClient) {
	ctx, s := context.Background(), store.New(c)
	calls := c.w.history.Client(s, c.chance.Rand)
	for _, key := range simKeys {
		calls.Do(ctx, wire.OpGet, key)
	}
	for _, bad := range c.w.history.Check() {
		a.breaks("A2 calls are linearizable", "%s", bad)
	}
	for _, key := range a.fleeting {
		if _, err := s.Get(ctx, key); !errors.Is(err, store.ErrNotFound) {
			a.breaks("T3 time goes on", "%s is there, long after its time: %v", key, err)
			return
		}
	}
}

// space makes a checkpoint, and checks which keys etcd has after it.
func (a *audit) space(w *world) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var m *store.Memory
	for _, p := range w.procs {
		if serves := p.serving(); serves != nil {
			m = serves
		}
	}
	if m == nil {
		a.breaks("H1 all are answered once faults are over", "no process leads")
		return
	}
	if len(w.etcd.Keys(simRoot+"checkpoint/")) > 0 {
		a.count("checkpoints")
	}
	if _, err := store.New(m).Backup(ctx, io.Discard); err != nil {
		a.breaks("D1 a leader makes checkpoints", "%v", err)
		return
	}
	checkpoints, segments := map[string]bool{}, map[string]bool{}
	for _, key := range w.etcd.Keys(simRoot) {
		switch parts := strings.Split(strings.TrimPrefix(key, simRoot), "/"); parts[0] {
		case "checkpoint":
			checkpoints[parts[1]] = true
		case "log":
			segments[parts[1]] = true
		}
	}
	if len(checkpoints) != 1 || len(segments) > 1 {
		a.breaks("D1 what etcd has is a checkpoint and the log since", "%d checkpoints, %d segments", len(checkpoints), len(segments))
	}
}
