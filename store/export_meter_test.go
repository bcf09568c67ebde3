package store

import "time"

// Metered returns a function that does all the counting for a request that comes alone: of its
// operation, its bytes and its time. looked says that the status is being read.
func Metered(looked bool) func() {
	m := new(Memory)
	if looked {
		m.meter.start = time.Now()
		m.meter.lastQuery.Store(1 << 62)
	}
	return func() {
		began := m.meter.begin()
		m.meter.in.Add(40)
		m.meter.ops[3]++
		m.meter.out.Add(40)
		m.meter.end(began, 1)
	}
}
