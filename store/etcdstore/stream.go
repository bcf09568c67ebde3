package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// A stream has one writer, the process that holds the sender's rank, which gives the positions, and one reader, which says up to where it
// has acknowledged and seen. A message with a time to live is under a lease of its own: one that is gone, below the last position, has expired.

// What a stream holds before its senders wait.
const (
	streamMessages = 64
	streamBytes    = 16 << 20
)

// outStream is a stream as its sender knows it.
type outStream struct {
	keys  streamKeys
	turn  chan struct{} // has one while a message is sent: they have an order
	last  uint64        // the last position
	acked uint64
	queue map[uint64]sent // not acknowledged
}

// sent is a message on its way.
type sent struct {
	bytes   int
	mortal  bool
	expired bool
}

// inStream is a stream as its reader knows it.
type inStream struct {
	keys        streamKeys
	turn        chan struct{} // has one while a call reads
	first, seen uint64        // the first that is not acknowledged; the last that was given
}

func (st *seat) out(c *wire.Contribution) *outStream {
	keys := st.g.keys.stream(c.Rank, c.Root, c.Channel)
	st.mu.Lock()
	defer st.mu.Unlock()
	s := st.outs[keys]
	if s == nil {
		s = &outStream{keys: keys, turn: make(chan struct{}, 1), queue: map[uint64]sent{}}
		st.outs[keys] = s
	}
	return s
}

func (st *seat) in(c *wire.Contribution) *inStream {
	keys := st.g.keys.stream(c.Root, c.Rank, c.Channel)
	st.mu.Lock()
	defer st.mu.Unlock()
	s := st.ins[keys]
	if s == nil {
		s = &inStream{keys: keys, turn: make(chan struct{}, 1), first: 1}
		st.ins[keys] = s
	}
	return s
}

// peer checks the other rank of a send or recv, c.Root.
func (st *seat) peer(c *wire.Contribution, rep *wire.Reply) bool {
	n := len(st.g.roll.ids)
	if c.Root < 0 || c.Root >= n {
		_ = refuse(rep, wire.CodeInvalid, "rank %d of %d", c.Root, n)
		return false
	}
	return true
}

func (st *seat) sendMessage(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	c := &req.Group
	if !st.peer(c, rep) {
		return nil
	}
	if no := st.g.absence(c.Root); no != nil {
		*rep = copyReply(no)
		return nil
	}
	s := st.out(c)
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	if s.full(len(req.Value)) {
		if _, err := st.refresh(ctx, s); err != nil {
			return err
		}
		if s.full(len(req.Value)) {
			rep.Code = wire.CodeNoRoom
			return nil
		}
	}
	return st.put(ctx, s, req, rep)
}

// put sends a message, at the next position.
func (st *seat) put(ctx context.Context, s *outStream, req *wire.Request, rep *wire.Reply) error {
	pos := s.last + 1
	var lease clientv3.LeaseID
	if req.TTL > 0 {
		var err error
		if lease, _, err = st.g.e.newLease(ctx, req.TTL); err != nil {
			return err
		}
	}
	meta := wire.Reply{Value: req.Value, Type: req.Group.Type}
	p := &plan{
		when: []cond{st.held()},
		then: []op{
			opPut(s.keys.message(pos), string(wire.AppendReply(nil, wire.OpRecv, 0, &meta)), lease),
			opPut(s.keys.head(), fmt.Sprint(pos), 0),
		},
	}
	err := st.g.e.change(ctx, rep, func(_ context.Context, seen []*pb.ResponseOp) (*plan, error) {
		if seen != nil {
			return nil, errSession
		}
		return p, nil
	})
	if err == nil && rep.Code == wire.CodeOK || err != nil { // what is unknown has its position too
		s.last = pos
		s.queue[pos] = sent{bytes: len(req.Value), mortal: req.TTL > 0}
	}
	if err == nil {
		rep.N, rep.Rev = int64(pos), 0
	}
	return err
}

// lock waits until no other message is being sent.
func (s *outStream) lock(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *outStream) unlock() { <-s.turn }

// full reports whether a message of n bytes has to wait; alone, any is taken.
func (s *outStream) full(n int) bool {
	bytes := 0
	for _, m := range s.queue {
		if !m.expired {
			bytes += m.bytes
		}
	}
	return len(s.queue) >= streamMessages || bytes > 0 && bytes+n > streamBytes
}

// refresh looks how far the reader is, and which messages have expired.
func (st *seat) refresh(ctx context.Context, s *outStream) (rev int64, err error) {
	resp, err := st.g.e.txn(ctx, nil, []op{opGet(s.keys.seen), opGet(s.keys.queue(), prefixed, keysOnly)}, nil)
	if err != nil {
		return 0, err
	}
	var seen uint64
	if kv := found(resp.Responses[0]); kv != nil {
		_, _ = fmt.Sscanf(string(kv.Value), "%d %d", &s.acked, &seen)
	}
	there := map[uint64]bool{}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		there[lastNumber(kv.Key)] = true
	}
	for pos, m := range s.queue {
		switch {
		case m.mortal && !m.expired && !there[pos] && pos > s.acked:
			if m.expired = true; pos > seen {
				st.mu.Lock()
				st.expired++
				st.mu.Unlock()
			}
			s.queue[pos] = m
		case pos <= s.acked:
			delete(s.queue, pos)
		}
	}
	return resp.Header.Revision, nil
}

// awaitRoom waits until a send of req.Delta bytes can succeed, or cannot any more.
func (st *seat) awaitRoom(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	c := &req.Group
	if !st.peer(c, rep) {
		return nil
	}
	s := st.out(c)
	began, look, done := time.Now(), saysAfter, func() {}
	defer func() { done() }()
	for {
		g := st.g.state()
		if no := st.g.absence(c.Root); no != nil {
			*rep = copyReply(no)
			return nil
		}
		full, rev, err := st.isFull(ctx, s, int(min(max(req.Delta, 0), wire.MaxValue)))
		if err == nil && full {
			err = st.stirred(ctx, g.changed, s.keys.seen, rev, look)
			if err == nil && look < lookFirst/4 && time.Since(began) >= saysAfter/2 {
				done, look = st.says(fmt.Sprintf("send to rank %d", c.Root), began), lookFirst/4
			}
		}
		switch {
		case ctx.Err() != nil:
			return st.overdue(ctx, c.Root, began, rep)
		case err != nil || !full:
			return err
		}
	}
}

// isFull reports whether a message of n bytes has to wait, as of a revision.
func (st *seat) isFull(ctx context.Context, s *outStream, n int) (full bool, rev int64, err error) {
	if err = s.lock(ctx); err != nil {
		return false, 0, err
	}
	defer s.unlock()
	rev, err = st.refresh(ctx, s)
	return s.full(n), rev, err
}

// stirred waits until key has changed, or the group, or it is time to look again: that a message expires is told by nobody.
func (st *seat) stirred(ctx context.Context, changed <-chan struct{}, key string, rev int64, look time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	told := make(chan error, 1)
	st.g.e.run(func() { told <- st.g.e.await(ctx, key, rev, look) })
	select {
	case err := <-told:
		return err
	case <-changed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// overdue is the answer to a send or recv that waited for rank in vain.
func (st *seat) overdue(ctx context.Context, rank int, began time.Time, rep *wire.Reply) error {
	v := &wire.Verdict{Code: wire.CodeTimeout, By: -1, Missing: []int{rank}, Waited: time.Since(began)}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.DeadlineExceeded):
	case errors.Is(cause, context.Canceled):
		v.Code = wire.CodeCancelled
	default:
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.Grace)
	defer cancel()
	v.Doing = st.g.doing(ctx, v.Missing)
	*rep = failed(v)
	return nil
}

func (st *seat) recvMessage(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	c := &req.Group
	if !st.peer(c, rep) {
		return nil
	}
	s := st.in(c)
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	default:
		return refuse(rep, wire.CodeConflict, "another call of this rank waits for the same message")
	}
	switch {
	case c.Seq < s.first:
		return refuse(rep, wire.CodeStale, "message %d has been acknowledged", c.Seq)
	case c.Seq > s.seen+1:
		head, err := st.head(ctx, s)
		if err != nil {
			return err
		}
		if c.Seq > head+1 {
			return refuse(rep, wire.CodeInvalid, "message %d is not the next one", c.Seq)
		}
	}
	if err := st.acknowledge(ctx, s, c.Seq); err != nil {
		return err
	}
	return st.awaitMessage(ctx, s, c, rep)
}

func (st *seat) head(ctx context.Context, s *inStream) (head uint64, err error) {
	kv, err := st.g.e.entry(ctx, s.keys.head())
	if err == nil && kv != nil {
		_, err = fmt.Sscan(string(kv.Value), &head)
	}
	return head, err
}

// acknowledge says that nothing before pos is needed.
func (st *seat) acknowledge(ctx context.Context, s *inStream, pos uint64) error {
	if pos == s.first {
		return nil
	}
	until := s.keys.message(pos)
	then := []op{opPut(s.keys.seen, fmt.Sprint(pos-1, s.seen), 0), opDelete(s.keys.queue(), upTo(until))}
	if _, err := st.g.e.txn(ctx, []cond{st.held()}, then, nil); err != nil {
		return err
	}
	s.first = pos
	return nil
}

// awaitMessage waits for message c.Seq.
func (st *seat) awaitMessage(ctx context.Context, s *inStream, c *wire.Contribution, rep *wire.Reply) error {
	began, look, done := time.Now(), saysAfter, func() {}
	defer func() { done() }()
	for {
		g, no := st.g.state(), st.g.absence(c.Root)
		rev, there, err := st.look(ctx, s, c.Seq, rep)
		if err == nil && !there && no == nil {
			if err = st.stirred(ctx, g.changed, s.keys.head(), rev, look); err == nil && look < lookFirst && time.Since(began) >= saysAfter/2 {
				done, look = st.says(fmt.Sprintf("recv from rank %d", c.Root), began), lookFirst
			}
		}
		switch {
		case there && err == nil:
			return nil
		case ctx.Err() != nil:
			return st.overdue(ctx, c.Root, began, rep)
		case err != nil:
			return err
		case no != nil:
			*rep = copyReply(no)
			return nil
		}
	}
}

// look answers with a message if it is there, or was.
func (st *seat) look(ctx context.Context, s *inStream, pos uint64, rep *wire.Reply) (rev int64, there bool, err error) {
	resp, err := st.g.e.txn(ctx, nil, []op{opGet(s.keys.message(pos)), opGet(s.keys.head())}, nil)
	if err != nil {
		return 0, false, err
	}
	rev = resp.Header.Revision
	if kv := found(resp.Responses[0]); kv != nil {
		msg, err := parseReply(kv.Value)
		if err != nil {
			return rev, false, err
		}
		s.seen = max(s.seen, pos)
		rep.Value, rep.Type = msg.Value, strings.Clone(msg.Type)
		if kv.Lease != 0 { // its sender counts those that expire unread
			_, err = st.g.e.txn(ctx, []cond{st.held()}, []op{opPut(s.keys.seen, fmt.Sprint(s.first-1, s.seen), 0)}, nil)
		}
		return rev, err == nil, err
	}
	var head uint64
	if kv := found(resp.Responses[1]); kv != nil {
		_, _ = fmt.Sscan(string(kv.Value), &head)
	}
	if pos > head {
		return rev, false, nil
	}
	s.seen = max(s.seen, pos)
	return rev, true, refuse(rep, wire.CodeExpired, "message %d", pos)
}

// countExpired answers how many messages of a rank expired since it last asked.
func (st *seat) countExpired(ctx context.Context, _ *wire.Request, rep *wire.Reply) error {
	st.mu.Lock()
	var outs []*outStream
	for _, s := range st.outs {
		outs = append(outs, s)
	}
	st.mu.Unlock()
	for _, s := range outs {
		if _, _, err := st.isFull(ctx, s, 0); err != nil {
			return err
		}
	}
	st.mu.Lock()
	rep.N, st.expired = int64(st.expired), 0
	st.mu.Unlock()
	return nil
}
