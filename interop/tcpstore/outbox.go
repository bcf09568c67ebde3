package tcpstore

import (
	"context"
	"sync"

	"github.com/muster-pg/muster/internal/transport"
)

const (
	// piece is the number of bytes of replies that may wait for a client before its next requests
	// are delayed.
	piece = 1 << 20
	// mostWaiting is the maximum number of bytes that may wait for a client at any time.
	mostWaiting = 1 << 30
)

// outbox sends to a client. Only room blocks until the client reads.
type outbox struct {
	*transport.Outbox

	mu      sync.Mutex    // protects the fields below
	drained chan struct{} // closed when all is written; nil if no caller waits
}

// open sets the pipe that the outbox writes to.
func (o *outbox) open(pipe transport.Pipe, buffers *transport.Budget) {
	o.Outbox = transport.NewOutbox(pipe, mostWaiting)
	o.Budget = buffers
	o.Drained = func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.drained != nil {
			close(o.drained)
			o.drained = nil
		}
	}
}

// room writes what is queued, and waits until at most most bytes wait for the client.
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
