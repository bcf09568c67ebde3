package store

import (
	"context"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// Prefix returns the part of s below prefix: its keys, and groups by their names. Closing it ends
// its own calls, and leaves s open. Backup, which covers the whole store, is ErrUnsupported.
func Prefix(s *Store, prefix string) *Store { return New(newPrefixed(s.engine, prefix)) }

// prefixed is an engine that adds prefix to the names in requests, and removes it from those in
// replies.
type prefixed struct {
	engine Engine
	owns   bool // Close closes engine
	prefix string
	ctx    context.Context // until Close
	cancel context.CancelFunc
}

func newPrefixed(e Engine, prefix string) *prefixed {
	p := &prefixed{engine: e, prefix: prefix}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Do implements Engine.
func (p *prefixed) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	own := *req
	switch req.Op {
	case wire.OpHello: // its key is the name of the caller
	case wire.OpBackup:
		return &Error{
			Op: "backup", Key: p.prefix, Code: wire.CodeUnsupported, Err: ErrUnsupported,
			Detail: "a backup has the whole store, and not only what is below a prefix: make it of the store without the prefix",
		}
	case wire.OpJoin:
		own.Group.Group = p.prefix + req.Group.Group
	default:
		if req.Op.HasKey() {
			own.Key = p.prefix + req.Key
		}
		if req.Op.HasKeys() {
			own.Keys = make([]string, len(req.Keys))
			for i, k := range req.Keys {
				own.Keys[i] = p.prefix + k
			}
		}
	}
	if err := validate(&own); err != nil {
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
	if p.ctx.Err() != nil {
		return ErrClosed
	}
	if !req.Op.Waits() {
		return p.engine.Do(ctx, req, rep)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	err := p.engine.Do(ctx, req, rep)
	if p.ctx.Err() != nil && (err != nil || rep.Code == wire.CodeCancelled) {
		return ErrClosed
	}
	return err
}

// Close implements Engine.
func (p *prefixed) Close() error {
	p.cancel()
	if p.owns {
		return p.engine.Close()
	}
	return nil
}
