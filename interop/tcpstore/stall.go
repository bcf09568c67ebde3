package tcpstore

import (
	"errors"
	"sync"
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
	held atomic.Int64  // bytes of an incomplete large message
	came atomic.Uint64 // number of times that more of it arrived

	mu     sync.Mutex // protects the fields below
	timer  *time.Timer
	armed  bool
	over   bool
	behind bool   // when the timer was set, replies waited for the client,
	taken  uint64 // which had read so many bytes,
	had    uint64 // and came had this value
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

// room sends what is queued, and waits until little of it waits for the client.
func (p *peer) room() error {
	p.flush()
	return p.out.room(p.life, piece)
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
	waiting, taken := p.out.Backlog()
	s := &p.stall
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.armed || s.over {
		return
	}
	s.armed, s.behind, s.taken, s.had = true, waiting > 0, taken, s.came.Load()
	if s.timer == nil {
		s.timer = time.AfterFunc(stallTime, p.look)
	} else {
		s.timer.Reset(stallTime)
	}
}

func (p *peer) look() {
	waiting, taken := p.out.Backlog()
	s := &p.stall
	s.mu.Lock()
	s.armed = false
	silent := s.held.Load() > 0 && s.came.Load() == s.had
	deaf := waiting > 0 && s.behind && taken == s.taken
	s.mu.Unlock()
	switch {
	case silent || deaf:
		p.fail(errStalled)
	case waiting > 0 || s.held.Load() > 0:
		p.watch()
	}
}

func (s *stall) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if s.timer != nil {
		s.timer.Stop()
	}
}
