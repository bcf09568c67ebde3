package store_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

// BenchmarkDurableSet measures sets in a durable store over TCP. Each client makes its calls in
// sequence.
func BenchmarkDurableSet(b *testing.B) {
	for _, clients := range []int{1, 50} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			m := &store.Memory{Dir: b.TempDir()}
			l, err := store.Listen(b.Context(), "127.0.0.1:0")
			require.NoError(b, err)
			srv := &store.Server{Engine: m}
			var serving, working sync.WaitGroup
			serving.Go(func() { _ = srv.Serve(l) })
			left := make(chan struct{}, b.N)
			for range b.N {
				left <- struct{}{}
			}
			close(left)
			all := make([]*store.Store, clients)
			for i := range all {
				all[i], err = store.Dial(b.Context(), l.Addr().String(), nil)
				require.NoError(b, err)
			}
			value := make([]byte, 100)
			b.ResetTimer()
			for i, s := range all {
				working.Go(func() {
					key := fmt.Sprint("key ", i)
					for range left {
						if err := s.Set(b.Context(), key, value, nil); err != nil {
							b.Error(err)
						}
					}
				})
			}
			working.Wait()
			b.StopTimer()
			for _, s := range all {
				_ = s.Close()
			}
			require.NoError(b, srv.Close())
			require.NoError(b, m.Close())
			serving.Wait()
		})
	}
}
