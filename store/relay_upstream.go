package store

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

const (
	// voteDelay is how long a vote is held for others of the same record.
	voteDelay = 2 * time.Millisecond
	// largeVote is the size from which on a vote is not held, and maxHeldBytes bounds the held
	// votes of a record.
	largeVote    = 64 << 10
	maxHeldBytes = 1 << 20
	// upstreamQueue is how many bytes may wait for the store before peers have to wait.
	upstreamQueue = 4 << 20
	// maxPending bounds the records for which votes are counted.
	maxPending = 1024
)

// upstream is a relay's connection to the store.
type upstream struct {
	relay    *Relay
	conn     *clientConn
	received atomic.Bool

	liveness liveness // of the store; guarded by the relay's mu

	// Owned by read:
	calls []wire.RelayCall
	kept  map[uint32]*transport.Body // bodies that the store may refer to, by number

	mu         sync.Mutex // protects the fields below; frames are queued under it, so that those of a peer stay in order
	peers      map[uint32]*relayPeer
	lastNumber uint32 // of a relayed connection; each is used once
	ended      bool
	pending    map[recordID]*heldVotes
	members    map[uint64]int   // number of members here, by generation
	alive      []wire.RelayCall // peers that have answered a probe of the store, to be forwarded
	timer      *time.Timer
	timerSet   bool

	waitMu  sync.Mutex // protects waiting; the outbox calls resumePeers with its own lock held
	waiting map[*relayPeer]struct{}
}

// member is a rank of a generation.
type member struct {
	generation uint64
	rank       int
}

func memberOf(c *wire.Contribution) member { return member{c.Generation, c.Rank} }

// recordID identifies a record, of which a relay sees some votes.
type recordID struct {
	generation, seq uint64
	channel         string
}

func recordIDOf(c *wire.Contribution) recordID { return recordID{c.Generation, c.Seq, c.Channel} }

// heldVotes are the held votes for one record, all with the same verb, type, root, label and
// reduction.
type heldVotes struct {
	vote  wire.Contribution
	votes []byte
	n     int
	sent  int          // votes that were sent to the store
	peers []*relayPeer // peers with held votes
}

func newUpstream(r *Relay, l *clientConn) *upstream {
	u := &upstream{
		relay: r, conn: l, peers: map[uint32]*relayPeer{}, pending: map[recordID]*heldVotes{}, members: map[uint64]int{},
		waiting: map[*relayPeer]struct{}{}, kept: map[uint32]*transport.Body{},
	}
	l.in.limit = wire.MaxReply + wire.MaxBody // the list of calls precedes a reply
	l.out.Drained = u.resumePeers
	u.timer = time.AfterFunc(time.Hour, u.flushHeld)
	u.timer.Stop()
	return u
}

// isBlocked reports whether too much waits for the store; resumePeers is called later.
func (u *upstream) isBlocked() bool { return u.conn.out.Blocked(upstreamQueue) }

// resumeLater registers p to resume reading when the upstream connection has drained.
func (u *upstream) resumeLater(p *relayPeer) {
	u.waitMu.Lock()
	defer u.waitMu.Unlock()
	u.waiting[p] = struct{}{}
}

func (u *upstream) resumePeers() {
	u.waitMu.Lock()
	waiting := u.waiting
	u.waiting = map[*relayPeer]struct{}{}
	u.waitMu.Unlock()
	for p := range waiting {
		p.resumeReading()
	}
}

// open assigns p a number, and forwards its hello.
func (u *upstream) open(p *relayPeer) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return net.ErrClosed
	}
	if u.lastNumber == math.MaxUint32 { // a number is never used again
		_ = u.conn.nc.Close()
		return net.ErrClosed
	}
	u.lastNumber++
	p.number = u.lastNumber
	u.peers[p.number] = p
	u.conn.out.Append(func(b []byte) []byte { return wire.AppendRelayRequest(b, p.number, &p.hello) })
	return nil
}

// forward forwards a frame, after the held votes of the same peer.
func (u *upstream) forward(p *relayPeer, h wire.Header, body []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p.clearProbe()
	u.sendVotes(p.pendingVotes)
	u.conn.out.Append(func(b []byte) []byte {
		b = wire.AppendRelay(b, len(body), wire.RelayCall{Conn: p.number, ID: h.ID})
		return append(wire.AppendHeader(b, h), body...)
	})
}

// vote holds the vote in p.req, to be sent with others. It returns false if the vote must not be
// held: a failure, or the vote of a root that decides alone, because other ranks wait for it.
//
// The votes of a record are sent when all members here have voted, when they are too many or too
// large, after voteDelay, or before another frame of one of the peers, so that the frames of a peer
// keep their order. The relay only merges frames: the store still gets each vote with its rank and
// call, decides the record, and answers each call.
func (u *upstream) vote(p *relayPeer) bool {
	c := &p.req.Group
	if c.No != wire.CodeOK || c.RootOnly && c.Rank == c.Root || len(p.req.Value) > largeVote {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	p.clearProbe()
	if s := memberOf(c); !has(p.members, s) {
		p.members[s] = struct{}{}
		u.members[s.generation]++
	}
	of := recordIDOf(c)
	b := u.pending[of]
	switch {
	case b == nil:
		b = u.newPendingVotes(c)
	case !b.matches(c): // a rank that sets no type, for example
		u.sendVotes(b)
		b.vote = cloneVote(c)
	}
	if p.pendingVotes != b {
		u.sendVotes(p.pendingVotes)
		p.pendingVotes = b
		b.peers = append(b.peers, p)
	}
	b.votes = wire.AppendVote(b.votes, &wire.Vote{
		RelayCall: wire.RelayCall{Conn: p.number, ID: p.req.ID}, Rank: c.Rank, Want: c.Want, Timeout: p.req.Timeout, Value: p.req.Value,
	})
	b.n++
	switch {
	case b.sent+b.n >= u.members[c.Generation]:
		u.sendVotes(b)
		delete(u.pending, of)
	case b.n == wire.MaxVotes || len(b.votes) > maxHeldBytes:
		u.sendVotes(b)
	default:
		u.startTimer()
	}
	return true
}

// answerProbe records that p has answered a probe. The store probes all peers that others wait for
// at once; their answers are sent together.
func (u *upstream) answerProbe(p *relayPeer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p.clearProbe()
	u.addAlive(p)
	u.startTimer()
}

// addAlive adds a peer whose answer to a probe is to be forwarded. The caller holds mu.
func (u *upstream) addAlive(p *relayPeer) {
	u.alive = append(u.alive, wire.RelayCall{Conn: p.number})
	if len(u.alive) == wire.MaxVotes {
		u.sendAlive()
	}
}

// sendAlive forwards the answers to probes. The caller holds mu.
func (u *upstream) sendAlive() {
	if len(u.alive) > 0 {
		u.conn.out.Append(func(b []byte) []byte {
			return wire.AppendRequest(wire.AppendRelay(b, 0, u.alive...), &wire.Request{Op: wire.OpProbe})
		})
		u.alive = u.alive[:0]
	}
}

// startTimer makes sure that what is held is sent after voteDelay. The caller holds mu.
func (u *upstream) startTimer() {
	if !u.timerSet {
		u.timerSet = true
		u.timer.Reset(voteDelay)
	}
}

func has[K comparable](set map[K]struct{}, k K) bool {
	_, ok := set[k]
	return ok
}

// newPendingVotes starts to hold votes of a record. If there are too many records, those without
// held votes are dropped, which only delays later votes.
func (u *upstream) newPendingVotes(c *wire.Contribution) *heldVotes {
	if len(u.pending) >= maxPending {
		for of, b := range u.pending {
			if b.n == 0 {
				delete(u.pending, of)
			}
		}
	}
	b := &heldVotes{vote: cloneVote(c)}
	u.pending[recordIDOf(&b.vote)] = b
	return b
}

// cloneVote returns a copy of c with its strings.
func cloneVote(c *wire.Contribution) wire.Contribution {
	own := *c
	for _, s := range []*string{&own.Channel, &own.Verb, &own.Type, &own.Label} {
		*s = strings.Clone(*s)
	}
	return own
}

// matches reports whether c can be merged with the votes of b, which share all fields that are not
// per vote.
func (b *heldVotes) matches(c *wire.Contribution) bool {
	d := &b.vote
	return c.Verb == d.Verb && c.Type == d.Type && c.Label == d.Label && c.Root == d.Root && c.RootOnly == d.RootOnly && c.Reduction == d.Reduction
}

// sendVotes sends the held votes of a record. The caller holds mu.
func (u *upstream) sendVotes(b *heldVotes) {
	if b == nil || b.n == 0 {
		return
	}
	u.conn.out.Append(func(to []byte) []byte { return wire.AppendVotes(to, &b.vote, b.n, b.votes) })
	b.sent += b.n
	for _, p := range b.peers {
		p.pendingVotes = nil
	}
	b.n, b.votes, b.peers = 0, b.votes[:0], b.peers[:0]
}

// flushHeld sends all that is held, when the timer fires.
func (u *upstream) flushHeld() {
	u.mu.Lock()
	u.timerSet = false
	for _, b := range u.pending {
		u.sendVotes(b)
	}
	u.sendAlive()
	u.mu.Unlock()
	u.conn.out.Flush()
}

// memberLeft records that a member of p has left: its votes are no longer expected.
func (u *upstream) memberLeft(p *relayPeer, s member) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.removeMember(p, s)
}

func (u *upstream) removeMember(p *relayPeer, s member) {
	if !has(p.members, s) {
		return
	}
	delete(p.members, s)
	if u.members[s.generation]--; u.members[s.generation] == 0 {
		delete(u.members, s.generation)
	}
}

// peerEnded handles the end of p's connection. It reports that to the store, unless the store has ended it.
func (u *upstream) peerEnded(p *relayPeer) {
	u.mu.Lock()
	if here := u.peers[p.number] == p; here {
		u.removePeer(p)
		u.conn.out.Append(func(b []byte) []byte { return wire.AppendRelayRequest(b, p.number, &wire.Request{Op: wire.OpLost}) })
	}
	u.mu.Unlock()
	u.conn.out.Flush()
}

// removePeer removes p. Its votes still count. The caller holds mu.
func (u *upstream) removePeer(p *relayPeer) {
	u.sendVotes(p.pendingVotes)
	delete(u.peers, p.number)
	for s := range p.members {
		u.removeMember(p, s)
	}
	u.waitMu.Lock()
	delete(u.waiting, p)
	u.waitMu.Unlock()
}

// read reads from the store until the connection ends, and then ends the connections of all peers,
// which reconnect.
func (u *upstream) read() {
	var err error
	for err == nil {
		var h wire.Header
		var body []byte
		var owned bool
		if h, body, owned, err = readFrame(u.conn.nc, u.conn.in, u.conn.buf); err == nil {
			u.received.Store(true)
			err = u.handleFrame(h, body, owned)
		}
	}
	u.relay.upstreamEnded(u, err)
	u.end(err)
	u.conn.close()
}

// handleFrame handles a frame of the store.
func (u *upstream) handleFrame(h wire.Header, body []byte, owned bool) error {
	switch h.Op {
	case wire.OpRelay:
		return u.deliver(h, body, owned)
	case wire.OpGoodbye:
		return goodbyeError(h, body)
	case wire.OpProbe:
		u.conn.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &wire.Request{Op: wire.OpProbe}) })
		u.conn.out.Flush()
	}
	return nil
}

// deliver delivers a frame to its peers.
func (u *upstream) deliver(h wire.Header, body []byte, owned bool) (err error) {
	var of wire.Header
	if u.calls, of, body, err = wire.ParseRelay(h, body, u.calls, math.MaxInt, wire.MaxReply); err != nil {
		return err
	}
	if !owned && len(body) >= transport.ShareFrom {
		body = bytes.Clone(body)
	}
	to := u.peersOf(of.Op == wire.OpLost)
	switch of.Op {
	case wire.OpHello:
		var rep wire.Reply
		if err := rep.Parse(of, body); err != nil {
			return err
		}
		for _, p := range to {
			if p != nil {
				p.welcomed(&rep)
			}
		}
		return nil
	case wire.OpLost:
		for _, p := range to {
			if p != nil {
				p.close()
			}
		}
		return nil
	}
	shared, err := u.keep(h, of, body)
	if err != nil {
		return err
	}
	give := func(from, end int) {
		for i := from; i < end; i++ {
			if to[i] != nil {
				to[i].deliverReply(of, u.calls[i].ID, shared)
			}
		}
	}
	if len(to) < parallelFrom {
		give(0, len(to))
	} else {
		inParallel(len(to), give)
	}
	return nil
}

// keep returns the body of a reply, in the frame or kept, and does what the store says about it.
func (u *upstream) keep(outer, h wire.Header, body []byte) (*transport.Body, error) {
	keep, err := wire.ParseKeep(outer)
	shared := &transport.Body{Bytes: body}
	if err != nil || keep.Number == 0 {
		return shared, err
	}
	maps.DeleteFunc(u.kept, func(n uint32, _ *transport.Body) bool { return n < keep.First })
	if !keep.Again {
		u.kept[keep.Number] = shared
		room := 2 * keptBytes // the store counts payloads, which bodies are a little larger than
		for _, b := range u.kept {
			room -= len(b.Bytes)
		}
		if room < 0 {
			return nil, fmt.Errorf("%w: more to keep than a relay has room for", ErrProtocol)
		}
		return shared, nil
	}
	if shared = u.kept[keep.Number]; shared == nil || len(shared.Bytes) != int(h.Len) {
		return nil, fmt.Errorf("%w: a reply whose body this relay does not have", ErrProtocol)
	}
	return shared, nil
}

// peersOf returns the peers of u.calls; nil for one that has ended. If the store has ended them,
// they are removed.
func (u *upstream) peersOf(ended bool) []*relayPeer {
	u.mu.Lock()
	defer u.mu.Unlock()
	to := make([]*relayPeer, len(u.calls))
	for i, call := range u.calls {
		p := u.peers[call.Conn]
		if to[i] = p; p != nil && ended {
			u.removePeer(p)
		}
	}
	return to
}

// end handles the end of the connection.
func (u *upstream) end(err error) {
	goodbye := goodbyeOf(err)
	u.mu.Lock()
	u.ended = true
	u.timer.Stop()
	all := u.peers
	u.peers = map[uint32]*relayPeer{}
	u.mu.Unlock()
	for _, p := range all {
		if goodbye != nil {
			p.out.Append(func(b []byte) []byte { return wire.AppendReply(b, wire.OpGoodbye, 0, goodbye) })
			p.out.Flush()
			p.closeLater()
		} else {
			p.close()
		}
		p.resumeReading()
	}
}

// checkStore returns what to do with the connection to the store. The caller holds the relay's mu.
func (u *upstream) checkStore(late bool) action {
	if u.received.Swap(false) {
		u.liveness.missed = 0
		return noAction
	}
	return u.liveness.miss(livenessTimeout(u.relay.dialer.options.LivenessTimeout), late)
}

// confirmPeers reports to the store which peers that it has probed are alive although none of their
// frames could be forwarded.
func (u *upstream) confirmPeers() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range u.peers {
		if p.needsVouching() {
			u.addAlive(p)
		}
	}
	u.sendAlive()
}
