package store

import (
	"bytes"
	"errors"
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
	// holdVotes is how long a vote is held back for others of the same record.
	holdVotes = 2 * time.Millisecond
	// largeVote is a vote that is not worth waiting for others, and ballotBytes how many bytes of them are.
	largeVote   = 64 << 10
	ballotBytes = 1 << 20
	// uplinkQueue is how many bytes may wait for the store before peers do.
	uplinkQueue = 4 << 20
	// mostBallots is how many records it is remembered of whose votes have come.
	mostBallots = 1024
)

// uplink is a relay's connection to the store, and what comes and goes on it.
type uplink struct {
	relay *Relay
	line  *clientConn
	heard atomic.Bool

	since, asked time.Time // the relay's mu protects these: the store was heard; it was asked

	calls []wire.RelayCall // owned by read

	mu       sync.Mutex // protects the fields below; frames are queued with it, so that a peer's are in their order
	passages map[uint32]*passage
	last     uint32 // branch
	ended    bool
	ballots  map[record]*ballot
	seats    map[uint64]int   // of peers here, by generation
	here     []wire.RelayCall // of peers that have answered the store's question, which it is to be told
	timer    *time.Timer
	armed    bool

	waitMu  sync.Mutex // protects waiting; the outbox calls with its own lock held
	waiting map[*passage]struct{}
}

// seat is a rank of a generation.
type seat struct {
	generation uint64
	rank       int
}

func seatOf(c *wire.Contribution) seat { return seat{c.Generation, c.Rank} }

// record names one, of which a relay sees some votes.
type record struct {
	generation, seq uint64
	channel         string
}

func recordOf(c *wire.Contribution) record { return record{c.Generation, c.Seq, c.Channel} }

// ballot is the votes for one record that are held back, all of them for the same verb, type, root, label and fold.
type ballot struct {
	cast  wire.Contribution
	votes []byte
	n     int
	sent  int // that are with the store
	of    []*passage
}

func newUplink(r *Relay, l *clientConn) *uplink {
	u := &uplink{
		relay: r, line: l, since: time.Now(), passages: map[uint32]*passage{}, ballots: map[record]*ballot{}, seats: map[uint64]int{},
		waiting: map[*passage]struct{}{},
	}
	l.in.limit = wire.MaxReply + wire.MaxBody // the calls that an answer is for go before it
	l.out.Drained = u.goOn
	u.timer = time.AfterFunc(time.Hour, u.holdNoLonger)
	u.timer.Stop()
	return u
}

// crowded reports whether too much waits for the store; goOn is called later.
func (u *uplink) crowded() bool { return u.line.out.Blocked(uplinkQueue) }

// wait has p go on when the store has read.
func (u *uplink) wait(p *passage) {
	u.waitMu.Lock()
	defer u.waitMu.Unlock()
	u.waiting[p] = struct{}{}
}

func (u *uplink) goOn() {
	u.waitMu.Lock()
	waiting := u.waiting
	u.waiting = map[*passage]struct{}{}
	u.waitMu.Unlock()
	for p := range waiting {
		p.goOn()
	}
}

// open gives p a branch.
func (u *uplink) open(p *passage) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return net.ErrClosed
	}
	if u.last == math.MaxUint32 { // each number is used once
		_ = u.line.nc.Close()
		return net.ErrClosed
	}
	u.last++
	p.number = u.last
	u.passages[p.number] = p
	u.line.out.Append(func(b []byte) []byte { return wire.AppendRelayRequest(b, p.number, &p.hello) })
	return nil
}

// pass passes a frame on, behind what its peer has said before.
func (u *uplink) pass(p *passage, h wire.Header, body []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p.said()
	u.send(p.held)
	u.line.out.Append(func(b []byte) []byte {
		b = wire.AppendRelay(b, len(body), wire.RelayCall{Conn: p.number, ID: h.ID})
		return append(wire.AppendHeader(b, h), body...)
	})
}

// vote takes the vote in p.req, and passes it on with others. It reports false if that is none to be held back: a no, and the yes of a root
// who alone decides, are what others wait for.
func (u *uplink) vote(p *passage) bool {
	c := &p.req.Group
	if c.No != wire.CodeOK || c.RootOnly && c.Rank == c.Root || len(p.req.Value) > largeVote {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	p.said()
	if s := seatOf(c); !has(p.seats, s) {
		p.seats[s] = struct{}{}
		u.seats[s.generation]++
	}
	of := recordOf(c)
	b := u.ballots[of]
	switch {
	case b == nil:
		b = u.newBallot(c)
	case !b.says(c): // a rank that does not tell its type, say
		u.send(b)
		b.cast = ownCast(c)
	}
	if p.held != b {
		u.send(p.held)
		p.held = b
		b.of = append(b.of, p)
	}
	b.votes = wire.AppendVote(b.votes, &wire.Vote{
		RelayCall: wire.RelayCall{Conn: p.number, ID: p.req.ID}, Rank: c.Rank, Want: c.Want, Timeout: p.req.Timeout, Value: p.req.Value,
	})
	b.n++
	switch {
	case b.sent+b.n >= u.seats[c.Generation]:
		u.send(b)
		delete(u.ballots, of)
	case b.n == wire.MaxVotes || len(b.votes) > ballotBytes:
		u.send(b)
	default:
		u.holdForAWhile()
	}
	return true
}

// answers is that p has answered whether it is there. The store has asked all whom somebody waits for: their answers go together.
func (u *uplink) answers(p *passage) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p.said()
	u.here = append(u.here, wire.RelayCall{Conn: p.number})
	if len(u.here) == wire.MaxVotes {
		u.sendHere()
	}
	u.holdForAWhile()
}

// sendHere passes on who is here. Called with mu.
func (u *uplink) sendHere() {
	if len(u.here) > 0 {
		u.line.out.Append(func(b []byte) []byte {
			return wire.AppendRequest(wire.AppendRelay(b, 0, u.here...), &wire.Request{Op: wire.OpProbe})
		})
		u.here = u.here[:0]
	}
}

// holdForAWhile has what is held back passed on in time. Called with mu.
func (u *uplink) holdForAWhile() {
	if !u.armed {
		u.armed = true
		u.timer.Reset(holdVotes)
	}
}

func has[K comparable](set map[K]struct{}, k K) bool {
	_, ok := set[k]
	return ok
}

// newBallot makes the ballot of a record. Those of records whose other votes have not come for long are forgotten.
func (u *uplink) newBallot(c *wire.Contribution) *ballot {
	if len(u.ballots) >= mostBallots {
		for of, b := range u.ballots {
			if b.n == 0 {
				delete(u.ballots, of)
			}
		}
	}
	b := &ballot{cast: ownCast(c)}
	u.ballots[recordOf(&b.cast)] = b
	return b
}

// ownCast is c in memory of its own.
func ownCast(c *wire.Contribution) wire.Contribution {
	own := *c
	for _, s := range []*string{&own.Channel, &own.Verb, &own.Type, &own.Label} {
		*s = strings.Clone(*s)
	}
	return own
}

// says reports whether b's votes say what c does, but for what is each vote's.
func (b *ballot) says(c *wire.Contribution) bool {
	d := &b.cast
	return c.Verb == d.Verb && c.Type == d.Type && c.Label == d.Label && c.Root == d.Root && c.RootOnly == d.RootOnly && c.Reduction == d.Reduction
}

// send passes on what a ballot has. Called with mu.
func (u *uplink) send(b *ballot) {
	if b == nil || b.n == 0 {
		return
	}
	u.line.out.Append(func(to []byte) []byte { return wire.AppendVotes(to, &b.cast, b.n, b.votes) })
	b.sent += b.n
	for _, p := range b.of {
		p.held = nil
	}
	b.n, b.votes, b.of = 0, b.votes[:0], b.of[:0]
}

// holdNoLonger passes on all that is held back.
func (u *uplink) holdNoLonger() {
	u.mu.Lock()
	u.armed = false
	for _, b := range u.ballots {
		u.send(b)
	}
	u.sendHere()
	u.mu.Unlock()
	u.line.out.Flush()
}

// forget notes that p has left a seat: its votes are not waited for any more.
func (u *uplink) forget(p *passage, s seat) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.unseat(p, s)
}

func (u *uplink) unseat(p *passage, s seat) {
	if !has(p.seats, s) {
		return
	}
	delete(p.seats, s)
	if u.seats[s.generation]--; u.seats[s.generation] == 0 {
		delete(u.seats, s.generation)
	}
}

// leave is the end of p's connection: the store is told, unless it has ended it.
func (u *uplink) leave(p *passage) {
	u.mu.Lock()
	if here := u.passages[p.number] == p; here {
		u.take(p)
		u.line.out.Append(func(b []byte) []byte { return wire.AppendRelayRequest(b, p.number, &wire.Request{Op: wire.OpLost}) })
	}
	u.mu.Unlock()
	u.line.out.Flush()
}

// take takes p out. What it has voted stands. Called with mu.
func (u *uplink) take(p *passage) {
	u.send(p.held)
	delete(u.passages, p.number)
	for s := range p.seats {
		u.unseat(p, s)
	}
	u.waitMu.Lock()
	delete(u.waiting, p)
	u.waitMu.Unlock()
}

// read reads what the store says until that ends, and then ends the connections of all peers: they come again.
func (u *uplink) read() {
	var err error
	for err == nil {
		var h wire.Header
		var body []byte
		var owned bool
		if h, body, owned, err = readFrame(u.line.nc, u.line.in, u.line.buf); err == nil {
			u.heard.Store(true)
			err = u.told(h, body, owned)
		}
	}
	u.relay.gone(u, err)
	u.end(errors.Is(err, errGoodbye))
	u.line.close()
}

// told is a frame of the store's.
func (u *uplink) told(h wire.Header, body []byte, owned bool) error {
	switch h.Op {
	case wire.OpRelay:
		return u.deliver(h, body, owned)
	case wire.OpGoodbye:
		return errGoodbye
	case wire.OpProbe:
		u.line.out.Append(func(b []byte) []byte { return wire.AppendRequest(b, &wire.Request{Op: wire.OpProbe}) })
		u.line.out.Flush()
	}
	return nil
}

// deliver gives a frame to those whom it is for.
func (u *uplink) deliver(h wire.Header, body []byte, owned bool) (err error) {
	var of wire.Header
	if u.calls, of, body, err = wire.ParseRelay(h, body, u.calls, wire.MaxReply); err != nil {
		return err
	}
	if !owned && len(body) >= transport.ShareFrom {
		body = bytes.Clone(body)
	}
	to := u.find(of.Op == wire.OpLost)
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
	shared := &transport.Body{Bytes: body}
	give := func(from, end int) {
		for i := from; i < end; i++ {
			if to[i] != nil {
				to[i].tell(of, u.calls[i].ID, shared)
			}
		}
	}
	if len(to) < spreadFrom {
		give(0, len(to))
	} else {
		spread(len(to), give)
	}
	return nil
}

// find finds the peers of u.calls: nil is one that has gone. If the store has ended them, they are taken out.
func (u *uplink) find(ended bool) []*passage {
	u.mu.Lock()
	defer u.mu.Unlock()
	to := make([]*passage, len(u.calls))
	for i, call := range u.calls {
		p := u.passages[call.Conn]
		if to[i] = p; p != nil && ended {
			u.take(p)
		}
	}
	return to
}

// end is the end of the connection.
func (u *uplink) end(goodbye bool) {
	u.mu.Lock()
	u.ended = true
	u.timer.Stop()
	all := u.passages
	u.passages = map[uint32]*passage{}
	u.mu.Unlock()
	for _, p := range all {
		if goodbye {
			p.tell(wire.Header{Op: wire.OpGoodbye, Code: wire.CodeLeft}, 0, new(transport.Body))
			p.closeLater()
		} else {
			p.close()
		}
		p.goOn()
	}
}

// silence says whether the store is to be asked, or has been silent for too long. Called with the relay's mu.
func (u *uplink) silence(late bool) (asks, lost bool) {
	now := time.Now()
	if u.heard.Swap(false) || late {
		u.since = now
	}
	silent := now.Sub(u.since)
	timeout := livenessTimeout(u.relay.dialer.options.LivenessTimeout)
	if asks = min(silent, now.Sub(u.asked)) >= timeout/5; asks {
		u.asked = now
	}
	return asks, silent >= timeout
}

// vouch tells the store of those peers that it has asked for, and that are heard here alone.
func (u *uplink) vouch() {
	u.mu.Lock()
	defer u.mu.Unlock()
	var calls []wire.RelayCall
	for n, p := range u.passages {
		if p.heardHere() {
			calls = append(calls, wire.RelayCall{Conn: n})
		}
	}
	if len(calls) > 0 {
		u.line.out.Append(func(b []byte) []byte {
			return wire.AppendRequest(wire.AppendRelay(b, 0, calls...), &wire.Request{Op: wire.OpProbe})
		})
	}
}
