package torchstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
	"github.com/muster-pg/muster/wire/tcpstore"
)

// handler carries out a request. What it does not clone of req is good until it returns. An error ends the connection: the protocol
// has no other way to say no.
type handler func(p *peer, ctx context.Context, req *tcpstore.Request) error

var handlers = [...]handler{
	tcpstore.OpValidate:   (*peer).validate,
	tcpstore.OpSet:        (*peer).set,
	tcpstore.OpCompareSet: (*peer).compareSet,
	tcpstore.OpGet:        (*peer).get,
	tcpstore.OpAdd:        (*peer).add,
	tcpstore.OpCheck:      (*peer).check,
	tcpstore.OpWait:       (*peer).wait,
	tcpstore.OpGetNumKeys: (*peer).numKeys,
	tcpstore.OpDeleteKey:  (*peer).deleteKey,
	tcpstore.OpAppend:     (*peer).append,
	tcpstore.OpMultiGet:   (*peer).multiGet,
	tcpstore.OpMultiSet:   (*peer).multiSet,
	tcpstore.OpCancelWait: (*peer).cancelWait,
	tcpstore.OpPing:       (*peer).ping,
	tcpstore.OpQueuePush:  (*peer).queuePush,
	tcpstore.OpQueuePop:   (*peer).queuePop,
	tcpstore.OpQueueLen:   (*peer).queueLen,
	tcpstore.OpListKeys:   (*peer).listKeys,
	tcpstore.OpBarrier:    (*peer).barrier,
	tcpstore.OpWatchKey:   (*peer).watchKey,
}

func (p *peer) validate(context.Context, *tcpstore.Request) error { return nil }

func (p *peer) ping(_ context.Context, req *tcpstore.Request) error {
	return p.answer(req.Op, tcpstore.Reply{N: req.N})
}

// mostKeys is how many keys are not much, while others wait.
const mostKeys = 64

// long reports whether so many keys keep others waiting.
func (p *peer) long(keys []string) bool { return p.quick && len(keys) > mostKeys }

func (p *peer) set(ctx context.Context, req *tcpstore.Request) error {
	return p.put(ctx, req.Key, req.Value)
}

func (p *peer) put(ctx context.Context, key string, value []byte) error {
	return p.change(ctx, wire.Request{Op: wire.OpSet, Key: key, Value: present(value)})
}

// change changes an entry, by its key as it was sent. The answer is in p.question.
func (p *peer) change(ctx context.Context, req wire.Request) error {
	req.TTL = p.protocol.ttl(req.Key)
	req.Key = keyOf(req.Key)
	p.own(req.Key)
	return p.question.do(ctx, p.store, req)
}

// multiSet sets one after the other.
func (p *peer) multiSet(ctx context.Context, req *tcpstore.Request) error {
	if p.long(req.Keys) {
		return errLong
	}
	for i, k := range req.Keys {
		if err := p.put(ctx, k, req.Values[i]); err != nil {
			return err
		}
	}
	return nil
}

// compareSet answers with what is there now. That nothing was there, where something was expected, is told by what was expected.
func (p *peer) compareSet(ctx context.Context, req *tcpstore.Request) error {
	old := req.Old
	if len(old) == 0 {
		old = nil // empty is absent,
	}
	for {
		err := p.change(ctx, wire.Request{Op: wire.OpSwap, Key: req.Key, Old: old, Value: present(req.Value)})
		now := p.question.rep.Value
		switch {
		case err == nil:
			now = req.Value
		case !errors.Is(err, store.ErrConflict):
			return err
		case now == nil && len(req.Old) == 0: // and was there a moment ago
			old = nil
			continue
		case now == nil:
			now = req.Old
		case old == nil && len(now) == 0: // or empty
			old = now
			continue
		}
		return p.answer(req.Op, tcpstore.Reply{Value: now})
	}
}

// present is v, but never nil, which would be "absent".
func present(v []byte) []byte {
	if v == nil {
		return []byte{}
	}
	return v
}

func (p *peer) get(ctx context.Context, req *tcpstore.Request) error {
	return p.value(ctx, req.Key)
}

// multiGet answers with one value after the other, so that they need not be held together.
func (p *peer) multiGet(ctx context.Context, req *tcpstore.Request) error {
	if p.long(req.Keys) {
		return errLong
	}
	for ; p.sent < len(req.Keys); p.sent++ {
		if err := p.roomy(); err != nil {
			return err
		}
		if err := p.value(ctx, req.Keys[p.sent]); err != nil {
			return err
		}
	}
	p.sent = 0
	return nil
}

// value answers with the value of a key; one that is missing is empty.
func (p *peer) value(ctx context.Context, key string) error {
	q := &p.question
	switch err := q.get(ctx, p.store, keyOf(key)); {
	case q.rep.Code == wire.CodeCounted: // to read it is a change
		v, err := p.store.Get(ctx, keyOf(key))
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		q.rep.Value = v
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return err
	}
	err := p.answer(tcpstore.OpGet, tcpstore.Reply{Value: q.rep.Value})
	q.rep.Value = nil // it may have been a large one
	return err
}

// question is room for a request to the store and its answer, which is used again and again.
type question struct {
	req wire.Request
	rep wire.Reply
}

func (q *question) do(ctx context.Context, s *store.Store, req wire.Request) error {
	q.req, q.rep = req, wire.Reply{}
	return s.Do(ctx, &q.req, &q.rep)
}

func (q *question) get(ctx context.Context, s *store.Store, key string) error {
	return q.do(ctx, s, wire.Request{Op: wire.OpGet, Key: key})
}

func (p *peer) add(ctx context.Context, req *tcpstore.Request) error {
	if err := p.change(ctx, wire.Request{Op: wire.OpAdd, Key: req.Key, Delta: req.N}); err != nil {
		return err
	}
	return p.answer(req.Op, tcpstore.Reply{N: p.question.rep.N})
}

func (p *peer) append(ctx context.Context, req *tcpstore.Request) error {
	return p.change(ctx, wire.Request{Op: wire.OpAppend, Key: req.Key, Value: present(req.Value)})
}

func (p *peer) deleteKey(ctx context.Context, req *tcpstore.Request) error {
	n, err := p.store.Delete(ctx, keyOf(req.Key))
	if err != nil {
		return err
	}
	return p.answer(req.Op, tcpstore.Reply{N: int64(n)})
}

func (p *peer) check(ctx context.Context, req *tcpstore.Request) error {
	all, err := p.all(ctx, req.Keys)
	if err != nil {
		return err
	}
	rep := tcpstore.Reply{N: tcpstore.NotReady}
	if all {
		rep.N = tcpstore.Ready
	}
	return p.answer(req.Op, rep)
}

// all reports whether all keys exist.
func (p *peer) all(ctx context.Context, keys []string) (bool, error) {
	if p.long(keys) {
		return false, errLong
	}
	for _, k := range keys {
		if is, err := p.exists(ctx, &p.question, keyOf(k)); !is || err != nil {
			return false, err
		}
	}
	return true, nil
}

// exists reports whether there is a key, or a queue with something in it.
func (p *peer) exists(ctx context.Context, q *question, key string) (bool, error) {
	is, err := q.exists(ctx, p.store, key)
	if is || err != nil {
		return is, err
	}
	is, err = q.exists(ctx, p.store, store.QueueKey(key))
	if errors.Is(err, store.ErrTooLarge) { // there can be no queue of this name
		return false, nil
	}
	return is, err
}

// exists does not want the value, which may be large. It has no use for an error that says what is missing either.
func (q *question) exists(ctx context.Context, s *store.Store, key string) (bool, error) {
	q.req, q.rep = wire.Request{Op: wire.OpGet, Key: key, Delta: -1}, wire.Reply{}
	if err := s.Engine().Do(ctx, &q.req, &q.rep); err != nil {
		return false, err
	}
	is := q.rep.Code == wire.CodeOK || q.rep.Code == wire.CodeCounted
	q.rep.Value = nil // some engines have it all the same
	if !is && q.rep.Code != wire.CodeNotFound {
		return false, fmt.Errorf("%q: %w: %s", key, store.CodeError(q.rep.Code), q.rep.Detail)
	}
	return is, nil
}

// there is what the error of a read says of a key.
func there(err error) (bool, error) {
	e, ok := errors.AsType[*store.Error](err)
	switch {
	case err == nil, ok && e.Code == wire.CodeCounted:
		return true, nil
	case errors.Is(err, store.ErrNotFound):
		return false, nil
	}
	return false, err
}

func (p *peer) numKeys(ctx context.Context, req *tcpstore.Request) error {
	n := 0
	if err := p.keys(ctx, func(string) { n++ }); err != nil {
		return err
	}
	return p.answer(req.Op, tcpstore.Reply{N: int64(n)})
}

func (p *peer) listKeys(ctx context.Context, req *tcpstore.Request) error {
	var keys []string
	if err := p.keys(ctx, func(sent string) { keys = append(keys, sent) }); err != nil {
		return err
	}
	return p.answer(req.Op, tcpstore.Reply{Keys: keys})
}

// keys gives those that Python is shown, page by page.
func (p *peer) keys(ctx context.Context, each func(sent string)) error {
	q := &p.question
	for after := []string(nil); ; {
		if err := q.do(ctx, p.store, wire.Request{Op: wire.OpList, Keys: after, Delta: -keysAtOnce}); err != nil {
			return err
		}
		if q.rep.N > 0 && p.quick {
			return errLong
		}
		for _, k := range q.rep.Keys {
			if sent, ok := sentOf(k); ok {
				each(sent)
			}
		}
		if q.rep.N == 0 {
			return nil
		}
		after = q.rep.Keys[len(q.rep.Keys)-1:]
	}
}

// keysAtOnce is how many are looked at while others wait.
const keysAtOnce = 500

func (p *peer) queuePush(ctx context.Context, req *tcpstore.Request) error {
	return p.store.Push(ctx, keyOf(req.Key), req.Value)
}

func (p *peer) queuePop(ctx context.Context, req *tcpstore.Request) error {
	v, n, err := p.store.TryPop(ctx, keyOf(req.Key))
	if err != nil {
		return err
	}
	return p.answer(req.Op, tcpstore.Reply{N: int64(n), Value: v})
}

func (p *peer) queueLen(ctx context.Context, req *tcpstore.Request) error {
	n, err := p.store.QueueLen(ctx, keyOf(req.Key))
	if err != nil {
		return err
	}
	return p.answer(req.Op, tcpstore.Reply{N: int64(n)})
}
