package status_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// slow is an engine that answers after a delay.
type slow struct {
	takes time.Duration
	asked int
}

func (s *slow) Do(ctx context.Context, _ *wire.Request, rep *wire.Reply) error {
	s.asked++
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return ctx.Err()
	}
	*rep = wire.Reply{}
	return nil
}

func (*slow) Close() error { return nil }

// TestWatchTakesAHundredthOfTheTime checks that a slow status is requested less often. A view takes
// four requests.
func TestWatchTakesAHundredthOfTheTime(t *testing.T) {
	for takes, want := range map[time.Duration]int{0: 400, time.Millisecond: 400, 30 * time.Millisecond: 40, time.Second: 28} {
		synctest.Test(t, func(t *testing.T) {
			s := &slow{takes: takes}
			w := status.NewWatch(store.New(s), time.Second, status.Options{})
			for end := time.Now().Add(100 * time.Second); time.Now().Before(end); time.Sleep(time.Second / 10) {
				_, _, err := w.Look(t.Context())
				require.NoError(t, err)
			}
			require.InDelta(t, want, s.asked, float64(want)/8+2, "%v", takes)
		})
	}
}

// TestWatchOfAStoreThatHangs checks that one viewer makes the request for all, that the others get
// its result, and that a viewer whose context ends does not wait.
func TestWatchOfAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{takes: time.Hour}
		w := status.NewWatch(store.New(s), time.Second, status.Options{})
		began := time.Now()
		var viewers sync.WaitGroup
		for range 64 {
			viewers.Go(func() {
				_, _, err := w.Look(t.Context())
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, err := w.Look(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, time.Since(began))
		viewers.Wait()
		require.Equal(t, 1, s.asked)
		require.Less(t, time.Since(began), 10*time.Second)
		time.Sleep(time.Second)
		_, _, err = w.Look(t.Context())
		require.Error(t, err)
		require.Equal(t, 2, s.asked, "later it is asked again")
	})
}

// TestWhoGivesUpSaysNothingOfTheStore checks that after a canceled request the next viewer makes a
// new one.
func TestWhoGivesUpSaysNothingOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{takes: time.Second}
		w := status.NewWatch(store.New(s), time.Second, status.Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, _, err := w.Look(ctx)
		require.Error(t, err)
		_, _, err = w.Look(t.Context())
		require.NoError(t, err)
	})
}
