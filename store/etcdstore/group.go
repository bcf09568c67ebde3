package etcdstore

import (
	"context"

	"github.com/muster-pg/muster/wire"
)

type (
	group struct{}
	seat  struct{}
)

func (s *seat) leave(context.Context) error { return nil }

func (e *Engine) join(ctx context.Context, req *wire.Request, rep *wire.Reply) error    { return nil }
func (e *Engine) leave(ctx context.Context, req *wire.Request, rep *wire.Reply) error   { return nil }
func (e *Engine) follow(ctx context.Context, req *wire.Request, rep *wire.Reply) error  { return nil }
func (e *Engine) collect(ctx context.Context, req *wire.Request, rep *wire.Reply) error { return nil }
func (e *Engine) send(ctx context.Context, req *wire.Request, rep *wire.Reply) error    { return nil }
func (e *Engine) room(ctx context.Context, req *wire.Request, rep *wire.Reply) error    { return nil }
func (e *Engine) recv(ctx context.Context, req *wire.Request, rep *wire.Reply) error    { return nil }
func (e *Engine) expire(ctx context.Context, req *wire.Request, rep *wire.Reply) error  { return nil }
