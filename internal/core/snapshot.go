package core

// Entry is an entry in a snapshot.
type Entry struct {
	Key     string
	Value   []byte
	Rev     uint64
	Expires Time // when it expires; 0 is never
}

// Snapshot is a consistent copy of the state at one moment, which is read in pieces while the
// machine goes on: requests wait for one piece at most.
//
// It is a copy on write by key. Entries are read in the order of keys; cursor is the last key that
// was read. A change of an entry behind cursor first copies the old entry to pending (preserve), so
// that a later Next returns it as it was. Changes before cursor, and new keys, do not matter.
type Snapshot struct {
	State *State

	m         *Machine
	cursor    string // the last key that was read, if begun
	begun     bool
	preserved map[string]struct{} // keys behind cursor that have changed, or are new
	pending   []Entry             // the old entries of those that existed
}

// Snapshot begins a snapshot. There is at most one at a time; the end of Next, or Stop, ends it.
func (m *Machine) Snapshot() *Snapshot {
	m.snapshot = &Snapshot{State: m.state(), m: m, preserved: map[string]struct{}{}}
	return m.snapshot
}

// Next returns up to n entries, or fewer if their values have size bytes together, and in addition
// the entries that were preserved since the last call. They are in no order. more is false with the
// last ones. The values must not be modified.
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

// Stop ends a snapshot before its last entry.
func (s *Snapshot) Stop() {
	if s.m.snapshot == s {
		s.m.snapshot = nil
	}
}

// preserve copies the entry of key for a snapshot before it changes; e is nil if there is none.
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
	return Entry{Key: e.key(), Value: e.val(), Rev: e.rev, Expires: m.expiries.at(e)}
}
