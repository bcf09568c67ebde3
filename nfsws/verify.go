package nfsws

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

// source is an open state. Reads of the weights return what was written, or an error.
type source struct {
	name     string // of the weights
	version  Version
	manifest *manifest
	file     file
}

// size is that of the file with the weights.
func (s *source) size() int64 { return s.manifest.Weights.Size }

// extent is where a part begins and ends.
func (s *source) extent(part int) (from, to int64) {
	from = int64(part) * partBytes
	return from, min(from+partBytes, s.size())
}

// read fills p, of a part's size, with the part.
func (s *source) read(p []byte, part int) error {
	from, to := s.extent(part)
	if err := readFull(s.file, p, from); err != nil {
		return at(s.name, err)
	}
	if sum, want := xxh3.Hash(p), uint64(s.manifest.Weights.Sums[part]); sum != want {
		return corrupt(s.name, "bytes %d to %d have the checksum %016x, not %016x", from, to, sum, want)
	}
	return nil
}

// maxReaders is how many parts are read at once: enough to overlap copying and checksums.
const maxReaders = 4

// all reads everything into fresh memory. Each part is hashed by the goroutine that has just read
// it.
func (s *source) all(ctx context.Context) ([]byte, error) {
	if int64(int(s.size())) != s.size() {
		return nil, at(s.name, fmt.Errorf("%d bytes do not fit in memory: use View", s.size()))
	}
	data, parts := make([]byte, s.size()), len(s.manifest.Weights.Sums)
	var next atomic.Int64
	var wg sync.WaitGroup
	readers := min(maxReaders, runtime.GOMAXPROCS(0), parts)
	errs := make([]error, readers)
	for i := range readers {
		wg.Go(func() {
			for errs[i] == nil {
				part := int(next.Add(1)) - 1
				if part >= parts {
					return
				}
				from, to := s.extent(part)
				if errs[i] = context.Cause(ctx); errs[i] == nil {
					errs[i] = s.read(data[from:to], part)
				}
			}
			next.Store(int64(parts)) // the others need not go on
		})
	}
	wg.Wait()
	return data, cmp.Or(errs...)
}
