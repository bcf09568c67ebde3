package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

// memoryUse is the memory of a process, in bytes.
type memoryUse struct {
	resident    int64
	heap, stack uint64 // of the Go runtime
}

// measureMemory runs the garbage collector, and returns free memory to the system, before it
// measures.
func measureMemory() memoryUse {
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memoryUse{residentBytes(os.Getpid()), m.HeapAlloc, m.StackInuse}
}

// askMemory asks a muster server for its memory use.
func (s *server) askMemory() (m memoryUse, err error) {
	answer, err := s.ask("memory")
	if err != nil {
		return m, err
	}
	_, err = fmt.Sscan(answer, &m.resident, &m.heap, &m.stack)
	return m, err
}

// perConn returns by how much m exceeds before, for each of n connections.
func (m memoryUse) perConn(before memoryUse, n int) (resident, heapStack float64) {
	resident = float64(m.resident-before.resident) / float64(n)
	heapStack = float64(int64(m.heap+m.stack)-int64(before.heap+before.stack)) / float64(n)
	return resident, heapStack
}
