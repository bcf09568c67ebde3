package storetest

import (
	"fmt"
	"testing"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var channelFeatures = []Feature{Collect, Streams, Channels}

var channelChecks = []check{
	{"a channel that all ranks have closed begins anew", channelAgain, channelFeatures},
	{"a rank may use a name again before the others have closed it", channelAhead, channelFeatures},
	{"a hundred channels and streams, one after another", channelMany, channelFeatures},
	{"a verb on a channel that a rank has closed is ErrSkipped, and names it", channelSkipped, channelFeatures},
	{"a message to a rank that has closed the channel is ErrSkipped", channelSend, channelFeatures},
	{"messages come before the sender's close", channelMessages, channelFeatures},
	{"what is sent to a rank that has not used the channel waits for it", channelWaits, channelFeatures},
	{"a close ends the rank's own calls there, and no others", channelOwnCalls, channelFeatures},
	{"closing a channel that the rank has not used changes nothing", channelUnused, channelFeatures},
	{"a message that was acknowledged is not kept", channelReceived, channelFeatures},
	{"a message that was not received cannot be acknowledged", channelNotReceived, channelFeatures},
}

// closes closes channel x for r.
func (r *rank) closes(t *testing.T) {
	t.Helper()
	c := r.asMember()
	c.Channel = "x"
	good(t, r.CloseChannel(r.w.ctx, c))
}

func on(channel string, c wire.Contribution) wire.Contribution {
	c.Channel = channel
	return c
}

func channelAgain(t *testing.T, w *world) {
	ranks := w.group(3)
	for range 3 {
		for seq := range uint64(2) {
			allGood(t, fromAll(ranks, on("x", allGather(seq+1))))
		}
		for _, r := range ranks {
			r.closes(t)
		}
	}
	goesOn(t, ranks, 1)
}

func channelAhead(t *testing.T, w *world) {
	ranks := w.group(3)
	allGood(t, fromAll(ranks, on("x", barrier(1))))
	var second []<-chan outcome
	// rank 2 is in the first use until the other ranks wait in the second
	for _, r := range ranks[:2] {
		r.closes(t)
		second = append(second, r.collectLater(t, w.ctx, on("x", allGather(1)), fmt.Appendf(nil, "second %d", r.n)...))
		r.seen(t, ranks[2], "all-gather")
	}
	root := broadcast(2, 2)
	good(t, ranks[2].collect(w.ctx, on("x", root), []byte("to the first use")...).err)
	ranks[2].closes(t)
	o := ranks[2].collect(w.ctx, on("x", allGather(1)), []byte("second 2")...)
	good(t, o.err)
	same(t, "the second use", texts(o.values), []string{"second 0", "second 1", "second 2"})
	for _, s := range second {
		good(t, (<-s).err)
	}
}

func channelMany(t *testing.T, w *world) {
	ranks := w.group(2)
	each := together(2, func(n int) ([][]byte, error) {
		r := ranks[n]
		for i := range 100 {
			c := r.asMember()
			c.Channel = fmt.Sprint("channel ", i)
			if err := r.collect(w.ctx, on(c.Channel, barrier(1))).err; err != nil {
				return nil, fmt.Errorf("channel %d: %w", i, err)
			}
			if n == 0 {
				if err := r.send(w.ctx, 1, c.Channel, "x"); err != nil {
					return nil, fmt.Errorf("channel %d: %w", i, err)
				}
			} else if err := r.recv(w.ctx, 0, c.Channel, 1).err; err != nil {
				return nil, fmt.Errorf("channel %d: %w", i, err)
			}
			if err := r.CloseChannel(w.ctx, c); err != nil {
				return nil, fmt.Errorf("channel %d: %w", i, err)
			}
		}
		return nil, nil
	})
	allGood(t, each)
}

func channelSkipped(t *testing.T, w *world) {
	ranks := w.group(3)
	allGood(t, fromAll(ranks, on("x", barrier(1))))
	waiting := ranks[0].collectLater(t, w.ctx, on("x", barrier(2)))
	ranks[0].seen(t, ranks[1], "barrier")
	ranks[2].closes(t)
	late := ranks[1].collect(w.ctx, on("x", barrier(2)))
	v := agreed(t, <-waiting, late)
	same(t, "code", v.Code, wire.CodeSkipped)
	same(t, "rank", v.By, 2)
	is(t, late.err, store.ErrSkipped)
	after := ranks[1].collect(w.ctx, on("x", barrier(3)))
	same(t, "rank that skips what begins later", failureOf(t, after.err).By, 2)
	names(t, after.err, "closed the channel")
	goesOn(t, ranks, 1)
}

func channelSend(t *testing.T, w *world) {
	ranks := w.group(2)
	good(t, ranks[0].send(w.ctx, 1, "x", "a"))
	ranks[1].gets(t, 0, "x", 1, "a")
	good(t, ranks[0].send(w.ctx, 1, "x", "unread"))
	ranks[1].closes(t)
	err := ranks[0].send(w.ctx, 1, "x", "b")
	is(t, err, store.ErrSkipped)
	same(t, "rank", failureOf(t, err).By, 1)
	ranks[0].closes(t)
	good(t, ranks[0].send(w.ctx, 1, "x", "of the second use"))
	ranks[1].gets(t, 0, "x", 1, "of the second use")
}

func channelMessages(t *testing.T, w *world) {
	ranks := w.group(2)
	good(t, ranks[0].send(w.ctx, 1, "x", "a"))
	ranks[0].closes(t)
	good(t, ranks[0].send(w.ctx, 1, "x", "second")) // of the next use
	ranks[1].gets(t, 0, "x", 1, "a")
	err := ranks[1].recv(w.ctx, 0, "x", 2).err
	is(t, err, store.ErrSkipped)
	same(t, "rank", failureOf(t, err).By, 0)
	ranks[1].closes(t)
	ranks[1].gets(t, 0, "x", 1, "second")
}

func channelWaits(t *testing.T, w *world) {
	ranks := w.group(3)
	good(t, ranks[0].send(w.ctx, 1, "x", "a"))
	root := on("x", broadcast(1, 0))
	good(t, ranks[0].collect(w.ctx, root, []byte("value")...).err)
	ranks[0].closes(t)
	ranks[1].gets(t, 0, "x", 1, "a")
	for _, r := range ranks[1:] {
		o := r.collect(w.ctx, root)
		good(t, o.err)
		same(t, "value", texts(o.values), []string{"value"})
	}
}

func channelOwnCalls(t *testing.T, w *world) {
	ranks := w.group(2)
	x := ranks[0].collectLater(t, w.ctx, on("x", barrier(1)))
	ranks[0].seen(t, ranks[1], "barrier on channel x")
	y := ranks[0].collectLater(t, w.ctx, on("y", barrier(1)))
	ranks[0].closes(t)
	is(t, (<-x).err, store.ErrClosed)
	good(t, ranks[1].collect(w.ctx, on("x", barrier(1))).err) // its vote counts
	stillWaits(t, "the barrier on y", y)
	good(t, ranks[1].collect(w.ctx, on("y", barrier(1))).err)
	good(t, (<-y).err)
}

func channelUnused(t *testing.T, w *world) {
	ranks := w.group(2)
	ranks[0].closes(t)
	waiting := ranks[1].collectLater(t, w.ctx, on("x", barrier(1)))
	ranks[1].seen(t, ranks[0], "barrier on channel x")
	ranks[0].closes(t)
	good(t, ranks[0].collect(w.ctx, on("x", barrier(1))).err)
	good(t, (<-waiting).err)
}

// received acknowledges message pos from src.
func (r *rank) received(src int, pos uint64) error {
	return r.Received(r.w.ctx, r.in(wire.Contribution{Root: src, Seq: pos}))
}

func channelReceived(t *testing.T, w *world) {
	ranks := w.group(2)
	for i := range 3 {
		good(t, ranks[0].send(w.ctx, 1, "", fmt.Sprint(i)))
	}
	ranks[1].gets(t, 0, "", 1, "0")
	ranks[1].gets(t, 0, "", 2, "1")
	good(t, ranks[1].received(0, 2))
	good(t, ranks[1].received(0, 2))
	is(t, ranks[1].recv(w.ctx, 0, "", 2).err, store.ErrStale)
	ranks[1].gets(t, 0, "", 3, "2")
}

func channelNotReceived(t *testing.T, w *world) {
	ranks := w.group(2)
	is(t, ranks[1].received(0, 1), store.ErrInvalid)
	good(t, ranks[0].send(w.ctx, 1, "", "a"))
	is(t, ranks[1].received(0, 1), store.ErrInvalid)
	is(t, ranks[1].received(5, 1), store.ErrInvalid)
	ranks[1].gets(t, 0, "", 1, "a")
}
