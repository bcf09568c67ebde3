package torchstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
	"github.com/muster-pg/muster/wire/tcpstore"
)

// mostWatched bounds the keys that one connection watches. mostKept bounds the bytes of their
// values: each watch has a copy, since a notification has the old value too.
const (
	mostWatched = 1024
	mostKept    = 64 << 20
)

// keep notes that a watch now has a copy of now instead of old.
func (p *peer) keep(old, now []byte) error {
	if p.kept.Add(int64(len(now)-len(old))) > mostKept {
		return fmt.Errorf("what the watched keys hold is more than %d bytes", mostKept)
	}
	return nil
}

// watchKey notifies the client of all changes of a key from now on.
func (p *peer) watchKey(ctx context.Context, req *tcpstore.Request) error {
	if p.watched++; p.watched > mostWatched {
		return fmt.Errorf("more than %d keys", mostWatched)
	}
	sent := strings.Clone(req.Key)
	rev, value, err := p.snapshot(ctx, keyOf(sent))
	if err != nil {
		return err
	}
	if err := p.keep(nil, value); err != nil {
		return err
	}
	if err := p.answer(req.Op, tcpstore.Reply{N: tcpstore.Registered}); err != nil {
		return err
	}
	p.running.Go(func() {
		if err := p.follow(sent, rev, value); p.life.Err() == nil {
			p.fail(fmt.Errorf("%v: %w", tcpstore.OpWatchKey, err))
		}
	})
	return nil
}

// snapshot returns the value of key and a revision, nil if the key is missing. The value includes
// all changes of the key up to that revision.
func (p *peer) snapshot(ctx context.Context, key string) (store.Revision, []byte, error) {
	rev, err := p.store.Revision(ctx)
	if err != nil {
		return 0, nil, err
	}
	var rep wire.Reply
	err = p.store.Do(ctx, &wire.Request{Op: wire.OpGet, Key: key}, &rep)
	if errors.Is(err, store.ErrNotFound) {
		return rev, nil, nil
	}
	return max(rev, store.Revision(rep.Rev)), rep.Value, err
}

// follow notifies the client of the changes after rev, at which the key had value.
func (p *peer) follow(sent string, rev store.Revision, value []byte) error {
	key := keyOf(sent)
	for {
		for e, err := range p.store.Watch(p.life, key, rev) {
			if err == nil && e.Key == key {
				if err = p.keep(value, e.Value); err == nil {
					err = p.tellOf(sent, value, e.Value, e.Deleted)
				}
				value = e.Value
			}
			if errors.Is(err, store.ErrCompacted) {
				break
			}
			if err != nil {
				return err
			}
		}
		if p.life.Err() != nil {
			return p.life.Err()
		}
		// the store has dropped some of the changes: the old value is lost, the current one is not
		now, v, err := p.snapshot(p.life, key)
		if err == nil {
			err = p.keep(value, v)
		}
		if err == nil && !bytes.Equal(value, v) {
			err = p.tellOf(sent, value, v, v == nil)
		}
		if err != nil {
			return err
		}
		rev, value = now, v
	}
}

// tellOf sends one change to the client.
func (p *peer) tellOf(sent string, old, now []byte, deleted bool) error {
	rep := tcpstore.Reply{N: tcpstore.Updated, Key: sent, Old: old, Value: now}
	switch {
	case deleted:
		rep.N = tcpstore.Deleted
	case old == nil:
		rep.N = tcpstore.Created
	}
	p.send(tcpstore.OpWatchKey, &rep)
	return p.room()
}
