package gather_test

import (
	"context"
	"maps"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/pgroup/pgrouptest"
	"github.com/muster-pg/muster/tensor"
)

// TestReturnedIsBounded has a first rank that does not release its result. Returned ends with its
// context, or after the group's timeout if that has no deadline; its error names the first rank,
// and the next gather works.
func TestReturnedIsBounded(t *testing.T) {
	t.Parallel()
	sharing(t)
	ranks := []int{1, 0}
	type bounded struct {
		span time.Duration // Config.Timeout
		call func(ctx context.Context, r *gather.Result[*tensor.Tensor]) error
		want error
	}
	testcluster.AtOnce(t, maps.All(map[string]bounded{
		"by the group's timeout": {3 * time.Second, func(ctx context.Context, r *gather.Result[*tensor.Tensor]) error {
			return r.WaitReleased(context.WithoutCancel(ctx))
		}, pgroup.ErrTimeout},
		"by its deadline": {time.Minute, func(ctx context.Context, r *gather.Result[*tensor.Tensor]) error {
			ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			return r.WaitReleased(ctx)
		}, pgroup.ErrTimeout},
		"by a cancel": {time.Minute, func(ctx context.Context, r *gather.Result[*tensor.Tensor]) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return r.WaitReleased(ctx)
		}, pgroup.ErrCancelled},
	}), func(t *testing.T, test bounded) {
		job{way: way{allocated: true}, n: 2, span: test.span}.run(t, func(r *rank) {
			r.ctx = testcluster.Within(t, time.Minute)
			res := r.gather(ranks, r.tensor(r.me(), 1000))
			if r.me() == 1 {
				_, err := pgroup.Recv[bool](r.ctx, r.group, 0)
				assert.NoError(r, err)
				res.Release()
			} else {
				err := test.call(r.ctx, res)
				assert.ErrorIs(r, err, test.want)
				re := r.rankError(err)
				assert.Equal(r, []int{1}, re.Missing, "%v", err)
				assert.NotContains(r, err.Error(), "{", "no structs")
				assert.NoError(r, pgroup.Send(r.ctx, r.group, 1, true))
				assert.NoError(r, res.WaitReleased(r.ctx))
			}
			r.gathers(ranks, 10, 100)
		})
	})
}

// TestReturnedFromAFirstRankThatIsGone stops or kills the first rank while it has its result. Ranks
// that wait for the release get the same error as in any verb: it has failed.
func TestReturnedFromAFirstRankThatIsGone(t *testing.T) {
	t.Parallel()
	sharing(t)
	signals := map[string]syscall.Signal{"frozen": syscall.SIGSTOP, "killed": syscall.SIGKILL}
	testcluster.AtOnce(t, maps.All(signals), func(t *testing.T, signal syscall.Signal) {
		const first = 1
		ranks := []int{first, 0, 2}
		processes(t, pgrouptest.Job{N: 3, MayFail: []int{first}, LivenessTimeout: 3 * time.Second}, func(r *rank) {
			res := r.gather(ranks, filled(r.me(), 1000))
			require.NoError(r, r.group.Barrier(r.ctx))
			if r.me() == first {
				<-r.ctx.Done() // it is killed before that
				return
			}
			pid := r.pid(first)
			if r.me() == 0 {
				require.NoError(r, syscall.Kill(pid, signal))
				defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
			}
			start := time.Now()
			err := res.WaitReleased(context.WithoutCancel(r.ctx))
			assert.Less(r, time.Since(start), soon)
			assert.ErrorIs(r, err, pgroup.ErrLost)
			assert.Equal(r, []int{first}, r.rankError(err).Lost, "%v", err)
		})
	})
}

// soon is more than a liveness timeout of a second, on a busy machine too.
const soon = 13 * time.Second
