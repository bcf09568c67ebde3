package shm

import "fmt"

// share is what a peer holds of an allocation by one ref.
type share struct {
	block *block
	n     int // how often it was shared and not released
}

// sent is a segment that the peer has, or that is queued for it.
type sent struct {
	seg       *segment
	delivered bool // in the socket: the peer gets it, even if this process is killed
	shared    int  // refs to it that are shared over the Conn
	gone      bool // removed from its arena: the peer is notified when nothing of it is shared
}

// notice is a message about a segment.
type notice struct {
	key key
	seg *segment // held, its descriptor goes along; nil if the segment has gone
}

// share counts refs as shared: all of them, or none. It is false while segments of them are not
// sent, which it queues. mu is held.
func (c *Conn) share(a *Arena, refs []Ref) (bool, error) {
	if c.closing || c.err != nil {
		return false, nil
	}
	if c.out+len(refs) > maxShares {
		return false, fmt.Errorf("%d are shared over this Conn and not released, and %d is the most", c.out, maxShares)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return false, ErrClosed
	}
	var few [8]*block // no allocation for few refs
	blocks, delivered := few[:0], true
	for _, r := range refs {
		b, err := a.allocation(r)
		if err != nil {
			return false, err
		}
		s, err := c.queueSegment(r.key(), b.seg)
		if err != nil {
			return false, err
		}
		blocks, delivered = append(blocks, b), delivered && s != nil && s.delivered
	}
	if !delivered {
		return false, nil
	}
	for i, r := range refs {
		c.sent[r.key()].shared++
		c.shares[r] = share{blocks[i], c.shares[r].n + 1}
		a.beginShare(blocks[i])
	}
	c.out += len(refs)
	return true, nil
}

// queueSegment queues s unless the peer has it; nil if the queue is full. mu is held, and that of
// the arena.
func (c *Conn) queueSegment(k key, s *segment) (*sent, error) {
	switch {
	case c.sent[k] != nil:
		return c.sent[k], nil
	case len(c.sent) >= maxSegments:
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

// Unshare undoes Share of refs, once for each, that the peer has not received, and will not
// receive: it has not mapped them.
func (c *Conn) Unshare(refs ...Ref) error {
	var gone []*segment
	defer func() { giveBack(gone) }()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	for _, r := range refs {
		some, err := c.unshareOne(r)
		if err != nil {
			return fmt.Errorf("shm: unshare: %w", err)
		}
		gone = append(gone, some...)
	}
	c.change()
	return nil
}

// unshareOne ends one share of r. The caller gives back the segments that it returns after it has
// released mu, which is held.
func (c *Conn) unshareOne(r Ref) ([]*segment, error) {
	l, ok := c.shares[r]
	if !ok {
		return nil, fmt.Errorf("the release of %+v, which is not shared", r)
	}
	gone := l.block.seg.arena.endShare(l)
	c.out--
	if l.n--; l.n > 0 {
		c.shares[r] = l
	} else {
		delete(c.shares, r)
	}
	s := c.sent[r.key()]
	s.shared--
	c.dropIfUnused(r.key(), s)
	return gone, nil
}

// drop has the peer unmap a segment that was removed, as soon as it has released all of it.
func (c *Conn) drop(k key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.sent[k]; s != nil && c.err == nil {
		s.gone = true
		c.dropIfUnused(k, s)
	}
}

// dropIfUnused notifies the peer of the end of s if nothing of it is shared. mu is held.
func (c *Conn) dropIfUnused(k key, s *sent) {
	if s.gone && s.shared == 0 {
		delete(c.sent, k)
		c.post(notice{key: k})
	}
}

// beginShare counts that b is shared once more. mu is held.
func (a *Arena) beginShare(b *block) {
	if b.shared++; b.shared == 1 {
		a.shared += b.len
	}
}

// endShare ends one of the shares l, and returns the segments to give back because of it.
func (a *Arena) endShare(l share) []*segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.end(l.block, 1)
}

// abandon ends all of the shares l, of which it is unknown whether the peer still reads them.
func (a *Arena) abandon(l share) []*segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.retire(l.block.seg)
	return a.end(l.block, l.n)
}

// end ends n shares of b. mu is held.
func (a *Arena) end(b *block, n int) []*segment {
	s := b.seg
	if b.shared -= n; b.shared > 0 {
		return nil
	}
	if !s.gone {
		a.shared -= b.len
	}
	a.freeIfUnused(b)
	if s.live > 0 || !s.retired || s.gone {
		return nil
	}
	return a.sweep(func(*segment) bool { return false })
}

// unregister removes c from the peers that are notified of the end of s.
func (a *Arena) unregister(c *Conn, s *segment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(s.conns, c)
}
