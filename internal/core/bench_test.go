package core_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

func BenchmarkGet(b *testing.B) {
	m := core.New(core.Limits{})
	var rep wire.Reply
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("key/", i)
		m.Apply(0, core.Local, &wire.Request{Op: wire.OpSet, Key: keys[i], Value: []byte("value")}, &rep)
	}
	req := wire.Request{Op: wire.OpGet}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		req.Key = keys[i%len(keys)]
		m.Apply(core.Time(i), core.Local, &req, &rep)
	}
	isCode(b, &rep, wire.CodeOK)
}

func BenchmarkSet(b *testing.B) {
	for _, kind := range []string{"plain", "ttl"} {
		b.Run(kind, func(b *testing.B) {
			m := core.New(core.Limits{})
			var rep wire.Reply
			keys := make([]string, 1000)
			for i := range keys {
				keys[i] = fmt.Sprint("key/", i)
			}
			req := wire.Request{Op: wire.OpSet, Value: []byte("value")}
			if kind == "ttl" {
				req.TTL = time.Second
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				req.Key = keys[i%len(keys)]
				m.Apply(core.Time(i), core.Local, &req, &rep)
			}
			isCode(b, &rep, wire.CodeOK)
		})
	}
}

// benchVerb lets n ranks call v repeatedly: one operation is one record, n votes and n answers.
func benchVerb(b *testing.B, n int, v wire.Contribution, payload []byte) {
	w := newCrew(b, n)
	req := wire.Request{Op: wire.OpCollect, Group: v, Value: payload, Timeout: time.Minute}
	req.Group.Generation = w.gen
	var rep wire.Reply
	answers := 0
	b.ReportAllocs()
	b.ResetTimer()
	for seq := uint64(1); b.Loop(); seq++ {
		w.now += time.Millisecond
		req.Group.Seq, req.ID = seq, seq
		for rank := range n {
			req.Group.Rank = rank
			if w.m.Apply(w.now, w.sessions[rank], &req, &rep) {
				answers++
			}
		}
		for _, e := range w.m.Effects() {
			answers++
			if e.Reply.Code != wire.CodeOK {
				b.Fatal(say{e.Reply})
			}
		}
	}
	same(b, "answers are missing", answers%n, 0)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/rank")
}

var benchSizes = []int{8, 100, 1000, 10000}

func BenchmarkBarrier(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchVerb(b, n, barrier(1), nil) })
	}
}

func BenchmarkAllGather(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchVerb(b, n, allGather(), make([]byte, 1024)) })
	}
}
