package store

import (
	"context"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// Prefix is the part of s below prefix: keys, and groups by their names. Its Close ends its own
// calls, and leaves s open. A Backup, which has the whole store, is ErrUnsupported.
func Prefix(s *Store, prefix string) *Store { return New(newPrefixed(s.engine, prefix)) }

// prefixed puts prefix in front of names on their way in, and takes it off on their way out.
type prefixed struct {
	engine Engine
	prefix string
	open   context.Context // until Close
	close  context.CancelFunc
}

func newPrefixed(e Engine, prefix string) *prefixed {
	p := &prefixed{engine: e, prefix: prefix}
	p.open, p.close = context.WithCancel(context.Background())
	return p
}

// Do implements Engine.
func (p *prefixed) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	own := *req
	switch req.Op {
	case wire.OpWait, wire.OpTake, wire.OpDelete, wire.OpList:
		own.Keys = make([]string, len(req.Keys))
		for i, k := range req.Keys {
			own.Keys[i] = p.prefix + k
		}
		own.Key = p.prefix + req.Key
	case wire.OpHello, wire.OpGoodbye, wire.OpCancel, wire.OpPing, wire.OpLost, wire.OpGrant, wire.OpKeepAlive, wire.OpRevoke, wire.OpSkip:
	case wire.OpBackup:
		return &Error{
			Op: "backup", Key: p.prefix, Code: wire.CodeUnsupported, Err: ErrUnsupported,
			Detail: "a backup has the whole store, and not only what is below a prefix: make it of the store without the prefix",
		}
	case wire.OpJoin:
		own.Group.Group = p.prefix + req.Group.Group
	default:
		own.Key = p.prefix + req.Key
	}
	if err := check(&own); err != nil {
		return err
	}
	err := p.do(ctx, &own, rep)
	for i, k := range rep.Keys {
		rep.Keys[i] = strings.TrimPrefix(k, p.prefix)
	}
	return err
}

// do is the engine's Do, until Close.
func (p *prefixed) do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if p.open.Err() != nil {
		return ErrClosed
	}
	if !req.Op.Waits() {
		return p.engine.Do(ctx, req, rep)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.open, cancel)()
	err := p.engine.Do(ctx, req, rep)
	if p.open.Err() != nil && (err != nil || rep.Code == wire.CodeCancelled) {
		return ErrClosed
	}
	return err
}

// Close implements Engine. The store below is not its own.
func (p *prefixed) Close() error {
	p.close()
	return nil
}
