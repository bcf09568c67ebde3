package tcpstore

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// wait answers when all keys, or queues of their names with an element, exist.
func (p *peer) wait(ctx context.Context, req *tcpwire.Request) error {
	if all, err := p.all(ctx, req.Keys); err != nil {
		return err
	} else if all {
		return p.answer(req.Op, tcpwire.Reply{N: tcpwire.StopWaiting})
	}
	keys := make([]string, len(req.Keys))
	for i, k := range req.Keys {
		keys[i] = strings.Clone(keyOf(k))
	}
	return p.later(req.Op, func(ctx context.Context) (int64, error) {
		p.startWait(keys[0]) // all keys of an empty request exist
		return p.awaitOrFailure(ctx, keys)
	})
}

// awaitOrFailure waits for keys, or for the failure of a rank that should have set one. The answer in
// that case makes PyTorch raise an error.
func (p *peer) awaitOrFailure(ctx context.Context, keys []string) (answer int64, err error) {
	if len(p.protocol.Ranks) == 0 {
		return tcpwire.StopWaiting, p.await(ctx, keys)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var watching sync.WaitGroup
	watching.Go(func() { cancel(p.waitForFailure(ctx, keys)) })
	err = p.await(ctx, keys)
	lost, isLost := errors.AsType[*lostError](context.Cause(ctx))
	cancel(nil)
	watching.Wait()
	if err == nil || !isLost {
		return tcpwire.StopWaiting, err
	}
	p.Logger.Warn("a wait of a PyTorch process has failed", "peer", p.Conn.RemoteAddr(), "rank", lost.rank, "key", lost.key, "reason", lost)
	return tcpwire.WaitCanceled, nil
}

// await waits for the keys one after the other, as PyTorch's server does: a key that is deleted
// again has existed.
func (p *peer) await(ctx context.Context, keys []string) error {
	var q question
	for _, k := range keys {
		is, err := p.exists(ctx, &q, k)
		if err == nil && !is {
			p.nextWait(k)
			err = p.awaitOne(ctx, k)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// awaitOne waits for a key or a queue.
func (p *peer) awaitOne(ctx context.Context, key string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var queue, entry error
	var both sync.WaitGroup
	both.Go(func() {
		if queue = p.awaitEntry(ctx, store.QueueKey(key)); queue == nil {
			cancel()
		}
	})
	if entry = p.awaitEntry(ctx, key); entry == nil {
		cancel()
	}
	both.Wait()
	if queue == nil {
		return nil
	}
	return entry
}

func (p *peer) awaitEntry(ctx context.Context, key string) error {
	return p.Store.Do(ctx, &wire.Request{Op: wire.OpWait, Keys: []string{key}}, new(wire.Reply))
}
