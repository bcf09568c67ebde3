package hostmem

import (
	"bytes"
	"context"
	"strconv"
	"testing"
)

// pairOf is a sender and a receiver.
type pairOf struct{ src, dst int }

// simStream is what a pair of ranks has sent and received.
type simStream struct {
	queue    []int        // at the store
	sent     []int        // sends that have succeeded
	unknown  map[int]bool // sends whose outcome is unknown to the sender
	received []int
	last     bool // the sender has sent its last one
	over     bool // the receiver has received all
}

func (w *world) stream(src, dst int) *simStream {
	st := w.messages[pairOf{src, dst}]
	if st == nil {
		st = &simStream{unknown: map[int]bool{}}
		w.messages[pairOf{src, dst}] = st
	}
	return st
}

// ended reports whether src sends no more messages to dst.
func (w *world) ended(src, dst int) bool { return w.ranks[src].over || w.stream(src, dst).last }

// body returns the payload of message n, which has another size than the one before.
func body(n int) []byte { return bytes.Repeat([]byte{byte(n)}, n*37%300) }

// runMessages is the program of a rank that sends messages to all others and receives theirs.
func (r *simRank) runMessages(faults bool) {
	w := r.w
	stored, received := make([]uint64, len(w.ranks)), make([]uint64, len(w.ranks))
	left := map[int]int{} // messages to send, by destination
	next := map[int]int{}
	open := map[int]bool{} // senders that may send more
	for rank := range w.ranks {
		if rank != r.rank {
			left[rank], open[rank] = 1+w.rng.IntN(6), true
		}
	}
	r.open()
	late := w.rng.IntN(4) // messages that it sends before it has the memory
	w.patience = min(w.patience, 50)
	for len(left)+len(open) > 0 {
		r.step()
		peer := w.rng.IntN(len(w.ranks))
		if faults && w.rng.IntN(3000) == 0 {
			r.m.Leave()
			w.off = true
		}
		switch {
		case w.rng.IntN(2) == 0 && left[peer] > 0:
			next[peer]++
			late--
			r.send(peer, next[peer], &stored[peer], late >= 0, faults)
			if left[peer]--; left[peer] == 0 {
				delete(left, peer)
				w.stream(r.rank, peer).last = true
			}
		case open[peer]:
			over := w.ended(peer, r.rank) // what it has sent is at the store by now
			if got := r.receive(peer, &received[peer]); !got && over {
				delete(open, peer)
				w.stream(peer, r.rank).over = true
			}
		}
	}
}

func (r *simRank) send(dst, n int, stored *uint64, noMemory, faults bool) {
	w, st := r.w, r.w.stream(r.rank, dst)
	st.unknown[n] = true // until the call has returned
	off := w.off
	if !noMemory && r.m.Send(dst, *stored, w.rng.IntN(2) == 0, strconv.Itoa(n), body(n)) {
		if off {
			w.violated(noneAfterEnd, "message %d from %d to %d", n, r.rank, dst)
		}
		w.seen["memory"]++
		st.sent = append(st.sent, n)
		delete(st.unknown, n)
		return
	}
	*stored++
	if !noMemory {
		r.m.Stored(dst, *stored)
	}
	r.step()
	fault := 100
	if faults {
		fault = w.rng.IntN(40)
	}
	switch fault {
	case 0: // refused
		delete(st.unknown, n)
		*stored--
		r.m.Stored(dst, *stored)
		w.seen["refused"]++
		return
	case 1: // lost
		return
	}
	st.queue = append(st.queue, n)
	if fault == 2 { // the answer is lost
		return
	}
	r.step()
	w.seen["store"]++
	st.sent = append(st.sent, n)
	delete(st.unknown, n)
}

// receive reports whether it has received a message.
func (r *simRank) receive(src int, received *uint64) bool {
	w, st := r.w, r.w.stream(src, r.rank)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if typ, b, ok := r.m.Receive(ctx, src, *received); ok {
		n, _ := strconv.Atoi(typ)
		if !bytes.Equal(b, body(n)) {
			w.violated(rightBytes, "message %q from %d to %d: % x", typ, src, r.rank, b)
		}
		st.received = append(st.received, n)
		return true
	}
	for range 1 + w.rng.IntN(20) { // then its context ends
		if r.step(); len(st.queue) > 0 || w.ended(src, r.rank) {
			break
		}
	}
	if len(st.queue) == 0 {
		return false
	}
	st.received = append(st.received, st.queue[0])
	st.queue = st.queue[1:]
	*received++
	return true
}

// checkMessages checks what has been received at the end of a history.
func (w *world) checkMessages() {
	for pair, st := range w.messages {
		last, at := 0, 0
		for _, n := range st.received {
			if n <= last {
				w.violated(inOrder, "%d to %d: message %d after %d", pair.src, pair.dst, n, last)
			}
			last = n
			for at < len(st.sent) && st.sent[at] < n {
				w.violated(inOrder, "%d to %d: message %d is lost: received %v", pair.src, pair.dst, st.sent[at], st.received)
				return
			}
			switch {
			case at < len(st.sent) && st.sent[at] == n:
				at++
			case !st.unknown[n]:
				w.violated(inOrder, "%d to %d: received %d, which was not sent", pair.src, pair.dst, n)
			}
		}
		if st.over && at < len(st.sent) {
			w.violated(inOrder, "%d to %d: message %d is lost at the end: received %v", pair.src, pair.dst, st.sent[at], st.received)
		}
	}
}

// TestMessages runs random histories of messages. Each outcome must occur.
func TestMessages(t *testing.T) {
	histories(t, (*simRank).runMessages, map[string]float64{"memory": 2, "store": 5, "refused": 0.1, "killed": 0.05})
}
