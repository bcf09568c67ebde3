// Package storetest is the part of the contract of a store.Engine that scenarios cannot show: who owns
// bytes, crowds, large values, and races. Package scenario has the rules.
//
//	func TestMemory(t *testing.T) {
//		storetest.Run(t, func(*testing.T) func() store.Engine {
//			m := new(store.Memory)
//			return func() store.Engine { return m }
//		}, &storetest.Options{Without: []storetest.Feature{storetest.Sessions}})
//	}
//
// Options.Without lists the features that an engine does not have; all else must hold.
package storetest

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Feature is a part of the contract that an engine may lack. The engine then returns ErrUnsupported
// for the operations of that part, and the suite asserts it. The last three features have
// no operations.
type Feature string

const (
	Add      Feature = "add"
	Append   Feature = "append"
	Collect  Feature = "collect" // groups: join, leave, follow and collect
	Delete   Feature = "delete"
	List     Feature = "list"
	Reads    Feature = "reads"   // entries with a limited number of reads
	Streams  Feature = "streams" // send, recv and expire
	Swap     Feature = "swap"
	TTL      Feature = "ttl"
	Wait     Feature = "wait"
	Watch    Feature = "watch"
	Leases   Feature = "leases" // entries that end with a lease
	Queues   Feature = "queues"
	Remove   Feature = "remove" // a swap of a value for nothing, which deletes
	Status   Feature = "status"
	Channels Feature = "channels" // close channel and acknowledge
	Crowds   Feature = "crowds"   // groups of thousands of ranks that form at once
	// the engines that Open's function returns are separate sessions
	Sessions Feature = "sessions"
	Breaks   Feature = "breaks" // Options.Break; implied if that is nil
)

// Options are the options of Run. By default all features are supported, but no connection can
// be broken.
type Options struct {
	Without []Feature
	// Break ends a session's connection, but not the session, which reconnects.
	Break func(store.Engine)
	// Only names the chapters to run; the default is all.
	Only []string
	// Key is the maximum length of a key; the default is wire.MaxKey.
	Key int
	// Value is the maximum length of a value; the default is wire.MaxValue.
	Value int
}

// Run tests an engine. open creates an empty store, and returns the function that opens a session
// of it. open registers its own cleanup; Run closes the sessions before that.
func Run(t *testing.T, open func(t *testing.T) (session func() store.Engine), o *Options) {
	s := &suite{open: open}
	if o != nil {
		s.Options = *o
	}
	if s.Break == nil {
		s.Without = append(slices.Clip(s.Without), Breaks)
	}
	s.Key, s.Value = cmp.Or(s.Key, wire.MaxKey), cmp.Or(s.Value, wire.MaxValue)
	for _, p := range chapters {
		if len(s.Only) > 0 && !slices.Contains(s.Only, p.name) {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range p.cases {
				s.run(t, c)
			}
		})
	}
	t.Run("Unsupported", s.unsupported)
}

// chapter is a part of the contract.
type chapter struct {
	name  string
	cases []check
}

// check is a test of one statement of the contract.
type check struct {
	name  string
	run   func(t *testing.T, w *world)
	needs []Feature
}

var chapters = []chapter{
	{"Keys", keyChecks},
	{"Swap", swapChecks},
	{"Lists", listChecks},
	{"Queues", queueChecks},
	{"Wait", waitChecks},
	{"Watch", watchChecks},
	{"Limits", limitChecks},
	{"Many", manyChecks},
	{"Close", closeChecks},
	{"Join", joinChecks},
	{"Collect", collectChecks},
	{"Results", resultChecks},
	{"Disagreement", clashChecks},
	{"Failures", failureChecks},
	{"Streams", streamChecks},
	{"Channels", channelChecks},
	{"Leases", leaseChecks},
	{"Reconnect", reconnectChecks},
	{"Status", statusChecks},
}

type suite struct {
	Options
	open func(t *testing.T) func() store.Engine
}

// limit is how long a check may take, also on a machine that other processes use. It turns a
// deadlock of the engine into a failure.
const limit = 30 * time.Second

func (s *suite) run(t *testing.T, c check) {
	if slices.ContainsFunc(c.needs, s.lacks) {
		return
	}
	t.Run(c.name, func(t *testing.T) {
		t.Parallel()
		c.run(t, s.world(t))
	})
}

func (s *suite) lacks(f Feature) bool { return slices.Contains(s.Without, f) }

// world is one store and its sessions, created for one check.
type world struct {
	*suite
	t       *testing.T
	ctx     context.Context
	session func() store.Engine
}

func (s *suite) world(t *testing.T) *world {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return &world{suite: s, t: t, ctx: ctx, session: s.open(t)}
}

// engine opens a session.
func (w *world) engine() store.Engine {
	e := w.session()
	w.t.Cleanup(func() { _ = e.Close() })
	return e
}

// store opens a session, and returns a Store over it.
func (w *world) store() *store.Store { return store.New(w.engine()) }

// requests maps a feature to the requests that an engine without it rejects.
func requests() map[Feature][]wire.Request {
	c := wire.Contribution{Group: "g", Generation: 1, Seq: 1, Size: 1, Root: -1, Verb: "barrier", Want: wire.WantNothing}
	return map[Feature][]wire.Request{
		Add:    {{Op: wire.OpAdd, Key: "n", Delta: 1}},
		Append: {{Op: wire.OpAppend, Key: "k", Value: []byte("v")}},
		Collect: {
			{Op: wire.OpJoin, Group: c, Value: []byte("me")},
			{Op: wire.OpLeave, Group: c},
			{Op: wire.OpFollow, Group: c},
			{Op: wire.OpMembers, Group: c},
			{Op: wire.OpCollect, Group: c, Value: []byte{}},
		},
		Delete: {{Op: wire.OpDelete, Keys: []string{"k"}}},
		Leases: {
			{Op: wire.OpGrant, TTL: time.Second},
			{Op: wire.OpKeepAlive, Lease: 1},
			{Op: wire.OpRevoke, Lease: 1},
			{Op: wire.OpSet, Key: "k", Value: []byte("v"), Lease: 1},
		},
		List:  {{Op: wire.OpList, Key: "k", Delta: 1}},
		Reads: {{Op: wire.OpSet, Key: "k", Value: []byte("v"), Reads: 1}},
		Streams: {
			{Op: wire.OpSend, Group: c, Value: []byte("v")},
			{Op: wire.OpRecv, Group: c},
			{Op: wire.OpExpired, Group: c},
		},
		Channels: {{Op: wire.OpCloseChannel, Group: c}, {Op: wire.OpAck, Group: c}},
		Queues:   {{Op: wire.OpPush, Key: "q", Value: []byte("v")}, {Op: wire.OpPop, Key: "q"}},
		Remove:   {{Op: wire.OpSwap, Key: "k", Old: []byte("v")}},
		Status:   {{Op: wire.OpStatus}},
		Swap:     {{Op: wire.OpSwap, Key: "k", Value: []byte("v")}},
		TTL:      {{Op: wire.OpSet, Key: "k", Value: []byte("v"), TTL: time.Second}},
		Wait:     {{Op: wire.OpWait, Keys: []string{"k"}}},
		Watch:    {{Op: wire.OpWatch}, {Op: wire.OpPing}},
	}
}

// unsupported asserts that an engine rejects the operations of the features that it lacks.
func (s *suite) unsupported(t *testing.T) {
	for _, f := range s.Without {
		for _, req := range requests()[f] {
			if req.Op == wire.OpPing { // an engine may have revisions, but no watch
				continue
			}
			t.Run(string(f)+"/"+req.Op.String(), func(t *testing.T) {
				w := s.world(t)
				is(t, w.store().Do(w.ctx, &req, new(wire.Reply)), store.ErrUnsupported)
			})
		}
	}
}
