package torchstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
	"github.com/muster-pg/muster/wire/tcpstore"
)

// A barrier is an entry while some have come and others have not: which one of its uses that is, and how many have come. Who is the last
// takes it away, and sets a key of that use, which the others wait for. So a name can be used again, and a client that gives up, or is
// gone, does not count.

// passedTTL is for how long that key stays: those who wait for it see it at once.
const passedTTL = time.Minute

// use is what a barrier's entry says.
type use struct {
	id   uint64 // 0: nobody has come
	come int64
}

func (u use) value() []byte {
	if u.come == 0 {
		return nil
	}
	return fmt.Appendf(nil, "%x %d", u.id, u.come)
}

func parseUse(key string, v []byte) (u use, err error) {
	if v == nil {
		return use{id: rand.Uint64() | 1}, nil
	}
	if _, err = fmt.Sscanf(string(v), "%x %d", &u.id, &u.come); err != nil || u.come <= 0 {
		err = fmt.Errorf("%q is no barrier", key)
	}
	return u, err
}

func passedKey(barrier string, u use) string {
	return fmt.Sprintf("%s%s/%x", barrier, barrierSuffix, u.id)
}

// barrier answers when as many have come as N says.
func (p *peer) barrier(ctx context.Context, req *tcpstore.Request) error {
	if !p.waiting.over() {
		return errWaits
	}
	key, size := strings.Clone(keyOf(req.Key)), req.N
	u, err := p.count(ctx, key, func(u use) (use, bool) {
		if u.come++; u.come >= size {
			u.come = 0
		}
		return u, true
	})
	if err != nil {
		return err
	}
	if u.come == 0 {
		if err := p.store.Set(ctx, passedKey(key, u), nil, &store.SetOptions{TTL: passedTTL}); err != nil {
			return err
		}
		return p.answer(req.Op, tcpstore.Reply{N: tcpstore.StopWaiting})
	}
	return p.later(req.Op, func(ctx context.Context) (int64, error) {
		err := p.awaitEntry(ctx, passedKey(key, u))
		if err != nil && p.leave(key, u) {
			return 0, err
		}
		return tcpstore.StopWaiting, nil
	})
}

// leave takes this client out of a barrier, unless all have come.
func (p *peer) leave(key string, u use) (left bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.life), patience)
	defer cancel()
	_, err := p.count(ctx, key, func(now use) (use, bool) {
		if left = now.id == u.id; left {
			now.come--
		}
		return now, left
	})
	return left || err != nil
}

// count changes a barrier, unless how says that it should not.
func (p *peer) count(ctx context.Context, barrier string, how func(use) (use, bool)) (use, error) {
	key := barrier + barrierSuffix
	old, err := p.store.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		old, err = nil, nil
	}
	for err == nil {
		u, bad := parseUse(barrier, old)
		if bad != nil {
			return u, bad
		}
		u, changed := how(u)
		if !changed {
			return u, nil
		}
		var rep wire.Reply
		err = p.store.Do(ctx, &wire.Request{Op: wire.OpSwap, Key: key, Old: old, Value: u.value()}, &rep)
		if err == nil {
			return u, nil
		}
		if errors.Is(err, store.ErrConflict) { // somebody was faster
			old, err = rep.Value, nil
		}
	}
	return use{}, err
}
