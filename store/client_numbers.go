package store

import (
	"context"
	"slices"
)

// numbers assigns numbers to the requests that change something: 1, 2, 3 … in the order in which
// they are sent. The store uses them to apply each request exactly once, and keeps its replies
// until they are acknowledged.
type numbers struct {
	acked uint64        // the replies up to this number have arrived
	open  []numbered    // the requests from acked+1 on, maxNumbered at most
	count int           // requests that have a number, or will get one
	freed chan struct{} // gets a token when a request may get a number
}

// numbered is a request with a number, until its reply has arrived.
type numbered struct {
	id       uint64
	call     *clientCall // nil if it was abandoned
	answered bool
}

// maxNumbered is how many may be in progress: the store keeps that many replies.
const maxNumbered = 1000

func (n *numbers) full() bool { return n.count >= maxNumbered }

// wait waits until a number may be free.
func (n *numbers) wait(ctx context.Context) error {
	select {
	case <-n.freed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *numbers) wake() { signal(n.freed) }

// signal puts a token into c, a channel for one, unless there is one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// next returns the next number, for the request id; call is nil if no caller waits for it.
func (n *numbers) next(id uint64, call *clientCall) uint64 {
	n.open = append(n.open, numbered{id: id, call: call})
	return n.acked + uint64(len(n.open))
}

// abandon marks call as abandoned. If it was sent, its number stays in use until the reply arrives.
func (n *numbers) abandon(call *clientCall) {
	switch {
	case call.number != 0:
		n.open[call.number-n.acked-1].call = nil
	case call.req.Op.Numbered():
		n.count--
		n.wake()
	}
}

// answered records the reply to a request; call is nil if it was abandoned.
func (n *numbers) answered(id uint64, call *clientCall) {
	var i int
	if call == nil {
		i = slices.IndexFunc(n.open, func(o numbered) bool { return o.id == id })
	} else {
		i = int(call.number) - int(n.acked) - 1
	}
	if i < 0 { // it has no number
		return
	}
	n.open[i] = numbered{answered: true}
	k := 0
	for k < len(n.open) && n.open[k].answered {
		k++
	}
	n.open = n.open[k:]
	n.acked += uint64(k)
	n.count -= k
	if k > 0 {
		n.wake()
	}
}
