package spin_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/internal/spin"
)

// TestPoll checks that a caller polls for Time, and not for a while after yields that took longer than
// polling has saved.
func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p spin.Poller
		polled := func(each time.Duration) (times int) {
			assert.False(t, p.Poll(func() bool {
				times++
				time.Sleep(each)
				return false
			}))
			return times
		}
		save := func(d time.Duration) {
			for range d / spin.WakeUp {
				second := false
				assert.True(t, p.Poll(func() bool { second = !second; return !second }))
			}
		}
		const long = spin.MaxLoss / 4
		assert.Equal(t, 4, polled(spin.Time/2))
		for range 20 {
			assert.Equal(t, 3, polled(spin.LongYield), "not long")
		}
		for range 5 {
			assert.Equal(t, 3, polled(long)) // one yield is long, as it begins after a call of ready
			save(long)
		}
		for range spin.MaxLoss / long {
			assert.Equal(t, 3, polled(long))
		}
		assert.Equal(t, 1, polled(1), "the loss is too great")
		time.Sleep(spin.Pause*long - long - 3) // two polls took a nanosecond each
		assert.Equal(t, 1, polled(1), "the pause")
		time.Sleep(time.Nanosecond)
		assert.Equal(t, 4, polled(spin.Time/2))
		assert.Equal(t, 3, polled(long))
		assert.Equal(t, 1, polled(1), "it is still too great")
	})
}
