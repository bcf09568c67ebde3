package torchstore

import (
	"net"
	"sync"
	"time"
)

const (
	// piece is how much of an answer is written at once.
	piece = 1 << 20
	// stall is how long a peer may take for a piece, and half as long again if a deadline is used again.
	stall = 10 * time.Second
)

// outbox is the way back to a client.
type outbox struct {
	conn net.Conn

	mu  sync.Mutex // protects the fields below, and is held while they are written: who waits for it is of the same connection
	b   []byte
	err error
	set time.Time // when the deadline was
}

// add appends to what is to be sent, and sends it if it is a lot.
func (o *outbox) add(appendTo func(b []byte) []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b = appendTo(o.b)
	if len(o.b) < piece {
		return o.err
	}
	return o.send()
}

// flush sends what there is.
func (o *outbox) flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.send()
}

// send is called with mu.
func (o *outbox) send() error {
	for b := o.b; len(b) > 0 && o.err == nil; {
		if now := time.Now(); now.Sub(o.set) > stall/2 {
			o.set = now
			_ = o.conn.SetWriteDeadline(now.Add(stall * 3 / 2))
		}
		n, err := o.conn.Write(b[:min(len(b), piece)])
		b, o.err = b[n:], err
	}
	if o.b = o.b[:0]; cap(o.b) > mostRoom {
		o.b = nil
	}
	return o.err
}
