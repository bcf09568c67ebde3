package torchstore

import (
	"context"
	"sync"

	"github.com/muster-pg/muster/internal/transport"
)

const (
	// piece is how much of what a client has asked for may wait for it before its requests do.
	piece = 1 << 20
	// mostWaiting is how much may do so in any case.
	mostWaiting = 1 << 30
)

// outbox is the way back to a client. Nobody waits for the client but in room.
type outbox struct {
	*transport.Outbox

	mu      sync.Mutex    // protects the fields below
	drained chan struct{} // closed when all is written; nil if nobody waits for it
}

// open makes pipe the way.
func (o *outbox) open(pipe transport.Pipe) {
	o.Outbox = transport.NewOutbox(pipe, mostWaiting)
	o.Drained = func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.drained != nil {
			close(o.drained)
			o.drained = nil
		}
	}
}

// room writes what there is, and waits until no more than most bytes wait for the client.
func (o *outbox) room(ctx context.Context, most int) error {
	o.Flush()
	for {
		o.mu.Lock()
		if o.drained == nil {
			o.drained = make(chan struct{})
		}
		drained := o.drained
		o.mu.Unlock()
		if !o.Blocked(most) {
			return o.Err()
		}
		select {
		case <-drained:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
