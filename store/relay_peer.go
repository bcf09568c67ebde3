package store

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/internal/relay"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// relayPeer is the connection of a relay's peer. It implements relay.Peer.
type relayPeer struct {
	*conn
	upstream *upstream
	branch   *relay.Branch // its part of the stream to the store

	probed atomic.Bool // the store has probed the peer, and nothing was forwarded since
}

// adopted opens the peer's connection at the store, and forwards what is read from s.
func (p *relayPeer) adopted(s transport.Socket) (transport.Reader, error) {
	if err := p.useSocket(s); err != nil {
		return nil, err
	}
	p.out.Drained = func() { s.Pause(false) }
	if err := p.sendHello(); err != nil {
		return nil, err
	}
	if err := p.forwardFrames(); err != nil {
		p.branch.End()
		return nil, err
	}
	p.in.Compact()
	p.Flush()
	return p, nil
}

// Buffer implements transport.Reader.
func (p *relayPeer) Buffer(buf []byte) []byte {
	if p.pauseIfBlocked() { // before reading: each of many peers would add another frame
		return nil
	}
	return p.in.Buffer(buf)
}

// Received implements transport.Reader.
func (p *relayPeer) Received(n int) error {
	p.receivedBytes(n)
	err := p.forwardFrames()
	p.in.Compact()
	p.pauseIfBlocked()
	return err
}

// pauseIfBlocked stops reading while the peer does not read its replies, or the store its requests.
// If that is over already, no callback would end the pause, and it is ended here.
func (p *relayPeer) pauseIfBlocked() bool {
	if !p.isBlocked() {
		return false
	}
	p.sock.Pause(true)
	if p.branch.Wait(); p.isBlocked() {
		return true
	}
	p.sock.Pause(false)
	return false
}

// isBlocked reports whether too much waits, for the peer or for the store: Resume is called
// later.
func (p *relayPeer) isBlocked() bool {
	mine, theirs := p.out.Blocked(maxUnread), p.upstream.mux.Blocked()
	return mine || theirs
}

// Flush implements transport.Reader. The first peer of those that were read writes the frames of
// all.
func (p *relayPeer) Flush() { p.upstream.conn.out.Flush() }

// Ended implements transport.Reader.
func (p *relayPeer) Ended(err error) {
	p.branch.End()
	p.server.ended(p.conn, err)
}

// Resume implements relay.Peer.
func (p *relayPeer) Resume() { p.sock.Pause(false) }

// sendHello forwards the peer's hello, with the rights that it has here. The store ends the
// connection of a relay whose hello it refuses to parse.
func (p *relayPeer) sendHello() (err error) {
	p.hello.Token = p.rights.encode()
	if n := len(wire.AppendRequest(nil, &p.hello)) - wire.HeaderLen; n > handshake.MaxFrame || len(p.rights) > maxRights {
		return fmt.Errorf("hello: %w: it has %d bytes and %d rights, the limits are %d and %d", wire.ErrTooLarge, n, len(p.rights), handshake.MaxFrame, maxRights)
	}
	p.branch, err = p.upstream.mux.Open(p, &p.hello)
	return err
}

// forwardFrames forwards the complete frames.
func (p *relayPeer) forwardFrames() error {
	for {
		h, body, _, ok, err := p.in.Next()
		if err != nil || !ok {
			return err
		}
		switch h.Op {
		case wire.OpHello, wire.OpLost, wire.OpStalled, wire.OpRelay, wire.OpVotes:
			return fmt.Errorf("%s: %w", h.Op, wire.ErrUnknownOp)
		}
		if h.Op == wire.OpProbe {
			p.clearProbe()
			p.branch.Alive()
			continue
		}
		if h.Op == wire.OpCollect {
			if err := p.req.Parse(h, body); err != nil {
				return fmt.Errorf("%s: %w", h.Op, err)
			}
			if p.clearProbe(); p.branch.Vote(&p.req) {
				continue
			}
		}
		if h.Op == wire.OpLeave && p.req.Parse(h, body) == nil {
			p.branch.Left(&p.req.Group)
		}
		p.clearProbe()
		p.branch.Forward(h, body)
	}
}

// Welcome implements relay.Peer: it forwards the store's welcome, with the proof that this side knows the peer's secret, or
// the store's refusal.
func (p *relayPeer) Welcome(rep *wire.Reply) {
	id := p.hello.ID
	if rep.Code != wire.CodeOK {
		id = 0
	}
	rep.Values = p.proof
	p.out.Append(func(b []byte) []byte { return wire.AppendReply(b, wire.OpHello, id, rep) })
	p.out.Flush()
	if rep.Code != wire.CodeOK {
		time.AfterFunc(handshake.RefusalTimeout, p.close)
	}
}

// End implements relay.Peer.
func (p *relayPeer) End(goodbye *wire.Reply) {
	if goodbye == nil {
		p.close()
		return
	}
	p.fail(goodbye)
}

// Vouches implements relay.Peer: a peer is alive without an answer if it is sending a long frame, or reading one, or its process uses CPU time.
func (p *relayPeer) Vouches() bool {
	reads, _ := p.readProgress()
	if !p.probed.Load() {
		p.witness.forget()
		return false
	}
	if runs := p.witness.ran(p.conn); !p.received.Swap(false) && !reads && !runs {
		return false
	}
	p.probed.Store(false)
	return true
}

// Deliver implements relay.Peer.
func (p *relayPeer) Deliver(h wire.Header, body *transport.Body) {
	switch h.Op {
	case wire.OpCollect, wire.OpJoin: // other peers may get the same one
		p.out.AppendShared(0, wire.AppendHeader(make([]byte, 0, wire.HeaderLen), h), body)
	default: // it counts against InFlight
		p.out.Append(func(b []byte) []byte { return append(wire.AppendHeader(b, h), body.Bytes...) })
	}
	if h.Op == wire.OpProbe {
		p.probed.Store(true)
	}
	p.out.Flush()
}

// clearProbe records that a frame of the peer is forwarded, which also answers a probe.
func (p *relayPeer) clearProbe() {
	p.received.Store(false)
	p.probed.Store(false)
}
