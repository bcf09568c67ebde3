package storetest

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/muster-pg/muster/wire"
)

var streamChecks = []check{
	{"messages come in order, and once each", streamOrder, []Feature{Collect, Streams}},
	{"the type travels along", streamType, []Feature{Collect, Streams}},
	{"empty and large messages", streamSizes, []Feature{Collect, Streams}},
	{"what was passed in and returned may be changed", streamOwnership, []Feature{Collect, Streams}},
	{"a recv that is cancelled loses no message", streamCancelled, []Feature{Collect, Streams}},
}

func streamOrder(t *testing.T, w *world) {
	ranks := w.group(2)
	const n = 1000
	sending := laterErr(t, func() error {
		for i := range n {
			if err := ranks[0].send(w.ctx, "", fmt.Sprint(i)); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range n {
		ranks[1].gets(t, uint64(i+1), fmt.Sprint(i))
	}
	good(t, (<-sending).err)
}

func streamType(t *testing.T, w *world) {
	ranks := w.group(2)
	good(t, ranks[0].send(w.ctx, "", "x"))
	_, typ, err := ranks[1].Recv(w.ctx, ranks[1].in(wire.Contribution{Root: 0, Seq: 1, Verb: "recv"}))
	good(t, err)
	same(t, "type", typ, "text")
}

func streamSizes(t *testing.T, w *world) {
	ranks := w.group(2)
	for i, n := range []int{0, 1, wire.MaxValue} {
		sending := laterErr(t, func() error { return ranks[0].Send(w.ctx, ranks[0].in(wire.Contribution{Root: 1}), big(n), 0) })
		o := ranks[1].recv(w.ctx, "", uint64(i+1))
		good(t, o.err)
		good(t, (<-sending).err)
		same(t, "whole", o.values[0] != nil && bytes.Equal(o.values[0], big(n)), true)
	}
}

func streamOwnership(t *testing.T, w *world) {
	ranks := w.group(2)
	m := []byte("message")
	good(t, ranks[0].Send(w.ctx, ranks[0].in(wire.Contribution{Root: 1}), m, 0))
	clear(m)
	for range 2 {
		o := ranks[1].recv(w.ctx, "", 1)
		good(t, o.err)
		same(t, "message", texts(o.values), []string{"message"})
		clear(o.values[0])
	}
}

func streamCancelled(t *testing.T, w *world) {
	ranks := w.group(2)
	for i := range uint64(20) {
		ctx, cancel := context.WithCancel(w.ctx)
		waiting := later(t, func() ([][]byte, error) { o := ranks[1].recv(ctx, "", i+1); return o.values, o.err })
		sending := laterErr(t, func() error { return ranks[0].send(w.ctx, "", fmt.Sprint(i)) })
		cancel()
		if o := <-waiting; o.err != nil {
			is(t, o.err, context.Canceled)
		}
		good(t, (<-sending).err)
		ranks[1].gets(t, i+1, fmt.Sprint(i))
	}
}
