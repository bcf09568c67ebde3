package core_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// BenchmarkKeys measures operations on 1,000 keys that exist.
func BenchmarkKeys(b *testing.B) {
	value := []byte("value")
	for name, req := range map[string]wire.Request{
		"get": {Op: wire.OpGet}, "set": {Op: wire.OpSet, Value: value}, "set with a TTL": {Op: wire.OpSet, Value: value, TTL: time.Second},
	} {
		b.Run(name, func(b *testing.B) {
			r, keys := newRig(b), numberedKeys(1000)
			setAll(r, keys, upwards(1000))
			var rep wire.Reply
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				req.Key = keys[i%len(keys)]
				r.m.Apply(core.Time(i), core.Local, &req, &rep)
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
