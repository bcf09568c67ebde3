package gather_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

// calls are the verbs, by name.
var calls = map[string]func(r *rank, ctx context.Context, ranks []int) error{
	"gather.tensors": func(r *rank, ctx context.Context, ranks []int) error {
		_, err := gather.Tensors(ctx, r.ga, ranks, filled(r.me(), 3))
		return err
	},
	"gather.tensormaps": func(r *rank, ctx context.Context, ranks []int) error {
		_, err := gather.TensorMaps(ctx, r.ga, ranks, map[string]*tensor.Tensor{"tensor": filled(r.me(), 3)})
		return err
	},
	"gather.configs": func(r *rank, ctx context.Context, ranks []int) error {
		_, err := gather.Configs(ctx, r.ga, ranks, &map[string]int{"rank": r.me()})
		return err
	},
	"gather.concat": func(r *rank, ctx context.Context, ranks []int) error {
		_, err := gather.Concat(ctx, r.ga, ranks, 0, filled(r.me(), 3))
		return err
	},
}

// TestRanksCallDifferentVerbs has one rank call another verb: all ranks get an error that names the
// two verbs, and continue.
func TestRanksCallDifferentVerbs(t *testing.T) {
	overAll(t, 3, func(r *rank) {
		for most := range calls {
			if r.me() == 0 {
				assert.NoError(r, r.group.Store().Set(r.ctx, "most", []byte(most), nil))
			}
			assert.NoError(r, r.group.Barrier(r.ctx))
			// the same on all ranks, though the order of a map is random
			value, err := r.group.Store().Get(r.ctx, "most")
			require.NoError(r, err)
			for _, other := range []string{"gather.tensors", "gather.concat", "gather.configs"} {
				mine := string(value)
				if other == mine {
					continue
				}
				if r.me() == 1 {
					mine = other
				}
				err := calls[mine](r, r.ctx, []int{0, 1, 2})
				assert.ErrorIs(r, err, pgroup.ErrMismatch)
				assert.ErrorContains(r, err, fmt.Sprintf("rank 1 calls %s, and rank 0 %s", other, value))
			}
			assert.NoError(r, r.group.Barrier(r.ctx))
		}
		r.gathers([]int{0, 1, 2}, 0, 10)
	})
}

// TestFirstUse has a rank that is late, or cancels, when a list is first used: the call that it has
// missed fails for all, and the next succeeds on all.
func TestFirstUse(t *testing.T) {
	for name, gone := range map[string]func(r *rank, ranks []int){
		"it is late": func(r *rank, _ []int) {
			_, err := pgroup.Recv[bool](r.ctx, r.group, 0) // rank 0 has cancelled its first call
			assert.NoError(r, err)
		},
		"its time is over": func(r *rank, ranks []int) {
			ctx, cancel := context.WithCancel(r.ctx)
			cancel()
			_, err := gather.Tensors(ctx, r.ga, ranks, filled(r.me(), 3))
			assert.ErrorIs(r, err, context.Canceled)
		},
		"it gives up": func(r *rank, ranks []int) {
			_, err := gather.Tensors(testcluster.Within(r, 20*time.Millisecond), r.ga, ranks, filled(r.me(), 3))
			assert.ErrorIs(r, err, context.DeadlineExceeded)
		},
	} {
		t.Run(name, func(t *testing.T) {
			job{n: 2}.run(t, func(r *rank) {
				ranks := []int{1, 0}
				if r.me() == 1 {
					gone(r, ranks)
					assert.NoError(r, pgroup.Send(r.ctx, r.group, 0, true))
				} else {
					if name == "it is late" {
						_, err := gather.Tensors(testcluster.Within(r, 20*time.Millisecond), r.ga, ranks, filled(r.me(), 3))
						assert.ErrorIs(r, err, pgroup.ErrTimeout)
						assert.NoError(r, pgroup.Send(r.ctx, r.group, 1, true))
					}
					_, err := pgroup.Recv[bool](r.ctx, r.group, 1)
					assert.NoError(r, err)
				}
				_, err := gather.Tensors(r.ctx, r.ga, ranks, filled(r.me(), 3))
				who := 1 // the rank that is ahead, and so has cancelled
				if name == "it is late" {
					who = 0
				}
				assert.ErrorIs(r, err, pgroup.ErrTimeout)
				assert.Equal(r, []int{who}, r.rankError(err).Missing)
				r.gathers(ranks, 5, 100)
			})
		})
	}
}

// TestCloseWhileMeeting closes a Gatherer that waits for the other ranks of a list.
func TestCloseWhileMeeting(t *testing.T) {
	job{n: 2}.run(t, func(r *rank) {
		if r.me() == 1 {
			return
		}
		ended := make(chan error, 1)
		go func() {
			_, err := gather.Tensors(r.ctx, r.ga, []int{0, 1}, nil)
			ended <- err
		}()
		<-time.After(10 * time.Millisecond) // it waits, or is about to
		assert.NoError(r, r.ga.Close())
		select {
		case err := <-ended:
			assert.ErrorIs(r, err, pgroup.ErrClosed)
		case <-time.After(5 * time.Second):
			assert.Fail(r, "the verb does not end")
		}
	})
}

// TestNothingManyTimes joins tensors of very many empty rows.
func TestNothingManyTimes(t *testing.T) {
	overAll(t, 2, func(r *rank) {
		out, err := gather.Concat(r.ctx, r.ga, []int{0, 1}, 1, tensor.New(tensor.U8, 1<<40, 0))
		if assert.NoError(r, err) && r.me() == 0 {
			assert.Equal(r, []int{1 << 40, 0}, out.Shape)
		}
		_, err = gather.Concat(r.ctx, r.ga, []int{0, 1}, 0, tensor.New(tensor.U8, math.MaxInt, 0))
		assert.ErrorIs(r, err, pgroup.ErrMismatch)
		assert.ErrorContains(r, err, "more than there are numbers for")
	})
}

// TestImpossibleOffers casts votes in the name of a sender, with impossible offers: the rank is
// named in the error, and nothing else happens.
func TestImpossibleOffers(t *testing.T) {
	t.Parallel()
	verbs := []string{"gather.tensors", "gather.tensormaps", "gather.configs", "gather.concat", "gather.export"}
	type offered struct {
		way
		what string
	}
	cases := map[string]offered{}
	for what := range gather.Impossible(0, 0) {
		for _, w := range []way{{name: "memory"}, {name: "TCP", apart: true}, {name: "directory", dir: true}} {
			cases[what+"/"+w.name] = offered{w, what}
		}
	}
	testcluster.AtOnce(t, maps.All(cases), func(t *testing.T, c offered) {
		for number, verb := range verbs {
			offer := gather.Impossible(uint8(number), 2)[c.what]
			meet := watch(t, func(req *wire.Request) {
				if offers(req, 1, 2) {
					req.Value = offer
				}
			})
			call, dir := calls[verb], t.TempDir()
			if verb == "gather.export" {
				call = func(r *rank, ctx context.Context, _ []int) error {
					part := gather.Part{Tensor: filled(r.me(), 3), Start: []int{3 * r.me()}, Shape: []int{6}}
					return gather.Export(ctx, r.ga, dir, map[string]gather.Part{"tensor": part}, nil)
				}
			}
			j := job{way: c.way, n: 2, meet: meet}
			j.run(t, func(r *rank) {
				if !r.gathers([]int{0, 1}, 0, 100) {
					return
				}
				_ = r.rankError(call(r, testcluster.Within(r, 300*time.Millisecond), []int{0, 1}))
			})
		}
	})
}

// TestAnotherListsExport has a first rank that asks over one list's stream for an offer of another
// list, and reads none of it: the sender still ends before its deadline.
func TestAnotherListsExport(t *testing.T) {
	t.Parallel()
	job{way: way{apart: true}, n: 3}.run(t, func(r *rank) {
		a, b := []int{0, 1}, []int{0, 1, 2}
		if r.me() < 2 && !r.gathers(a, 0, 1000) || !r.gathers(b, 0, 1000) {
			return
		}
		large := filled(1, 8<<20)
		// all have the result: a rank that is late would be missing instead
		assert.NoError(r, r.group.Barrier(r.ctx))
		if r.me() == 0 {
			assert.NoError(r, gather.Grab(r.ctx, r.ga, "0 1", "0 1 2", 1))
		} else {
			_, err := gather.Tensors(testcluster.Within(r, 2*time.Second), r.ga, b, large)
			assert.ErrorIs(r, err, pgroup.ErrTimeout)
		}
		assert.NoError(r, r.group.Barrier(r.ctx))
	})
}

// TestDisagreementsTakeNoMemory has ranks that disagree repeatedly, with tensors that are allocated
// in a small arena, and freed after each time.
func TestDisagreementsTakeNoMemory(t *testing.T) {
	sharing(t)
	job{n: 2}.run(t, func(r *rank) {
		arena, err := shm.NewArena(&shm.Options{Segment: 4 << 20, Limit: 16 << 20})
		require.NoError(r, err)
		defer arena.Close()
		ga, err := gather.Open(r.ctx, r.group, &gather.Options{Arena: arena})
		require.NoError(r, err)
		defer ga.Close()
		for range 30 {
			x, err := tensor.NewIn(arena, tensor.U8, 1<<20+r.me())
			require.NoError(r, err)
			_, err = gather.Tensors(r.ctx, ga, []int{0, 1}, x)
			assert.ErrorIs(r, err, pgroup.ErrMismatch)
			arena.Free(x.Data)
			_, err = arena.Alloc(64) // a small block that stays, in whichever segment is used
			assert.NoError(r, err)
		}
	})
}
