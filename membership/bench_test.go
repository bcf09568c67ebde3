package membership_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// BenchmarkJoin measures the time from the first Join until all of n workers have their view, in
// one process over one store.
func BenchmarkJoin(b *testing.B) {
	for _, n := range []int{2, 10, 50, 200} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				s := store.New(new(store.Memory))
				ms := joinAll(b, s, n, n)
				for _, m := range ms {
					_, err := m.Next(b.Context())
					require.NoError(b, err)
				}
				b.StopTimer()
				for _, m := range ms {
					_ = m.Close()
				}
				_ = s.Close()
				b.StartTimer()
			}
		})
	}
}

// BenchmarkChange measures the time from the failure of one of n workers until another one has the
// next view. All n workers are in this process, so it grows with the square of n: each decodes the
// view, in a time that grows with n.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{2, 10, 50, 200} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := store.New(new(store.Memory))
			defer s.Close()
			ms := joinAll(b, s, n, 1)
			first := ms[0]
			defer func() {
				for _, m := range ms {
					_ = m.Close()
				}
			}()
			for i := 0; b.Loop(); i++ {
				for v, err := first.Next(b.Context()); v.Size() < n; v, err = first.Next(b.Context()) {
					require.NoError(b, err)
				}
				last := &ms[n-1]
				require.NoError(b, (*last).Close())
				for v, err := first.Next(b.Context()); v.Size() == n; v, err = first.Next(b.Context()) {
					require.NoError(b, err)
				}
				b.StopTimer()
				*last = join(b, s, worker(fmt.Sprint("again", i), 1, n))
				b.StartTimer()
			}
		})
	}
}
