package journal_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/muster-pg/muster/internal/journal"
)

// BenchmarkSync appends and syncs entries of 100 bytes on the disk of the temporary directory. Each
// caller makes its calls in sequence.
func BenchmarkSync(b *testing.B) {
	for _, callers := range []int{1, 50} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			dir := b.TempDir()
			if err := journal.Create(dir, id, 1, nil); err != nil {
				b.Fatal(err)
			}
			j, err := journal.Open(dir, id, 1, nil, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer j.Close()
			entry := make([]byte, 100)
			left := make(chan struct{}, b.N)
			for range b.N {
				left <- struct{}{}
			}
			close(left)
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for range left {
						pos := j.Append(func(b []byte) []byte { return append(b, entry...) })
						if err := j.Sync(pos); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "entries/s")
		})
	}
}
