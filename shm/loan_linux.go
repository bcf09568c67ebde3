package shm

// loan is a part of an allocation that a peer holds.
type loan struct {
	arena *Arena
	block *block
	ref   Ref
}

// lend marks what refs name as lent over c: all of them, or none.
func (a *Arena) lend(c *Conn, refs []Ref) ([]loan, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, ErrClosed
	}
	loans := make([]loan, len(refs))
	for i, r := range refs {
		b, err := a.allocation(r)
		if err != nil {
			return nil, err
		}
		loans[i] = loan{a, b, r}
	}
	for _, l := range loans {
		if l.block.lent++; l.block.lent == 1 {
			a.lent += l.block.len
		}
		l.block.seg.conns[c] = struct{}{}
	}
	return loans, nil
}

// settle ends loans of this arena.
func (a *Arena) settle(loans []loan) { a.end(loans, false) }

// lose ends loans of which nobody knows whether the peer still reads them.
func (a *Arena) lose(loans []loan) { a.end(loans, true) }

func (a *Arena) end(loans []loan, lost bool) {
	a.mu.Lock()
	for _, l := range loans {
		if lost {
			a.retire(l.block.seg)
		}
		if l.block.lent--; l.block.lent == 0 && !l.block.seg.gone {
			a.lent -= l.block.len
		}
		a.idle(l.block)
	}
	gone := a.sweep(func(*segment) bool { return false })
	a.mu.Unlock()
	a.giveBack(gone)
}

// forget ends that c is told when s goes.
func (a *Arena) forget(c *Conn, s *segment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(s.conns, c)
}

// has reports whether s is still a segment of a.
func (a *Arena) has(s *segment) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !s.gone
}
