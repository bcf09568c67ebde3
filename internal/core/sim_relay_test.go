package core_test

import (
	"fmt"
	"time"

	"github.com/muster-pg/muster/wire"
)

// relay is a relay as package store implements it. The requests of its processes reach the server
// over one connection, in order. A yes is held back until those of all ranks of its group behind
// this relay have come, for at most 2 ms, and is sent before all later requests of its process.
// When the relay ends, so do all connections through it, and the server notices at once.
type relay struct {
	w       *world
	id      int
	lives   int
	conns   []*conn
	arrive  time.Duration // of the last frame, at the server
	members map[uint64]map[int]bool
	held    []*heldVotes
	timed   bool
}

// heldVotes are the held votes for one record.
type heldVotes struct {
	generation, seq uint64
	channel         string
	votes           []heldVote
	sent            int
}

type heldVote struct {
	c     *conn
	cl    *call
	frame []byte
}

// makeRelays puts some processes behind relays.
func (w *world) makeRelays() {
	if !w.chance(0.5) {
		return
	}
	var relays []*relay
	for i := range 1 + w.upTo(2) {
		relays = append(relays, &relay{w: w, id: i, members: map[uint64]map[int]bool{}})
	}
	for _, p := range w.procs {
		if !p.local && w.chance(0.8) {
			p.relay = relays[w.upTo(len(relays))]
		}
	}
	if w.odds.cut > 0 || w.chance(0.3) {
		for _, r := range relays {
			w.after(w.between(0, 40*time.Millisecond), r.end)
		}
	}
}

// opens opens a connection through the relay, if there is one.
func (r *relay) opens(c *conn) {
	if r != nil && !r.w.chance(0.1) { // or directly
		c.relay = r
		r.conns = append(r.conns, c)
	}
}

// takes handles a frame that comes to the relay.
func (r *relay) takes(c *conn, cl *call, frame []byte) {
	w := r.w
	if c.deaf || c.lostRelay {
		return
	}
	h, err := wire.ParseHeader(frame, wire.MaxBody)
	var req wire.Request
	if err == nil {
		err = req.Parse(h, frame[wire.HeaderLen:])
	}
	if err != nil {
		breaks("N2 what is encoded parses", "%s: %v", h.Op, err)
	}
	g := &req.Group
	if h.Op != wire.OpCollect || g.No != wire.CodeOK || g.RootOnly && g.Rank == g.Root {
		r.send(r.of(c))
		r.pass(heldVote{c, cl, frame})
		return
	}
	if r.members[g.Generation] == nil {
		r.members[g.Generation] = map[int]bool{}
	}
	r.members[g.Generation][g.Rank] = true
	b := r.votes(g)
	if before := r.of(c); before != b {
		r.send(before)
	}
	b.votes = append(b.votes, heldVote{c, cl, frame})
	w.tally["votes held back by a relay"]++
	if b.sent+len(b.votes) >= len(r.members[g.Generation]) {
		r.send(b)
	} else if !r.timed {
		r.timed = true
		life := r.lives
		w.after(2*time.Millisecond, func() {
			if life == r.lives {
				r.sendAll()
			}
		})
	}
}

func (r *relay) votes(g *wire.Contribution) *heldVotes {
	for _, b := range r.held {
		if b.generation == g.Generation && b.seq == g.Seq && b.channel == g.Channel {
			return b
		}
	}
	b := &heldVotes{generation: g.Generation, seq: g.Seq, channel: g.Channel}
	r.held = append(r.held, b)
	return b
}

// of returns the held votes that include one of c.
func (r *relay) of(c *conn) *heldVotes {
	for _, b := range r.held {
		for _, v := range b.votes {
			if v.c == c {
				return b
			}
		}
	}
	return nil
}

func (r *relay) sendAll() {
	r.timed = false
	for _, b := range r.held {
		r.send(b)
	}
}

// send passes on held votes, all at the same time.
func (r *relay) send(b *heldVotes) {
	if b == nil || len(b.votes) == 0 {
		return
	}
	votes := b.votes
	b.votes, b.sent = nil, b.sent+len(votes)
	r.pass(votes...)
}

func (r *relay) pass(frames ...heldVote) {
	w := r.w
	r.arrive = max(r.arrive, w.now+w.between(20*time.Microsecond, 500*time.Microsecond))
	w.at(r.arrive, func() {
		for _, v := range frames {
			v.c.comes(v.cl, v.frame)
		}
	})
}

// end ends the relay's process; the next one starts at once. What it held is lost; frames on their
// way may be lost, or arrive late.
func (r *relay) end() {
	w := r.w
	if w.ending {
		return
	}
	r.lives++
	conns, why := r.conns, fmt.Sprintf("relay %d has ended (%d)", r.id, r.lives)
	w.trace.note(w, "%s", why)
	w.tally["relays ended"]++
	r.conns, r.held, r.timed = nil, nil, false
	clear(r.members)
	deaf, stall := w.chance(0.4), w.now+w.between(0, 40*time.Millisecond)
	for _, c := range conns {
		if c.cut || c.ended || c.s.p.dead {
			continue
		}
		c.cut, c.lostRelay = true, true
		c.deaf, c.stall = c.deaf || deaf, stall
		w.after(w.between(0, 20*time.Millisecond), c.broken)
	}
	w.after(w.between(0, 20*time.Millisecond), func() {
		for _, c := range conns {
			if c.lostRelay {
				c.noticedBy(why)
			}
		}
	})
	if w.chance(0.5) {
		w.after(w.between(0, 40*time.Millisecond), r.end)
	}
}
