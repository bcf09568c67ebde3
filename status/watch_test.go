package status_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/status"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// slow takes its time to answer.
type slow struct {
	takes time.Duration
	asked int
}

func (s *slow) Do(_ context.Context, _ *wire.Request, rep *wire.Reply) error {
	<-time.After(s.takes)
	s.asked++
	*rep = wire.Reply{}
	return nil
}

func (*slow) Close() error { return nil }

// TestWatchTakesAHundredthOfTheTime: what is dear to ask is asked less often.
func TestWatchTakesAHundredthOfTheTime(t *testing.T) {
	for takes, want := range map[time.Duration]int{0: 100, time.Millisecond: 100, 30 * time.Millisecond: 33, time.Second: 10} {
		synctest.Test(t, func(t *testing.T) {
			s := &slow{takes: takes}
			w := status.NewWatch(store.New(s), time.Second, nil)
			for end := time.Now().Add(100 * time.Second); time.Now().Before(end); time.Sleep(time.Second / 10) {
				_, err := w.View(t.Context())
				require.NoError(t, err)
			}
			require.InDelta(t, want, s.asked, float64(want)/8+2, "%v", takes)
		})
	}
}

// TestWatchHasNoRateOfLongAgo: what was seen before a pause is no basis.
func TestWatchHasNoRateOfLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(new(store.Memory))
		defer s.Close()
		w := status.NewWatch(s, 0, nil)
		for _, pause := range []time.Duration{time.Second, 2 * time.Minute} {
			_, err := w.View(t.Context())
			require.NoError(t, err)
			time.Sleep(pause)
			v, err := w.View(t.Context())
			require.NoError(t, err)
			require.Equal(t, pause < time.Minute, v.Server.Rates != nil, "%v", pause)
		}
	})
}
