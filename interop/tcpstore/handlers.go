package tcpstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// handler carries out a request. req is valid until it returns; a handler clones what it keeps. An
// error ends the connection: the protocol has no error reply.
type handler func(p *peer, ctx context.Context, req *tcpwire.Request) error

var handlers = [...]handler{
	tcpwire.OpValidate:   (*peer).validate,
	tcpwire.OpSet:        (*peer).set,
	tcpwire.OpCompareSet: (*peer).compareSet,
	tcpwire.OpGet:        (*peer).get,
	tcpwire.OpAdd:        (*peer).add,
	tcpwire.OpCheck:      (*peer).check,
	tcpwire.OpWait:       (*peer).wait,
	tcpwire.OpGetNumKeys: (*peer).numKeys,
	tcpwire.OpDeleteKey:  (*peer).deleteKey,
	tcpwire.OpAppend:     (*peer).append,
	tcpwire.OpMultiGet:   (*peer).multiGet,
	tcpwire.OpMultiSet:   (*peer).multiSet,
	tcpwire.OpCancelWait: (*peer).cancelWait,
	tcpwire.OpPing:       (*peer).ping,
	tcpwire.OpQueuePush:  (*peer).queuePush,
	tcpwire.OpQueuePop:   (*peer).queuePop,
	tcpwire.OpQueueLen:   (*peer).queueLen,
	tcpwire.OpListKeys:   (*peer).listKeys,
	tcpwire.OpBarrier:    (*peer).barrier,
}

func (p *peer) validate(context.Context, *tcpwire.Request) error { return nil }

func (p *peer) ping(_ context.Context, req *tcpwire.Request) error {
	p.pid.CompareAndSwap(0, uint32(req.N)) // PyTorch's clients send it when they connect
	return p.answer(req.Op, tcpwire.Reply{N: req.N})
}

// mostKeys is the maximum number of keys that a request may have on a shared loop.
const mostKeys = 64

// long reports whether a request with these keys would delay other connections too long.
func (p *peer) long(keys []string) bool { return p.quick && len(keys) > mostKeys }

func (p *peer) set(ctx context.Context, req *tcpwire.Request) error {
	return p.put(ctx, req.Key, req.Value)
}

func (p *peer) put(ctx context.Context, key string, value []byte) error {
	req := wire.Request{Op: wire.OpSet, Key: key, Value: present(value)}
	if p.protocol.inSession(key) {
		return p.setInSession(ctx, req)
	}
	return p.change(ctx, req)
}

// change changes an entry. The request's key is in the protocol's form. The reply is in p.question.
func (p *peer) change(ctx context.Context, req wire.Request) error {
	req.TTL = p.protocol.ttl(req.Key)
	req.Key = keyOf(req.Key)
	p.own(req.Key)
	p.protocol.processes.arrive(p, req.Key)
	return p.question.do(ctx, p.Store, req)
}

// multiSet sets the keys one after the other.
func (p *peer) multiSet(ctx context.Context, req *tcpwire.Request) error {
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

// compareSet answers with the current value. If the key is missing but a value was expected, it
// answers with the expected value.
func (p *peer) compareSet(ctx context.Context, req *tcpwire.Request) error {
	old := req.Old
	if len(old) == 0 {
		old = nil // an empty value means absent
	}
	for {
		err := p.change(ctx, wire.Request{Op: wire.OpSwap, Key: req.Key, Expect: old, Value: present(req.Value)})
		now := p.question.rep.Value
		switch {
		case err == nil:
			now = req.Value
		case !errors.Is(err, store.ErrConflict):
			return err
		case now == nil && len(req.Old) == 0: // the key existed a moment ago
			old = nil
			continue
		case now == nil:
			now = req.Old
		case old == nil && len(now) == 0: // or the value is empty
			old = now
			continue
		}
		return p.answer(req.Op, tcpwire.Reply{Value: now})
	}
}

// present returns v, but never nil, which would mean "absent".
func present(v []byte) []byte {
	if v == nil {
		return []byte{}
	}
	return v
}

func (p *peer) get(ctx context.Context, req *tcpwire.Request) error {
	return p.value(ctx, req.Key)
}

// multiGet sends one value after the other, so that they are not all in memory at once.
func (p *peer) multiGet(ctx context.Context, req *tcpwire.Request) error {
	if p.long(req.Keys) {
		return errLong
	}
	for ; p.sent < len(req.Keys); p.sent++ {
		if err := p.waitForSpace(); err != nil {
			return err
		}
		if err := p.value(ctx, req.Keys[p.sent]); err != nil {
			return err
		}
	}
	p.sent = 0
	return nil
}

// value answers with the value of a key, or with an empty value if it is missing.
func (p *peer) value(ctx context.Context, key string) error {
	q := &p.question
	if err := q.get(ctx, p.Store, keyOf(key)); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	v := q.rep.Value
	q.rep.Value = nil
	if len(v) < transport.ShareFrom {
		return p.answer(tcpwire.OpGet, tcpwire.Reply{Value: v})
	}
	p.out.AppendUncopied(0, tcpwire.AppendSize(nil, len(v)), v)
	return nil
}

// question is a reusable store request and its reply.
type question struct {
	req wire.Request
	rep wire.Reply
}

func (q *question) do(ctx context.Context, s *store.Store, req wire.Request) error {
	q.req, q.rep = req, wire.Reply{}
	return s.Do(ctx, &q.req, &q.rep)
}

// get reads a value, which must not be modified: it may be the store's own.
func (q *question) get(ctx context.Context, s *store.Store, key string) error {
	return q.do(ctx, s, wire.Request{Op: wire.OpGet, Key: key, Borrow: true})
}

func (p *peer) add(ctx context.Context, req *tcpwire.Request) error {
	if err := p.change(ctx, wire.Request{Op: wire.OpAdd, Key: req.Key, Add: req.N}); err != nil {
		return err
	}
	return p.answer(req.Op, tcpwire.Reply{N: p.question.rep.N})
}

func (p *peer) append(ctx context.Context, req *tcpwire.Request) error {
	return p.change(ctx, wire.Request{Op: wire.OpAppend, Key: req.Key, Value: present(req.Value)})
}

func (p *peer) deleteKey(ctx context.Context, req *tcpwire.Request) error {
	n, err := p.Store.Delete(ctx, keyOf(req.Key))
	if err != nil {
		return err
	}
	return p.answer(req.Op, tcpwire.Reply{N: int64(n)})
}

func (p *peer) check(ctx context.Context, req *tcpwire.Request) error {
	all, err := p.all(ctx, req.Keys)
	if err != nil {
		return err
	}
	rep := tcpwire.Reply{N: tcpwire.NotReady}
	if all {
		rep.N = tcpwire.Ready
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

// exists reports whether the key, or a queue of that name with an element, exists.
func (p *peer) exists(ctx context.Context, q *question, key string) (bool, error) {
	is, err := q.exists(ctx, p.Store, key)
	if is || err != nil {
		return is, err
	}
	is, err = q.exists(ctx, p.Store, store.QueueKey(key))
	if errors.Is(err, store.ErrTooLarge) { // no queue can have this name
		return false, nil
	}
	return is, err
}

// exists asks for the key without its value, which may be large, and without the error text that
// says what is missing.
func (q *question) exists(ctx context.Context, s *store.Store, key string) (bool, error) {
	q.req, q.rep = wire.Request{Op: wire.OpGet, Key: key, KeysOnly: true}, wire.Reply{}
	if err := s.Engine().Do(ctx, &q.req, &q.rep); err != nil {
		return false, err
	}
	is := q.rep.Code == wire.CodeOK
	q.rep.Value = nil // some engines return the value all the same
	if !is && q.rep.Code != wire.CodeNotFound {
		return false, fmt.Errorf("%q: %w: %s", key, store.CodeError(q.rep.Code), q.rep.Detail)
	}
	return is, nil
}

func (p *peer) numKeys(ctx context.Context, req *tcpwire.Request) error {
	n := 0
	if err := p.keys(ctx, func(string) { n++ }); err != nil {
		return err
	}
	return p.answer(req.Op, tcpwire.Reply{N: int64(n)})
}

func (p *peer) listKeys(ctx context.Context, req *tcpwire.Request) error {
	var keys []string
	if err := p.keys(ctx, func(sent string) { keys = append(keys, sent) }); err != nil {
		return err
	}
	return p.answer(req.Op, tcpwire.Reply{Keys: keys})
}

// keys calls each with the keys that Python may see, page by page.
func (p *peer) keys(ctx context.Context, each func(sent string)) error {
	q := &p.question
	for after := []string(nil); ; {
		if err := q.do(ctx, p.Store, wire.Request{Op: wire.OpList, Keys: after, Limit: keysAtOnce, KeysOnly: true}); err != nil {
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

// keysAtOnce is the number of keys that are read in one turn on a shared loop.
const keysAtOnce = 500

func (p *peer) queuePush(ctx context.Context, req *tcpwire.Request) error {
	return p.Store.Push(ctx, keyOf(req.Key), req.Value)
}

func (p *peer) queuePop(ctx context.Context, req *tcpwire.Request) error {
	v, n, err := p.Store.TryPop(ctx, keyOf(req.Key))
	if err != nil {
		return err
	}
	return p.answer(req.Op, tcpwire.Reply{N: int64(n), Value: v})
}

func (p *peer) queueLen(ctx context.Context, req *tcpwire.Request) error {
	n, err := p.Store.QueueLen(ctx, keyOf(req.Key))
	if err != nil {
		return err
	}
	return p.answer(req.Op, tcpwire.Reply{N: int64(n)})
}
