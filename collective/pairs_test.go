package collective_test

import (
	"context"
	"maps"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
)

type pairVerb struct {
	op   string // the name that errors use for it
	call func(r *rank, ctx context.Context, peer int, b []byte) error
}

// pairVerbs are Send and Recv of more than connections hold.
var pairVerbs = map[string]pairVerb{
	"send": {"collective.send", func(r *rank, ctx context.Context, peer int, b []byte) error {
		return collective.Send(ctx, r.c, peer, b)
	}},
	"recv": {"collective.recv", func(r *rank, ctx context.Context, peer int, b []byte) error {
		return collective.Recv(ctx, r.c, peer, b)
	}},
}

// pairBytes is more than a connection holds.
const pairBytes = 64 << 20

// TestPairTimesOut has a rank whose peer makes no call: the error names the verb and the peer, on
// all ranks.
func TestPairTimesOut(t *testing.T) {
	t.Parallel()
	testcluster.AtOnce(t, maps.All(pairVerbs), func(t *testing.T, v pairVerb) {
		way{host: apart}.run(t, 3, func(r *rank) {
			r.allReduce(10)
			var err error
			if r.me() == 0 {
				err = v.call(r, testcluster.Within(r, 2*time.Second), 2, make([]byte, pairBytes))
			} else {
				<-r.c.Group().Context().Done()
				err = r.c.Barrier(r.ctx)
			}
			re := r.rankError(err)
			assert.ErrorIs(r, err, pgroup.ErrTimeout)
			assert.Equal(r, []int{2}, re.Missing, "%v", err)
			assert.NotEmpty(r, re.Doing, "what it does instead: %v", err)
			if r.me() == 0 {
				assert.Equal(r, v.op, re.Op)
			}
		})
	})
}

// TestPairFrozen stops the peer of a Send or Recv whose context has no deadline: it fails after the
// liveness timeout, as in any verb.
func TestPairFrozen(t *testing.T) {
	t.Parallel()
	testcluster.AtOnce(t, maps.All(pairVerbs), func(t *testing.T, v pairVerb) {
		const victim = 1
		j := pgrouptest.Job{N: 3, Hosts: []string{"node 0", "node 1", "node 2"}, LivenessTimeout: 3 * time.Second}
		processes(t, j, func(r *rank) {
			r.allReduce(1000)
			pid := r.pid(victim)
			if r.me() == 0 {
				require.NoError(r, syscall.Kill(pid, syscall.SIGSTOP))
				start := time.Now()
				err := v.call(r, context.WithoutCancel(r.ctx), victim, make([]byte, pairBytes))
				took := time.Since(start)
				require.NoError(r, syscall.Kill(pid, syscall.SIGCONT))
				assert.ErrorIs(r, err, pgroup.ErrLost)
				assert.Less(r, took, soon)
				assert.Equal(r, v.op, r.rankError(err).Op)
				assert.Equal(r, []int{victim}, r.rankError(err).Lost, "%v", err)
				return
			}
			<-r.c.Group().Context().Done()
			assert.ErrorIs(r, r.c.Barrier(r.ctx), pgroup.ErrLost)
		})
	})
}

// soon is more than a liveness timeout of a second, on a busy machine too.
const soon = 13 * time.Second

// TestSmallSendsToOneThatDoesNotReceive checks that the deadline of a Send ends it, and its Comm, also
// while it writes a small message itself.
func TestSmallSendsToOneThatDoesNotReceive(t *testing.T) {
	t.Parallel()
	over(t, []int{2}, func(t *testing.T, w way, n int) {
		ended := make(chan struct{})
		w.run(t, n, func(r *rank) {
			if r.me() == 1 {
				<-ended
				return
			}
			defer close(ended)
			ctx, x := testcluster.Within(t, 300*time.Millisecond), make([]float32, 4000)
			var err error
			for i := 0; i < 1<<16 && err == nil; i++ {
				err = collective.Send(ctx, r.c, 1, x)
			}
			assert.ErrorIs(t, err, pgroup.ErrTimeout)
			began := time.Now()
			assert.NoError(t, r.c.Close())
			assert.Less(t, time.Since(began), hung/4)
		})
	})
}
