package store

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// passage is the connection of a peer of a relay, and its branch of the connection to the store.
type passage struct {
	*conn
	up     *uplink
	number uint32
	sock   *transport.Sock // nil: a goroutine reads
	room   chan struct{}   // gets a token when reading may go on; of a goroutine

	wanted atomic.Bool // the store has asked whether it is there, and has heard nothing of it since

	// The uplink's mu protects these:
	held  *ballot // that has votes of it
	seats map[seat]struct{}
}

// adopted implements reader.
func (p *passage) adopted(s *transport.Sock) (transport.Reader, error) {
	if err := p.begin(s); err != nil {
		return nil, err
	}
	p.sock = s
	p.out.Drained = func() { s.Pause(false) }
	err := p.enter()
	if err == nil {
		err = p.passOn()
	}
	if err != nil {
		p.up.leave(p)
		return nil, err
	}
	p.in.compact()
	p.Flush()
	return p, nil
}

// Readable implements transport.Reader.
func (p *passage) Readable(buf []byte) error {
	if p.pauses() { // before it is read: each of many peers would bring one more frame
		return nil
	}
	n, err := p.sock.Read(p.in.buffer(buf))
	if err != nil {
		return err
	}
	p.got(n)
	err = p.passOn()
	p.in.compact()
	p.pauses()
	return err
}

// pauses stops reading while the peer does not read, or the store does not. Either may have done so already: then there is no pause to end.
func (p *passage) pauses() bool {
	if !p.behind() {
		return false
	}
	p.sock.Pause(true)
	if p.up.wait(p); p.behind() {
		return true
	}
	p.sock.Pause(false)
	return false
}

// behind reports whether too much waits, for the peer or for the store: goOn is called later.
func (p *passage) behind() bool {
	mine, theirs := p.out.Blocked(unreadPause), p.up.crowded()
	return mine || theirs
}

// Flush implements transport.Reader: the first of those that have been read writes what all of them said.
func (p *passage) Flush() { p.up.line.out.Flush() }

// Ended implements transport.Reader.
func (p *passage) Ended(err error) {
	p.up.leave(p)
	p.server.ended(p.conn, p.cause(err))
}

// cause is why the connection ended, if it was the outbox that ended it.
func (p *passage) cause(err error) error {
	if cause := p.out.Err(); cause != nil {
		return cause
	}
	return err
}

// run implements reader.
func (p *passage) run(buf []byte) error {
	p.room = make(chan struct{}, 1)
	p.out.Drained = p.goOn
	err := p.enter()
	if err == nil {
		err = p.readOn(buf)
	}
	p.up.leave(p)
	return err
}

func (p *passage) readOn(buf []byte) error {
	for {
		if err := p.passOn(); err != nil {
			return err
		}
		p.Flush()
		for p.behind() {
			if p.up.wait(p); p.behind() {
				<-p.room
			}
		}
		n, err := p.nc.Read(p.in.buffer(buf))
		if p.got(n); n == 0 && err != nil {
			return err
		}
	}
}

// goOn lets the reading go on, or look again.
func (p *passage) goOn() {
	if p.sock != nil {
		p.sock.Pause(false)
		return
	}
	select {
	case p.room <- struct{}{}:
	default:
	}
}

// enter says the peer's hello on a branch. What it may do here, the store is told.
func (p *passage) enter() error {
	p.hello.Old = p.rights.encode()
	return p.up.open(p)
}

// passOn passes on the frames that are whole.
func (p *passage) passOn() error {
	for {
		h, body, _, ok, err := p.in.next()
		if err != nil || !ok {
			return err
		}
		switch h.Op {
		case wire.OpHello, wire.OpLost, wire.OpRelay, wire.OpVotes:
			return fmt.Errorf("%s: %w", h.Op, wire.ErrUnknownOp)
		}
		if h.Op == wire.OpProbe {
			p.up.answers(p)
			continue
		}
		if h.Op == wire.OpCollect {
			if err := p.req.Parse(h, body); err != nil {
				return fmt.Errorf("%s: %w", h.Op, err)
			}
			if p.up.vote(p) {
				continue
			}
		}
		if h.Op == wire.OpLeave && p.req.Parse(h, body) == nil {
			p.up.forget(p, seatOf(&p.req.Group))
		}
		p.up.pass(p, h, body)
	}
}

// welcomed passes the store's welcome on, with the proof that this side knows the peer's secret; or that there is none.
func (p *passage) welcomed(rep *wire.Reply) {
	id := p.hello.ID
	if rep.Code != wire.CodeOK {
		id = 0
	}
	rep.Values = p.proof
	p.out.Append(func(b []byte) []byte { return wire.AppendReply(b, wire.OpHello, id, rep) })
	p.out.Flush()
	if rep.Code != wire.CodeOK {
		p.closeLater()
	}
}

// closeLater closes the connection when the peer has had the time to read what was written last, and to close it itself.
func (p *passage) closeLater() { time.AfterFunc(refusalTimeout, p.close) }

// heardHere reports whether the store has asked for the peer, which has been heard here and not there: it is in the middle of a long frame, or of
// reading one.
func (p *passage) heardHere() bool {
	reads, _ := p.reads()
	if !p.wanted.Load() || !p.heard.Swap(false) && !reads {
		return false
	}
	p.wanted.Store(false)
	return true
}

// tell gives the peer an answer.
func (p *passage) tell(h wire.Header, id uint64, body *transport.Body) {
	h.ID = id
	switch h.Op {
	case wire.OpCollect, wire.OpJoin: // others may have the same
		p.out.AppendShared(0, wire.AppendHeader(make([]byte, 0, wire.HeaderLen), h), body)
	default: // it counts against InFlight
		p.out.Append(func(b []byte) []byte { return append(wire.AppendHeader(b, h), body.Bytes...) })
	}
	if h.Op == wire.OpProbe {
		p.wanted.Store(true)
	}
	p.out.Flush()
}

// said notes that the store hears what the peer has said.
func (p *passage) said() {
	p.heard.Store(false)
	p.wanted.Store(false)
}
