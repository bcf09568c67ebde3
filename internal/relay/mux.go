// Package relay carries the connections of many peers to a store over one connection: the relay's
// multiplexer, with the votes that it holds for others of the same record, and the replies that the
// store tells it to keep. The store's end of the stream, which works with its sessions, is in package
// store.
package relay

import (
	"bytes"
	"math"
	"net"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// queueLimit is how many bytes may wait for the store before peers have to wait.
const queueLimit = 4 << 20

// Peer is the connection of one peer. The multiplexer calls its methods without a lock, but for
// Vouches and Resume.
type Peer interface {
	// Deliver passes on a frame of the store. Other peers may get the same body.
	Deliver(h wire.Header, body *transport.Body)
	// Welcome passes on the store's answer to the peer's hello, and ends a connection that it refuses.
	Welcome(rep *wire.Reply)
	// End ends the connection, after the goodbye of the store if that is not nil.
	End(goodbye *wire.Reply)
	// Vouches reports whether the store has probed the peer, which is alive without an answer.
	Vouches() bool
	// Resume reads again, or checks again whether it may.
	Resume()
}

// Mux is the relay's end of the connection to a store, without its reader: that calls Handle for each
// frame, and End. It owns a timer, which End stops.
type Mux struct {
	out   *transport.Outbox
	abort func() // closes the connection to the store

	// Owned by the caller of Handle:
	calls []wire.RelayCall
	kept  bodies

	mu         sync.Mutex // protects the fields below; frames are queued under it, so that those of a branch stay in order
	branches   map[uint32]*Branch
	lastNumber uint32 // of a branch; each is used once
	ended      bool
	pending    map[recordID]*heldVotes
	members    map[uint64]int   // number of members here, by generation
	alive      []wire.RelayCall // branches that have answered a probe of the store, to be forwarded
	timer      *time.Timer
	timerSet   bool

	waitMu  sync.Mutex // protects waiting; the outbox calls resume with its own lock held
	waiting map[*Branch]struct{}
}

// Branch is the part of a peer in the stream to the store.
type Branch struct {
	mux    *Mux
	peer   Peer
	number uint32

	// The mux's mu protects the fields below.
	votes   *heldVotes          // held votes that include votes of this branch
	members map[member]struct{} // that have voted here
}

// NewMux returns the multiplexer of a connection that out writes to, and that abort closes.
func NewMux(out *transport.Outbox, abort func()) *Mux {
	m := &Mux{
		out: out, abort: abort, branches: map[uint32]*Branch{}, pending: map[recordID]*heldVotes{}, members: map[uint64]int{},
		waiting: map[*Branch]struct{}{}, kept: bodies{},
	}
	out.Drained = m.resume
	m.timer = time.AfterFunc(time.Hour, m.flushHeld)
	m.timer.Stop()
	return m
}

// Blocked reports whether too much waits for the store: the branches that have called Wait are
// resumed later.
func (m *Mux) Blocked() bool { return m.out.Blocked(queueLimit) }

// Wait registers b to be resumed when the connection to the store has drained.
func (b *Branch) Wait() {
	b.mux.waitMu.Lock()
	defer b.mux.waitMu.Unlock()
	b.mux.waiting[b] = struct{}{}
}

// resume resumes the branches that wait.
func (m *Mux) resume() {
	m.waitMu.Lock()
	waiting := m.waiting
	m.waiting = map[*Branch]struct{}{}
	m.waitMu.Unlock()
	for b := range waiting {
		b.peer.Resume()
	}
}

// Open gives p a branch, and forwards its hello.
func (m *Mux) Open(p Peer, hello *wire.Request) (*Branch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return nil, net.ErrClosed
	}
	if m.lastNumber == math.MaxUint32 { // a number is never used again
		m.abort()
		return nil, net.ErrClosed
	}
	m.lastNumber++
	b := &Branch{mux: m, peer: p, number: m.lastNumber, members: map[member]struct{}{}}
	m.branches[b.number] = b
	m.out.Append(func(to []byte) []byte { return wire.AppendRelayRequest(to, b.number, hello) })
	return b, nil
}

// Forward forwards a frame, after the held votes of the same branch.
func (b *Branch) Forward(h wire.Header, body []byte) {
	m := b.mux
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sendVotes(b.votes)
	m.out.Append(func(to []byte) []byte {
		to = wire.AppendRelay(to, len(body), wire.RelayCall{Conn: b.number, ID: h.ID})
		return append(wire.AppendHeader(to, h), body...)
	})
}

// Alive records that the peer has answered a probe of the store. That probes all peers that others
// wait for at once; their answers are sent together.
func (b *Branch) Alive() {
	b.mux.mu.Lock()
	defer b.mux.mu.Unlock()
	b.mux.addAlive(b)
	b.mux.startTimer()
}

// Vouch reports to the store which peers that it has probed are alive although none of their frames
// could be forwarded.
func (m *Mux) Vouch() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.branches {
		if b.peer.Vouches() {
			m.addAlive(b)
		}
	}
	m.sendAlive()
}

// addAlive adds a branch whose answer to a probe is to be forwarded. The caller holds mu.
func (m *Mux) addAlive(b *Branch) {
	m.alive = append(m.alive, wire.RelayCall{Conn: b.number})
	if len(m.alive) == wire.MaxVotes {
		m.sendAlive()
	}
}

// sendAlive forwards the answers to probes. The caller holds mu.
func (m *Mux) sendAlive() {
	if len(m.alive) > 0 {
		m.out.Append(func(to []byte) []byte {
			return wire.AppendRequest(wire.AppendRelay(to, 0, m.alive...), &wire.Request{Op: wire.OpProbe})
		})
		m.alive = m.alive[:0]
	}
}

// startTimer makes sure that what is held is sent after voteDelay. The caller holds mu.
func (m *Mux) startTimer() {
	if !m.timerSet {
		m.timerSet = true
		m.timer.Reset(voteDelay)
	}
}

// flushHeld sends all that is held, when the timer fires.
func (m *Mux) flushHeld() {
	m.mu.Lock()
	m.timerSet = false
	for _, v := range m.pending {
		m.sendVotes(v)
	}
	m.sendAlive()
	m.mu.Unlock()
	m.out.Flush()
}

// End handles the end of the peer's connection. It reports that to the store, unless the store has
// ended it.
func (b *Branch) End() {
	m := b.mux
	m.mu.Lock()
	if here := m.branches[b.number] == b; here {
		m.remove(b)
		m.out.Append(func(to []byte) []byte { return wire.AppendRelayRequest(to, b.number, &wire.Request{Op: wire.OpLost}) })
	}
	m.mu.Unlock()
	m.out.Flush()
}

// remove removes b. Its votes still count. The caller holds mu.
func (m *Mux) remove(b *Branch) {
	m.sendVotes(b.votes)
	delete(m.branches, b.number)
	for s := range b.members {
		b.removeMember(s)
	}
	m.waitMu.Lock()
	delete(m.waiting, b)
	m.waitMu.Unlock()
}

// Handle delivers an OpRelay of the store to its peers. Unless body is owned, it is used only during
// the call.
func (m *Mux) Handle(h wire.Header, body []byte, owned bool) (err error) {
	var of wire.Header
	if m.calls, of, body, err = wire.ParseRelay(h, body, m.calls, math.MaxInt, wire.MaxReply); err != nil {
		return err
	}
	if !owned && len(body) >= transport.ShareFrom {
		body = bytes.Clone(body)
	}
	to := m.peersOf(of.Op == wire.OpLost)
	switch of.Op {
	case wire.OpHello:
		var rep wire.Reply
		if err := rep.Parse(of, body); err != nil {
			return err
		}
		each(to, func(_ int, p Peer) { p.Welcome(&rep) })
		return nil
	case wire.OpLost:
		each(to, func(_ int, p Peer) { p.End(nil) })
		return nil
	}
	shared, err := m.kept.use(h, of, body)
	if err != nil {
		return err
	}
	transport.InParallel(len(to), func(from, end int) {
		each(to[from:end], func(i int, p Peer) {
			h := of
			h.ID = m.calls[from+i].ID
			p.Deliver(h, shared)
		})
	})
	return nil
}

// each calls do for the peers of branches that have not ended.
func each(to []Peer, do func(i int, p Peer)) {
	for i, p := range to {
		if p != nil {
			do(i, p)
		}
	}
}

// peersOf returns the peers of m.calls; nil for one that has ended. If the store has ended them, they
// are removed.
func (m *Mux) peersOf(ended bool) []Peer {
	m.mu.Lock()
	defer m.mu.Unlock()
	to := make([]Peer, len(m.calls))
	for i, call := range m.calls {
		if b := m.branches[call.Conn]; b != nil {
			if to[i] = b.peer; ended {
				m.remove(b)
			}
		}
	}
	return to
}

// End ends the connections of all peers, after the goodbye of the store if that is not nil.
func (m *Mux) End(goodbye *wire.Reply) {
	m.mu.Lock()
	m.ended = true
	m.timer.Stop()
	all := m.branches
	m.branches = map[uint32]*Branch{}
	m.mu.Unlock()
	for _, b := range all {
		b.peer.End(goodbye)
		b.peer.Resume()
	}
}
