package gather_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/trace"
)

// TestTrace checks that every verb is traced on every rank of its list, whichever way its tensors
// take.
func TestTrace(t *testing.T) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			sink := new(testcluster.Events)
			job{way: w, n: 4, trace: sink}.run(t, func(r *rank) {
				res, err := gather.Tensors(r.ctx, r.ga, list, r.tensor(1, 300))
				if !assert.NoError(r, err) {
					return
				}
				res.Release()
				_, err = gather.Concat(r.ctx, r.ga, list, 0, r.tensor(1, 3+r.me()))
				assert.NoError(r, err)
				_, err = gather.Tensors(r.ctx, r.ga, list, r.tensor(1, 3+r.me())) // of other shapes
				if r.me() != 1 {
					assert.ErrorIs(r, err, pgroup.ErrMismatch)
				}
			})
			of := map[uint64][]trace.Event{}
			for _, e := range append(sink.Of("gather.tensors"), sink.Of("gather.concat")...) {
				of[e.Seq] = append(of[e.Seq], e)
			}
			require.Len(t, of, 3)
			for seq, events := range of {
				require.Len(t, events, 3, "the one that is not in the list has done nothing")
				seen := map[int]bool{}
				for _, e := range events {
					seen[e.Rank] = true
					require.Equal(t, map[uint64]string{1: "gather.tensors", 2: "gather.concat", 3: "gather.tensors"}[seq], e.Op)
					require.Equal(t, []any{3, -1, events[0].Group, events[0].Generation}, []any{e.Size, e.Last, e.Group, e.Generation})
					require.Positive(t, e.Waited)
					require.LessOrEqual(t, e.Waited, e.Duration())
					require.Equal(t, seq == 3, e.Err != nil)
					if seq == 1 {
						require.EqualValues(t, map[bool]int{true: 2400, false: 1200}[e.Rank == 0], e.Bytes, "rank %d of the list", e.Rank)
					}
				}
				require.Len(t, seen, 3)
			}
		})
	}
}
