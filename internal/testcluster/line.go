package testcluster

import (
	"context"
	"sync"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Line is a client's connection to a store in the same process that can be frozen: requests and
// replies in progress wait until it is thawed.
type Line struct {
	store.Engine

	mu     sync.Mutex
	frozen chan struct{} // closed when it is thawed; nil if it is not frozen
	at     wire.Op       // the operation that freezes it, if set
}

// NewLine returns a Line to e, which is not frozen.
func NewLine(e store.Engine) *Line { return &Line{Engine: e} }

// Freeze freezes the line until Thaw.
func (l *Line) Freeze() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.freeze()
}

// freeze does nothing if the line is frozen. The caller holds mu.
func (l *Line) freeze() {
	if l.frozen == nil {
		l.frozen = make(chan struct{})
	}
}

// FreezeAt freezes the line when the next request with op is sent. That request is in progress then.
func (l *Line) FreezeAt(op wire.Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = op
}

// Thaw resumes the requests and replies.
func (l *Line) Thaw() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = 0
	if l.frozen != nil {
		close(l.frozen)
		l.frozen = nil
	}
}

// Do is Engine.Do, when the line is not frozen.
func (l *Line) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if err := l.pass(ctx, req.Op); err != nil {
		return err
	}
	if err := l.Engine.Do(ctx, req, rep); err != nil {
		return err
	}
	return l.pass(ctx, 0)
}

func (l *Line) pass(ctx context.Context, op wire.Op) error {
	l.mu.Lock()
	if op != 0 && op == l.at {
		l.at = 0
		l.freeze()
	}
	frozen := l.frozen
	l.mu.Unlock()
	if frozen == nil {
		return nil
	}
	select {
	case <-frozen:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
