package core_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// manyCalls is the default limit of the waiting calls, and of the leases, of one session.
const manyCalls = 8_192

// manyKeys are more than the machine expires in one portion.
const manyKeys = 131_072

// holds are the operations that take longest at their limits. Each prepares a machine, and returns the
// step to measure: what is done under one hold of the store's lock.
var holds = []struct {
	name    string
	prepare func(r *rig) (step func())
}{
	{"append to 16 MiB", func(r *rig) func() {
		r.set("k", wire.MaxValue/2)
		return r.step(core.Local, wire.Request{Op: wire.OpAppend, Key: "k", Value: make([]byte, wire.MaxValue/2)})
	}},
	{"swap of 16 MiB", func(r *rig) func() {
		r.set("k", wire.MaxValue)
		return r.step(core.Local, wire.Request{Op: wire.OpSwap, Key: "k", Expect: make([]byte, wire.MaxValue), Value: []byte{1}})
	}},
	{"list behind 131,072 expired keys", func(r *rig) func() {
		r.setMany(manyKeys, time.Second)
		r.now += 2 * time.Second
		return r.step(core.Local, wire.Request{Op: wire.OpList})
	}},
	{"delete of 10,000 keys", func(r *rig) func() {
		return r.step(core.Local, wire.Request{Op: wire.OpDelete, Keys: r.setMany(wire.MaxKeys, 0)})
	}},
	{"set of a key that 8,192 calls wait for", func(r *rig) func() {
		s := r.session()
		for id := range uint64(manyCalls) {
			r.apply(s, wire.Request{Op: wire.OpWait, ID: id + 1, Keys: []string{"k"}})
		}
		return r.step(core.Local, wire.Request{Op: wire.OpSet, Key: "k", Value: []byte("v")})
	}},
	{"change of a key with 8,192 watches", func(r *rig) func() {
		s := r.session()
		for id := range uint64(manyCalls) {
			r.apply(s, wire.Request{Op: wire.OpWatch, ID: id + 1, After: 1})
		}
		return r.step(core.Local, wire.Request{Op: wire.OpSet, Key: "k", Value: []byte("v")})
	}},
	{"expiry of 8,192 leases of a session", func(r *rig) func() {
		r.grantMany(r.session(), manyCalls)
		r.now += 2 * time.Second
		return r.tick
	}},
	{"end of a session with 8,192 leases", func(r *rig) func() {
		s := r.session()
		r.grantMany(s, manyCalls)
		return r.step(s, wire.Request{Op: wire.OpLost})
	}},
	{"end of a session with 8,192 calls", func(r *rig) func() {
		s := r.session()
		for id := range uint64(manyCalls) {
			r.apply(s, wire.Request{Op: wire.OpWait, ID: id + 1, Keys: []string{"k"}})
		}
		return r.step(s, wire.Request{Op: wire.OpLost})
	}},
	{"join that completes a group of 10,000", func(r *rig) func() {
		c := &crew{rig: r}
		for range 10_000 {
			c.sessions = append(c.sessions, r.session())
		}
		for rank, s := range c.sessions[1:] {
			r.apply(s, c.joining("world", rank+1))
		}
		return r.step(c.sessions[0], c.joining("world", 0))
	}},
	{"last vote of a barrier of 10,000", func(r *rig) func() { return r.lastVote(10_000, barrier(1), "") }},
	{"last vote of an all-gather of 10,000", func(r *rig) func() { return r.lastVote(10_000, allGather(), "payload") }},
	{"last vote of an all-reduce of 10,000 of 4 KiB", func(r *rig) func() {
		sum := wire.Reduction{Op: wire.ReduceSum, Kind: wire.Float64}
		v := wire.Contribution{Verb: "allreduce", Seq: 1, Root: -1, Want: wire.WantReduced, Reduction: sum}
		return r.lastVote(10_000, v, strings.Repeat("12345678", 512))
	}},
	{"last shrink of 10,000", func(r *rig) func() {
		c := newCrewOn(r, "world", 10_000)
		for rank := range 9_999 {
			r.apply(c.sessions[rank], c.shrinking(rank))
		}
		return r.step(c.sessions[9_999], c.shrinking(9_999))
	}},
	{"loss of a rank of 10,000 in a barrier", func(r *rig) func() {
		c := newCrewOn(r, "world", 10_000)
		for rank := range 9_999 {
			r.apply(c.sessions[rank], c.voting(rank, barrier(1), ""))
		}
		return r.step(c.sessions[9_999], wire.Request{Op: wire.OpLost})
	}},
}

func (r *rig) apply(session uint64, req wire.Request) *wire.Reply {
	if req.ID == 0 {
		r.lastID++
		req.ID = r.lastID
	}
	rep := new(wire.Reply)
	r.m.Apply(r.now, session, &req, rep)
	return rep
}

// step returns the step of a request, which must succeed or wait.
func (r *rig) step(session uint64, req wire.Request) func() {
	return func() {
		if rep := r.apply(session, req); rep.Code != wire.CodeOK {
			r.tb.Fatal(say{rep})
		}
		r.m.Effects()
	}
}

func (r *rig) tick() {
	r.m.Tick(r.now)
	r.m.Effects()
}

func (r *rig) set(key string, bytes int) {
	r.does(core.Local, wire.Request{Op: wire.OpSet, Key: key, Value: make([]byte, bytes)})
}

// setMany sets n keys, with a time to live unless that is 0.
func (r *rig) setMany(n int, ttl time.Duration) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("key/%07d", i))
		r.apply(core.Local, wire.Request{Op: wire.OpSet, Key: keys[i], Value: []byte("value"), TTL: ttl})
	}
	return keys
}

func (r *rig) grantMany(session uint64, n int) {
	for range n {
		r.apply(session, wire.Request{Op: wire.OpGrant, TTL: time.Second})
	}
}

// lastVote returns the step in which the last of n ranks votes.
func (r *rig) lastVote(n int, v wire.Contribution, payload string) func() {
	c := newCrewOn(r, "world", n)
	for rank := range n - 1 {
		r.apply(c.sessions[rank], c.voting(rank, v, payload))
	}
	return r.step(c.sessions[n-1], c.voting(n-1, v, payload))
}

// BenchmarkLongestHold measures how long the store's lock is held by each operation at its limits:
// the shortest of the repetitions, since other processes and the collector make the others longer.
func BenchmarkLongestHold(b *testing.B) {
	for _, h := range holds {
		b.Run(h.name, func(b *testing.B) {
			shortest := time.Duration(1 << 62)
			for range 5 {
				step := h.prepare(newRig(b))
				began := time.Now()
				step()
				shortest = min(shortest, time.Since(began))
			}
			b.ReportMetric(float64(shortest.Microseconds())/1000, "ms-longest")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func (c *crew) shrinking(rank int) wire.Request {
	req := c.request(wire.OpJoin, rank)
	req.Value = []byte("survivor")
	return req
}
