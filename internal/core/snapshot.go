package core

// Entry is an entry as a snapshot has it.
type Entry struct {
	Key     string
	Value   []byte
	Rev     uint64
	Reads   uint32
	Expires Time // when it goes; 0 is never
}

// Snapshot is the state of a moment, which others need not wait for: it is read in pieces, while the machine goes on. What changes
// before it has been read is put aside as it was.
type Snapshot struct {
	State *State

	m         *Machine
	cursor    string // the last key that has been read
	begun     bool
	preserved map[string]struct{} // keys behind cursor that have changed, or are new
	pending   []Entry             // those of them that were there
}

// Snapshot begins a snapshot. There is one at a time; Next ends it.
func (m *Machine) Snapshot() *Snapshot {
	m.snapshot = &Snapshot{State: m.state(), m: m, preserved: map[string]struct{}{}}
	return m.snapshot
}

// Next gives some entries, in no order; more is false with the last ones. There are n of them, or fewer if their values have size bytes
// together, beside those that have changed since the last call. Values are not to be changed.
func (s *Snapshot) Next(n, size int) (entries []Entry, more bool) {
	entries, s.pending = s.pending, nil
	s.m.entries.ascend(s.cursor, func(e *entry) bool {
		key := e.key()
		if s.begun && key == s.cursor {
			return true
		}
		if len(entries) >= n || size <= 0 {
			more = true
			return false
		}
		s.cursor, s.begun = key, true
		if _, ok := s.preserved[key]; ok {
			delete(s.preserved, key)
			return true
		}
		entries = append(entries, s.m.saved(e))
		size -= len(entries[len(entries)-1].Value)
		return true
	})
	if !more {
		s.m.snapshot = nil
	}
	return entries, more
}

// Stop ends a snapshot that is not read to its end.
func (s *Snapshot) Stop() {
	if s.m.snapshot == s {
		s.m.snapshot = nil
	}
}

// preserve puts the entry of key aside, nil if there is none, before it changes.
func (m *Machine) preserve(key string, e *entry) {
	s := m.snapshot
	if s == nil || s.begun && key <= s.cursor {
		return
	}
	if _, ok := s.preserved[key]; ok {
		return
	}
	if e == nil {
		s.preserved[string([]byte(key))] = struct{}{}
		return
	}
	s.preserved[e.key()] = struct{}{}
	s.pending = append(s.pending, m.saved(e))
}

func (m *Machine) saved(e *entry) Entry {
	return Entry{Key: e.key(), Value: e.val(), Rev: e.rev, Reads: e.reads, Expires: m.expiries.at(e)}
}
