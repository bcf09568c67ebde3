package etcdlog_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

const (
	countKey  = "count"
	tokensKey = "tokens"
	ownKey    = "own"
	lastTTL   = 3 * time.Second
)

// audit records the requests of all clients and their replies, and checks them against these rules:
//
//	A1  no acknowledged change is lost, and each change has one place in the total order
//	A2  a change that was made once happens exactly once
//	A3  no reply is older than one that a client got before the call began
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
	order     map[uint64]string // changes by their revision
	latest    uint64            // revision of the newest acknowledged change
	shown     map[string]uint64 // by key: the newest revision that a client has read
	delivered map[string]string // the payloads that ranks got in rounds
	tokens    []string          // appended, and acknowledged
	added     int64             // acknowledged
	ownBegun  int64
	ownEnded  int64 // those that were acknowledged
	ownShown  int64
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
		"terms", "kills", "stops", "ends", "outages", "cut off", "compactions", "changes", "reads", "rounds", "own", "repeats", "resumed", "fleeting", "checkpoints", "losses",
	} {
		if c[what] == 0 {
			t.Errorf("no schedule has met this: %s", what)
		}
	}
}

func newAudit() *audit {
	return &audit{ended: make(chan struct{}), order: map[uint64]string{}, shown: map[string]uint64{}, delivered: map[string]string{}, counts: counts{}}
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

// mark is what was known when a call began.
type mark struct {
	key    string
	shown  uint64
	latest uint64
	calls  int64
}

func (a *audit) begins(key string) mark {
	a.mu.Lock()
	defer a.mu.Unlock()
	return mark{key: key, shown: a.shown[key], latest: a.latest}
}

const (
	ruleOrder = "A1 no acknowledged change is lost"
	ruleOnce  = "A2 a change that was made once happens once"
	ruleStale = "A3 no reply is older than one that a client got before"
	ruleOne   = "G2 a verb of a group has one outcome"
)

// at records the value of a key at a revision.
func (a *audit) at(m mark, value string, rev uint64) {
	what := m.key + " = " + value
	if before, ok := a.order[rev]; ok && before != what {
		a.fails(ruleOrder, "revision %d is %.60q, and was %.60q", rev, what, before)
	}
	a.order[rev] = what
	a.shown[m.key] = max(a.shown[m.key], rev)
}

// changed checks the reply to a change.
func (a *audit) changed(m mark, value []byte, rep *wire.Reply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts["changes"]++
	switch {
	case rep.Code != wire.CodeOK:
		a.fails("H1 all are answered", "a change of %s: %s %s", m.key, rep.Code, rep.Detail)
	case rep.Rev <= m.latest:
		a.fails(ruleOrder, "a change of %s has revision %d, behind one that had %d when it began", m.key, rep.Rev, m.latest)
	case a.order[rep.Rev] != "" && a.order[rep.Rev] != m.key+" = "+string(value):
		a.fails(ruleOrder, "revision %d is %s = %.40q, and was %.60q", rep.Rev, m.key, value, a.order[rep.Rev])
	}
	a.at(m, string(value), rep.Rev)
	a.latest = max(a.latest, rep.Rev)
}

// read checks the reply to a read.
func (a *audit) read(m mark, rep *wire.Reply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts["reads"]++
	switch {
	case rep.Code == wire.CodeNotFound && m.shown == 0:
	case rep.Code != wire.CodeOK || rep.Rev < m.shown:
		a.fails(ruleStale, "%s is %s of revision %d (%.40q), and was of %d when the read began", m.key, rep.Code, rep.Rev, rep.Value, m.shown)
	default:
		a.at(m, string(rep.Value), rep.Rev)
	}
}

// addedOne checks the reply to an Add of 1.
func (a *audit) addedOne(m mark, rep *wire.Reply) {
	a.changed(m, strconv.AppendInt(nil, rep.N, 10), rep)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.added++
}

// appended checks the reply to an Append.
func (a *audit) appended(m mark, token string, rep *wire.Reply) {
	a.changed(m, strconv.AppendInt([]byte(token), rep.N, 10), rep)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens = append(a.tokens, token)
}

// ownBegins and ownEnds record the begin and the end of an Add of 1 by the process that leads. Such
// a call may never return.
func (a *audit) ownBegins() mark {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ownBegun++
	return mark{calls: a.ownShown}
}

func (a *audit) ownEnds(m mark, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts["own"]++
	switch {
	case n > a.ownBegun:
		a.fails(ruleOnce, "%d calls of processes have added %d", a.ownBegun, n)
	case n <= m.calls:
		a.fails(ruleOrder, "a call that began when there were %d has added the %d.", m.calls, n)
	}
	a.ownEnded++
	a.ownShown = max(a.ownShown, n)
}

// own returns how many calls of processes have begun, and how many were acknowledged. Some calls
// are in progress at any time.
func (a *audit) own() (begun, acknowledged int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ownBegun, a.ownEnded
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

// gathered checks what a rank got from a round, and reports whether the rank continues.
func (a *audit) gathered(gen uint64, round, rank, size int, payload string, rep *wire.Reply) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts["rounds"]++
	if rep.Code == wire.CodeLost && slices.Equal(rep.Failure.Lost, a.dead) {
		a.counts["losses"]++
		return false
	}
	if rep.Code != wire.CodeOK || len(rep.Values) != size {
		a.fails("G1 a group of ranks that are there succeeds", "round %d, rank %d: %s %v", round, rank, rep.Code, rep.Failure)
		return false
	}
	if string(rep.Values[rank]) != payload {
		a.fails(ruleOne, "round %d, rank %d has said %q, and gets %q", round, rank, payload, rep.Values[rank])
	}
	for i, v := range rep.Values {
		name := fmt.Sprintf("generation %d, round %d, rank %d", gen, round, i)
		if before, ok := a.delivered[name]; ok && before != string(v) {
			a.fails(ruleOne, "%s: %q, and was %q", name, v, before)
		}
		a.delivered[name] = string(v)
	}
	return a.broken == nil
}

// last checks the final state of the store as a client reads it.
func (a *audit) last(c *simClient) {
	get := func(key string) *wire.Reply { return c.call(wire.Request{Op: wire.OpGet, Key: key}, c.answerTimeout()) }
	for key := range a.shown {
		m := a.begins(key)
		value := get(key)
		switch key {
		case countKey:
			if string(value.Value) != fmt.Sprint(a.added) {
				a.breaks(ruleOnce, "%d were added, and there are %s", a.added, value.Value)
			}
		case tokensKey:
			got, want := slices.Sorted(strings.FieldsSeq(string(value.Value))), slices.Sorted(slices.Values(a.tokens))
			if !slices.Equal(got, want) {
				a.breaks(ruleOnce, "the tokens are %q, and those appended %q", got, want)
			}
		default:
			a.read(m, value)
		}
	}
	_, acknowledged := a.own()
	n, _ := strconv.ParseInt(string(get(ownKey).Value), 10, 64)
	if begun, _ := a.own(); n > begun || n < acknowledged {
		a.breaks(ruleOnce, "processes have added 1 %d times, of which %d were acknowledged, and there are %d", begun, acknowledged, n)
	}
	for _, key := range a.fleeting {
		if get(key).Code != wire.CodeNotFound {
			a.breaks("T3 time goes on", "%s is there, long after its time", key)
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
	resp, err := w.etcd.Client(w.procs[0]).Get(ctx, simRoot+"checkpoint/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err == nil && resp.Count > 0 {
		a.count("checkpoints")
	}
	if _, err := store.New(m).Backup(ctx, io.Discard); err != nil {
		a.breaks("D1 a leader makes checkpoints", "%v", err)
		return
	}
	resp, err = w.etcd.Client(w.procs[0]).Get(ctx, simRoot, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		a.breaks("D1 a leader makes checkpoints", "%v", err)
		return
	}
	checkpoints, segments := map[string]bool{}, map[string]bool{}
	for _, kv := range resp.Kvs {
		kind, rest, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), simRoot), "/")
		of, _, _ := strings.Cut(rest, "/")
		switch kind {
		case "checkpoint":
			checkpoints[of] = true
		case "log":
			segments[of] = true
		}
	}
	if len(checkpoints) != 1 || len(segments) > 1 {
		a.breaks("D1 what etcd has is a checkpoint and the log since", "%d checkpoints, %d segments", len(checkpoints), len(segments))
	}
}
