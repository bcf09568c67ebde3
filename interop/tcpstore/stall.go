package tcpstore

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/transport"
)

// stallTime is how long a client may read none of its replies, or send nothing more of a large
// message.
const stallTime = 10 * time.Second

var errStalled = errors.New("for 10 seconds it has read nothing of what it asked for, or sent no more of a message that it has begun")

// stall ends the connection of a client that makes the server hold memory, and makes no progress.
type stall struct {
	held  atomic.Int64  // bytes of an incomplete large message
	came  atomic.Uint64 // number of times that more of it arrived
	armed atomic.Bool   // timer calls look
	timer atomic.Pointer[time.Timer]
}

// noteHeld notes the size of the incomplete message, before more of it is read.
func (p *peer) noteHeld() {
	unread, _ := p.in.Unread()
	held := int64(len(unread))
	if held <= largeMessage {
		held = 0
	}
	p.stall.held.Store(held)
	if held > 0 {
		p.stall.came.Add(1)
		p.watch()
	}
}

// flush sends what is queued, as far as the client accepts it. If more waits for the client then than
// is left of the server's buffers, the connection ends, so that something is left for clients that
// read.
func (p *peer) flush() {
	p.out.Flush()
	switch waiting, _ := p.out.Backlog(); {
	case waiting == 0:
	case p.out.Budget.Fits(waiting):
		p.watch()
	default:
		p.fail(transport.ErrBuffers)
	}
}

// room sends what is queued, and waits until little of it waits for the client. The reader calls it.
func (p *peer) room() error {
	p.flush()
	for p.out.Blocked(piece) { // also after a token that was left
		select {
		case <-p.out.drained:
		case <-p.life.Done():
			return p.life.Err()
		}
	}
	return p.out.Err()
}

// waitForSpace calls room if much waits for the client. It may block.
func (p *peer) waitForSpace() error {
	waiting, _ := p.out.Backlog()
	switch {
	case waiting <= piece:
		return nil
	case p.quick:
		return errLong
	}
	return p.room()
}

// watch checks every stallTime whether the client has made progress.
func (p *peer) watch() {
	if p.life.Err() != nil || p.stall.armed.Swap(true) {
		return
	}
	waiting, taken := p.out.Backlog()
	had := p.stall.came.Load()
	p.stall.timer.Store(time.AfterFunc(stallTime, func() { p.look(waiting > 0, taken, had) }))
}

// look ends the connection if nothing has changed since watch: if replies waited for the client, which had
// read so many bytes, or a message was incomplete, of which had parts had arrived.
func (p *peer) look(behind bool, taken, had uint64) {
	p.stall.armed.Store(false)
	waiting, now := p.out.Backlog()
	held := p.stall.held.Load() > 0
	silent := held && p.stall.came.Load() == had
	deaf := waiting > 0 && behind && now == taken
	switch {
	case silent || deaf:
		p.fail(errStalled)
	case waiting > 0 || held:
		p.watch()
	}
}

// stop is called when the connection has ended.
func (s *stall) stop() {
	if t := s.timer.Load(); t != nil {
		t.Stop()
	}
}
