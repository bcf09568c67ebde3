package transport

import (
	"runtime"
	"sync"
)

// ParallelFrom is the number of connections from which on InParallel uses more than one processor:
// otherwise the last rank of a large barrier would write to all others before it reads on.
const ParallelFrom = 64

// InParallel calls do for parts of [0, n), if there are many on all processors, and returns when all
// calls have returned.
func InParallel(n int, do func(from, to int)) {
	if n < ParallelFrom {
		do(0, n)
		return
	}
	workers := runtime.GOMAXPROCS(0)
	each := (n + workers - 1) / workers
	var wg sync.WaitGroup
	from := 0
	for ; from+each < n; from += each {
		first := from
		wg.Go(func() { do(first, first+each) })
	}
	do(from, n)
	wg.Wait()
}
