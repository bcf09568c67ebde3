package tcpstore

import "github.com/muster-pg/muster/internal/transport"

const (
	// piece is the number of bytes of replies that may wait for a client before its next requests
	// are delayed.
	piece = 1 << 20
	// mostWaiting is the maximum number of bytes that may wait for a client at any time.
	mostWaiting = 1 << 30
)

// outbox sends to a client.
type outbox struct {
	*transport.Outbox
	drained chan struct{} // gets a token when all is written, or the connection has ended
}

// open sets the pipe that the outbox writes to.
func (o *outbox) open(pipe transport.Pipe, buffers *transport.Budget) {
	o.Outbox, o.drained = transport.NewOutbox(pipe, mostWaiting), make(chan struct{}, 1)
	o.Budget = buffers
	o.Drained = func() {
		select {
		case o.drained <- struct{}{}:
		default:
		}
	}
}
