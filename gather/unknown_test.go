package gather_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// forgetful loses the reply to the first request for which lose is true, after it was carried out.
type forgetful struct {
	store.Engine
	lose func(*wire.Request) bool
	lost atomic.Bool
}

func (e *forgetful) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	err := e.Engine.Do(ctx, req, rep)
	if e.lose(req) && !e.lost.Swap(true) {
		return &store.Error{Op: "collect", Err: store.ErrUnknown, Detail: "the reply was lost"}
	}
	return err
}

// TestUnknownOffers: a rank that does not know whether its offers were taken ends the verb for all ranks, or, if that has succeeded for
// them, their next one. No rank gets what belongs to another verb, and after that all are together again.
func TestUnknownOffers(t *testing.T) {
	const rounds, fault = 7, 3
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			s := store.New(&forgetful{Engine: new(store.Memory), lose: func(req *wire.Request) bool { return offers(req, 1) && req.Group.Seq == fault+1 }})
			defer s.Close()
			o := gather.Options{}
			if w.dir {
				o.Dir = t.TempDir()
			}
			job{way: w, n: 2, meet: s, o: o}.run(t, func(r *rank) {
				for round := range rounds {
					ctx, cancel := context.WithTimeout(r.ctx, 3*time.Second)
					res, err := r.ga.Tensors(ctx, []int{0, 1}, filled(10*round+r.me(), 1000))
					cancel()
					switch {
					case err == nil:
						for rank, got := range res.Present() {
							equal(r.T, filled(10*round+rank, 1000), got)
						}
						res.Release()
					case round == fault && r.me() == 1:
						assert.ErrorIs(r, err, store.ErrUnknown)
					case round == fault:
						assert.ErrorIs(r, err, pgroup.ErrAborted)
					default:
						assert.Equal(r, fault+1, round, "rank %d: %v", r.me(), err)
					}
					if err := r.group.Barrier(r.ctx); !assert.NoError(r, err) {
						return
					}
				}
			})
		})
	}
}
