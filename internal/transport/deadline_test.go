package transport_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/transport"
)

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
