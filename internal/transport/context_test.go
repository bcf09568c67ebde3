package transport_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/transport"
)

func TestWaitGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		done := make(chan struct{})
		require.False(t, transport.WaitGrace(done, time.Second))
		require.Equal(t, time.Second, time.Since(began))
		time.AfterFunc(time.Second/2, func() { done <- struct{}{} }) // a value is received once
		require.True(t, transport.WaitGrace(done, time.Second))
		require.Equal(t, 3*time.Second/2, time.Since(began))
	})
}

func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ended, end := context.WithCancel(context.WithValue(t.Context(), key{}, 7))
		end()
		began := time.Now()
		ctx, cancel := transport.Grace(ended, time.Second)
		defer cancel()
		require.NoError(t, ctx.Err())
		require.Equal(t, 7, ctx.Value(key{}))
		<-ctx.Done()
		require.Equal(t, time.Second, time.Since(began))
		require.Equal(t, context.DeadlineExceeded, ctx.Err())

		ctx, cancel = transport.Grace(ended, time.Second)
		derived, stop := context.WithTimeout(ctx, time.Hour)
		defer stop()
		cancel()
		<-derived.Done()
		require.Equal(t, context.Canceled, ctx.Err())
	})
}

// behind is a context whose timer has not fired yet, although its deadline has passed.
type behind struct{ context.Context }

func (behind) Deadline() (time.Time, bool) { return time.Now(), true }

func TestContextErr(t *testing.T) {
	require.NoError(t, transport.ContextErr(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	require.NoError(t, transport.ContextErr(ctx))
	cancel()
	require.ErrorIs(t, transport.ContextErr(ctx), context.Canceled)
	require.ErrorIs(t, transport.ContextErr(behind{t.Context()}), context.DeadlineExceeded)
}
