package collective_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
)

// TestOneFailure has a rank that cancels before it has received the abort of another one: all ranks
// report the same failure.
func TestOneFailure(t *testing.T) {
	const n = 4
	w := between(t, n)
	w.store[1].Delay(20 * time.Millisecond)
	texts := make([]string, n)
	w.run(t, n, func(r *rank) {
		r.allReduce(10)
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		switch r.me() {
		case 1:
			time.AfterFunc(20*time.Millisecond, cancel)
		case 2:
			time.AfterFunc(30*time.Millisecond, func() { r.c.Group().Abort(errors.New("no cheese")) })
		}
		var err error
		for err == nil {
			err = collective.AllReduce(ctx, r.c, collective.Sum, make([]float32, 10))
		}
		if re, ok := errors.AsType[*pgroup.RankError](err); assert.True(r, ok, "%v", err) {
			texts[r.me()] = re.Reason
		}
	})
	for _, text := range texts {
		assert.Equal(t, texts[0], text)
	}
}

// TestFailureIsMalformed stores invalid data under the key of the failure.
func TestFailureIsMalformed(t *testing.T) {
	for _, rubbish := range []string{"null", "{}", "rubbish"} {
		way{host: apart}.run(t, 2, func(r *rank) {
			if r.me() == 1 {
				assert.NoError(r, r.c.Group().Store().Set(r.ctx, "fault", []byte(rubbish), nil))
				ctx, cancel := context.WithCancel(r.ctx)
				cancel()
				assert.ErrorContains(r, r.c.Barrier(ctx), "rank 1")
				return
			}
			assert.ErrorIs(r, r.c.Barrier(r.ctx), pgroup.ErrAborted)
		})
	}
}
