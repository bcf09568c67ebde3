package shm

import "fmt"

// loan is what a peer holds of an allocation by one ref.
type loan struct {
	block *block
	n     int // how often it was lent and not returned
}

// sent is a segment that the peer has, or that is queued for it.
type sent struct {
	seg   *segment
	there bool // in the socket: the peer gets it, even if this process is killed
	lent  int  // loans of it over the Conn
	gone  bool // out of its arena: the peer hears of it when nothing of it is lent
}

// notice tells the peer of a segment.
type notice struct {
	key key
	seg *segment // held, its descriptor goes along; nil if the segment has gone
}

// lend counts refs as lent: all of them, or none. It is false while segments of them are not sent, which it queues. mu is held.
func (c *Conn) lend(a *Arena, refs []Ref) (bool, error) {
	if c.closing || c.err != nil {
		return false, nil
	}
	if c.out+len(refs) > mostLoans {
		return false, fmt.Errorf("%d are lent over this Conn and not returned, and %d is the most", c.out, mostLoans)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false, ErrClosed
	}
	var few [8]*block // no allocation for few refs
	blocks, there := few[:0], true
	for _, r := range refs {
		b, err := a.allocation(r)
		if err != nil {
			return false, err
		}
		s, err := c.introduce(r.key(), b.seg)
		if err != nil {
			return false, err
		}
		blocks, there = append(blocks, b), there && s != nil && s.there
	}
	if !there {
		return false, nil
	}
	for i, r := range refs {
		c.sent[r.key()].lent++
		c.loans[r] = loan{blocks[i], c.loans[r].n + 1}
		a.lendOut(blocks[i])
	}
	c.out += len(refs)
	return true, nil
}

// introduce queues s unless the peer has it; nil if the queue is full. mu is held, and that of the arena.
func (c *Conn) introduce(k key, s *segment) (*sent, error) {
	switch {
	case c.sent[k] != nil:
		return c.sent[k], nil
	case len(c.sent) >= mostSegments:
		return nil, fmt.Errorf("the peer has %d segments, the most there may be: Trim, or set Options.Segment to more than %s",
			len(c.sent), amount(s.arena.segment))
	case len(c.queue) >= fullQueue:
		return nil, nil
	}
	s.hold()
	s.conns[c] = struct{}{}
	c.sent[k] = &sent{seg: s}
	c.post(notice{k, s})
	return c.sent[k], nil
}

// TakeBack ends loans of refs, one for each, of which the peer was not told, and is not told any more: it has not mapped them.
func (c *Conn) TakeBack(refs ...Ref) error {
	var gone []*segment
	defer func() { giveBack(gone) }()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	for _, r := range refs {
		some, err := c.back(r)
		if err != nil {
			return fmt.Errorf("shm: take back: %w", err)
		}
		gone = append(gone, some...)
	}
	c.change()
	return nil
}

// back ends one loan of r. What it returns has to be given back without mu, which is held.
func (c *Conn) back(r Ref) ([]*segment, error) {
	l, ok := c.loans[r]
	if !ok {
		return nil, fmt.Errorf("the return of %+v, which is not lent", r)
	}
	gone := l.block.seg.arena.settle(l)
	c.out--
	if l.n--; l.n > 0 {
		c.loans[r] = l
	} else {
		delete(c.loans, r)
	}
	s := c.sent[r.key()]
	s.lent--
	c.leave(r.key(), s)
	return gone, nil
}

// drop has the peer unmap a segment that has gone, as soon as it has returned what is lent of it.
func (c *Conn) drop(k key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.sent[k]; s != nil && c.err == nil {
		s.gone = true
		c.leave(k, s)
	}
}

// leave tells the peer of the end of s if nobody needs it any more. mu is held.
func (c *Conn) leave(k key, s *sent) {
	if s.gone && s.lent == 0 {
		delete(c.sent, k)
		c.post(notice{key: k})
	}
}

// lendOut begins a loan of b. mu is held.
func (a *Arena) lendOut(b *block) {
	if b.lent++; b.lent == 1 {
		a.lent += b.len
	}
}

// settle ends one of the loans l, and returns what is to be given back because of it.
func (a *Arena) settle(l loan) []*segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.end(l.block, 1)
}

// lose ends all of the loans l, of which nobody knows whether the peer still reads them.
func (a *Arena) lose(l loan) []*segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.retire(l.block.seg)
	return a.end(l.block, l.n)
}

// end ends n loans of b. mu is held.
func (a *Arena) end(b *block, n int) []*segment {
	s := b.seg
	if b.lent -= n; b.lent > 0 {
		return nil
	}
	if !s.gone {
		a.lent -= b.len
	}
	a.idle(b)
	if s.live > 0 || !s.retired || s.gone {
		return nil
	}
	return a.sweep(func(*segment) bool { return false })
}

// forget ends that c is told when s goes.
func (a *Arena) forget(c *Conn, s *segment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(s.conns, c)
}
