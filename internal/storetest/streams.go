package storetest

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var streamChecks = []check{
	{"messages come in order, and once each", streamOrder, []Feature{Collect, Streams}},
	{"two senders to one receiver lose nothing", streamTwo, []Feature{Collect, Streams}},
	{"a recv waits for its message", streamWaits, []Feature{Collect, Streams}},
	{"the same position again gives the same message", streamAgain, []Feature{Collect, Streams}},
	{"asking for the next one acknowledges", streamAcknowledge, []Feature{Collect, Streams}},
	{"a position beyond the next one is ErrInvalid", streamBeyond, []Feature{Collect, Streams}},
	{"tags are independent", streamTags, []Feature{Collect, Streams}},
	{"both directions are independent", streamBoth, []Feature{Collect, Streams}},
	{"a rank sends to itself", streamSelf, []Feature{Collect, Streams}},
	{"the type travels along", streamType, []Feature{Collect, Streams}},
	{"empty and large messages", streamSizes, []Feature{Collect, Streams}},
	{"what was passed in and returned may be changed", streamOwnership, []Feature{Collect, Streams}},
	{"a send waits beyond 64 messages", streamFull, []Feature{Collect, Streams}},
	{"a send waits beyond 16 MiB", streamFullBytes, []Feature{Collect, Streams}},
	{"a send that timed out is not sent", streamWithdrawn, []Feature{Collect, Streams}},
	{"a recv that timed out names its sender, and may be asked again", streamTimeout, []Feature{Collect, Streams}},
	{"a recv that is cancelled loses no message", streamCancelled, []Feature{Collect, Streams}},
	{"an expired message is ErrExpired, and the next can be read", streamExpired, []Feature{Collect, Streams}},
	{"a recv that waits when the next message comes gets it before it expires", streamInTime, []Feature{Collect, Streams}},
	{"a message that was read does not count as expired", streamReadNotExpired, []Feature{Collect, Streams}},
	{"expired messages free space", streamExpiredSpace, []Feature{Collect, Streams}},
	{"a rank that is not there is ErrInvalid", streamRange, []Feature{Collect, Streams}},
	{"a sender's messages come before its leave", streamLeft, []Feature{Collect, Streams}},
	{"a send to a rank that left is ErrLeft", streamToLeft, []Feature{Collect, Streams}},
	{"a rank in a recv is shown as such", streamDoing, []Feature{Collect, Streams}},
}

func streamOrder(t *testing.T, w *world) {
	ranks := w.group(2)
	const n = 1000
	sending := laterErr(t, func() error {
		for i := range n {
			if err := ranks[0].send(w.ctx, 1, "", fmt.Sprint(i)); err != nil {
				return err
			}
		}
		return nil
	})
	for i := range n {
		ranks[1].gets(t, 0, "", uint64(i+1), fmt.Sprint(i))
	}
	good(t, (<-sending).err)
}

func streamTwo(t *testing.T, w *world) {
	ranks := w.group(3)
	good(t, ranks[0].send(w.ctx, 2, "", "from 0"))
	good(t, ranks[1].send(w.ctx, 2, "", "from 1"))
	ranks[2].gets(t, 1, "", 1, "from 1")
	ranks[2].gets(t, 0, "", 1, "from 0")
}

func streamWaits(t *testing.T, w *world) {
	ranks := w.group(2)
	waiting := later(t, func() ([][]byte, error) { o := ranks[1].recv(w.ctx, 0, "", 1); return o.values, o.err })
	ranks[1].seen(t, ranks[0], "recv")
	stillWaits(t, "recv", waiting)
	good(t, ranks[0].send(w.ctx, 1, "", "hello"))
	o := <-waiting
	good(t, o.err)
	same(t, "message", texts(o.values), []string{"hello"})
}

func streamAgain(t *testing.T, w *world) {
	ranks := w.group(2)
	for i := range uint64(3) {
		good(t, ranks[0].send(w.ctx, 1, "", fmt.Sprint(i)))
	}
	for i := range uint64(3) {
		for range 3 {
			ranks[1].gets(t, 0, "", i+1, fmt.Sprint(i))
		}
	}
}

func streamAcknowledge(t *testing.T, w *world) {
	ranks := w.group(2)
	for i := range 3 {
		good(t, ranks[0].send(w.ctx, 1, "", fmt.Sprint(i)))
	}
	ranks[1].gets(t, 0, "", 1, "0")
	ranks[1].gets(t, 0, "", 2, "1")
	is(t, ranks[1].recv(w.ctx, 0, "", 1).err, store.ErrStale)
	is(t, ranks[1].recv(w.ctx, 0, "", 0).err, store.ErrStale)
	ranks[1].gets(t, 0, "", 3, "2")
}

func streamBeyond(t *testing.T, w *world) {
	ranks := w.group(2)
	is(t, ranks[1].recv(w.ctx, 0, "", 2).err, store.ErrInvalid)
	good(t, ranks[0].send(w.ctx, 1, "", "one"))
	is(t, ranks[1].recv(w.ctx, 0, "", 3).err, store.ErrInvalid)
	is(t, ranks[1].recv(w.ctx, 0, "", 1<<63).err, store.ErrInvalid)
	ranks[1].gets(t, 0, "", 1, "one")
}

func streamTags(t *testing.T, w *world) {
	ranks := w.group(2)
	waiting := later(t, func() ([][]byte, error) { o := ranks[1].recv(w.ctx, 0, "c", 1); return o.values, o.err })
	for _, tag := range []string{"a", "b", "a", ""} {
		good(t, ranks[0].send(w.ctx, 1, tag, "on "+tag))
	}
	stillWaits(t, "recv", waiting)
	ranks[1].gets(t, 0, "b", 1, "on b")
	ranks[1].gets(t, 0, "a", 1, "on a")
	ranks[1].gets(t, 0, "", 1, "on ")
	ranks[1].gets(t, 0, "a", 2, "on a")
	good(t, ranks[0].send(w.ctx, 1, "c", "on c"))
	same(t, "message", texts((<-waiting).values), []string{"on c"})
}

func streamBoth(t *testing.T, w *world) {
	ranks := w.group(2)
	good(t, ranks[0].send(w.ctx, 1, "", "there"))
	good(t, ranks[1].send(w.ctx, 0, "", "back"))
	ranks[1].gets(t, 0, "", 1, "there")
	ranks[0].gets(t, 1, "", 1, "back")
}

func streamSelf(t *testing.T, w *world) {
	r := w.group(1)[0]
	good(t, r.send(w.ctx, 0, "", "note"))
	r.gets(t, 0, "", 1, "note")
}

func streamType(t *testing.T, w *world) {
	ranks := w.group(2)
	good(t, ranks[0].send(w.ctx, 1, "", "x"))
	_, typ, err := ranks[1].Recv(w.ctx, ranks[1].in(wire.Contribution{Root: 0, Seq: 1, Verb: "recv"}))
	good(t, err)
	same(t, "type", typ, "text")
}

func streamSizes(t *testing.T, w *world) {
	ranks := w.group(2)
	for i, n := range []int{0, 1, wire.MaxValue} {
		sending := laterErr(t, func() error { return ranks[0].Send(w.ctx, ranks[0].in(wire.Contribution{Root: 1}), big(n), 0) })
		o := ranks[1].recv(w.ctx, 0, "", uint64(i+1))
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
		o := ranks[1].recv(w.ctx, 0, "", 1)
		good(t, o.err)
		same(t, "message", texts(o.values), []string{"message"})
		clear(o.values[0])
	}
}

// fill sends n messages of size bytes from rank 0 to rank 1.
func fill(t *testing.T, ranks []*rank, n, size int) {
	t.Helper()
	for range n {
		good(t, ranks[0].send(ranks[0].w.ctx, 1, "", string(big(size))))
	}
}

func streamFull(t *testing.T, w *world) {
	ranks := w.group(2)
	fill(t, ranks, 64, 1)
	waiting := laterErr(t, func() error { return ranks[0].send(w.ctx, 1, "", "last") })
	ranks[0].seen(t, ranks[1], "send")
	stillWaits(t, "send", waiting)
	ranks[1].gets(t, 0, "", 1, "0")
	ranks[1].gets(t, 0, "", 2, "0")
	good(t, (<-waiting).err)
	for pos := uint64(3); pos <= 64; pos++ {
		ranks[1].gets(t, 0, "", pos, "0")
	}
	ranks[1].gets(t, 0, "", 65, "last")
}

func streamFullBytes(t *testing.T, w *world) {
	ranks := w.group(2)
	fill(t, ranks, 2, 8<<20)
	waiting := laterErr(t, func() error { return ranks[0].send(w.ctx, 1, "", "last") })
	ranks[0].seen(t, ranks[1], "send")
	stillWaits(t, "send", waiting)
	for pos := range uint64(2) {
		good(t, ranks[1].recv(w.ctx, 0, "", pos+1).err)
	}
	good(t, (<-waiting).err)
	ranks[1].gets(t, 0, "", 3, "last")
}

func streamWithdrawn(t *testing.T, w *world) {
	ranks := w.group(2)
	fill(t, ranks, 64, 1)
	err := ranks[0].send(w.within(soon), 1, "", "too late")
	is(t, err, store.ErrTimeout)
	is(t, err, context.DeadlineExceeded)
	same(t, "missing", failureOf(t, err).Missing, []int{1})
	for pos := range uint64(64) {
		ranks[1].gets(t, 0, "", pos+1, "0")
	}
	sending := laterErr(t, func() error { return ranks[0].send(w.ctx, 1, "", "in time") })
	ranks[1].gets(t, 0, "", 65, "in time")
	good(t, (<-sending).err)
}

func streamTimeout(t *testing.T, w *world) {
	ranks := w.group(3)
	start := time.Now()
	o := ranks[0].recv(w.within(soon), 2, "", 1)
	is(t, o.err, store.ErrTimeout)
	is(t, o.err, context.DeadlineExceeded)
	inTime(t, "recv", start, soon)
	same(t, "missing", failureOf(t, o.err).Missing, []int{2})
	good(t, ranks[2].send(w.ctx, 0, "", "at last"))
	ranks[0].gets(t, 2, "", 1, "at last")
}

func streamCancelled(t *testing.T, w *world) {
	ranks := w.group(2)
	for i := range uint64(20) {
		ctx, cancel := context.WithCancel(w.ctx)
		waiting := later(t, func() ([][]byte, error) { o := ranks[1].recv(ctx, 0, "", i+1); return o.values, o.err })
		sending := laterErr(t, func() error { return ranks[0].send(w.ctx, 1, "", fmt.Sprint(i)) })
		cancel()
		if o := <-waiting; o.err != nil {
			is(t, o.err, context.Canceled)
		}
		good(t, (<-sending).err)
		ranks[1].gets(t, 0, "", i+1, fmt.Sprint(i))
	}
}

// expires returns when n messages of r have expired.
func (r *rank) expires(t *testing.T, n int) {
	t.Helper()
	have := 0
	until(t, r.w.ctx, fmt.Sprintf("%d messages of rank %d expire", n, r.n), func() bool {
		more, err := r.Expire(r.w.ctx, r.asMember())
		good(t, err)
		have += more
		return have >= n
	})
	same(t, "expired messages", have, n)
}

func streamExpired(t *testing.T, w *world) {
	ranks := w.group(2)
	start := time.Now()
	good(t, ranks[0].send(w.ctx, 1, "", "passing", w.TTL))
	good(t, ranks[0].send(w.ctx, 1, "", "lasting"))
	good(t, ranks[0].send(w.ctx, 1, "", "passing too", w.TTL))
	ranks[0].expires(t, 2)
	inTime(t, "the messages' life", start, w.TTL)
	for range 2 {
		is(t, ranks[1].recv(w.ctx, 0, "", 1).err, store.ErrExpired)
	}
	ranks[1].gets(t, 0, "", 2, "lasting")
	is(t, ranks[1].recv(w.ctx, 0, "", 3).err, store.ErrExpired)
	good(t, ranks[0].send(w.ctx, 1, "", "next"))
	ranks[1].gets(t, 0, "", 4, "next")
	ranks[0].expires(t, 0)
}

func streamInTime(t *testing.T, w *world) {
	ranks := w.group(2)
	waiting := later(t, func() ([][]byte, error) { o := ranks[1].recv(w.ctx, 0, "", 1); return o.values, o.err })
	ranks[1].seen(t, ranks[0], "recv")
	good(t, ranks[0].send(w.ctx, 1, "", "quick", 100*w.TTL))
	o := <-waiting
	good(t, o.err)
	same(t, "message", texts(o.values), []string{"quick"})
}

func streamReadNotExpired(t *testing.T, w *world) {
	ranks := w.group(2)
	good(t, ranks[0].send(w.ctx, 1, "read", "one", 20*w.TTL))
	ranks[1].gets(t, 0, "read", 1, "one")
	good(t, ranks[0].send(w.ctx, 1, "unread", "two", 20*w.TTL))
	ranks[0].expires(t, 1)
	ranks[0].expires(t, 0)
	is(t, ranks[1].recv(w.ctx, 0, "unread", 1).err, store.ErrExpired)
}

func streamExpiredSpace(t *testing.T, w *world) {
	ranks := w.group(2)
	for range 2 {
		good(t, ranks[0].send(w.ctx, 1, "", string(big(8<<20)), w.TTL))
	}
	good(t, ranks[0].send(w.ctx, 1, "", "last")) // waits until the other messages have been removed
	ranks[0].expires(t, 2)
	is(t, ranks[1].recv(w.ctx, 0, "", 1).err, store.ErrExpired)
	is(t, ranks[1].recv(w.ctx, 0, "", 2).err, store.ErrExpired)
	ranks[1].gets(t, 0, "", 3, "last")
}

func streamRange(t *testing.T, w *world) {
	r := w.group(2)[0]
	for _, peer := range []int{-1, 2, 7} {
		is(t, r.send(w.ctx, peer, "", "x"), store.ErrInvalid)
		is(t, r.recv(w.ctx, peer, "", 1).err, store.ErrInvalid)
	}
}

func streamLeft(t *testing.T, w *world) {
	ranks := w.group(2)
	for _, m := range []string{"one", "two"} {
		good(t, ranks[0].send(w.ctx, 1, "", m))
	}
	good(t, ranks[0].Leave(w.ctx, ranks[0].asMember()))
	ranks[1].gets(t, 0, "", 1, "one")
	ranks[1].gets(t, 0, "", 2, "two")
	o := ranks[1].recv(w.ctx, 0, "", 3)
	is(t, o.err, store.ErrLeft)
	same(t, "left", failureOf(t, o.err).Left, []int{0})
}

func streamToLeft(t *testing.T, w *world) {
	ranks := w.group(3)
	fill(t, ranks, 64, 1)
	waiting := laterErr(t, func() error { return ranks[0].send(w.ctx, 1, "", "x") })
	ranks[0].seen(t, ranks[2], "send")
	good(t, ranks[1].Leave(w.ctx, ranks[1].asMember()))
	is(t, (<-waiting).err, store.ErrLeft)
	is(t, ranks[0].send(w.ctx, 1, "", "x"), store.ErrLeft)
	good(t, ranks[0].send(w.ctx, 2, "", "x"))
}

func streamDoing(t *testing.T, w *world) {
	ranks := w.group(3)
	waiting := later(t, func() ([][]byte, error) { o := ranks[1].recv(w.ctx, 2, "", 1); return o.values, o.err })
	ranks[1].seen(t, ranks[0], "recv from rank 2")
	good(t, ranks[2].send(w.ctx, 1, "", "x"))
	good(t, (<-waiting).err)
}
