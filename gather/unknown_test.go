package gather_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// forgetful loses the reply to the first request for which lose is true, after the request was
// applied.
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

// overtaken delays a reply of the rank that does not lose its own: its reply to verb e.fault is
// delivered only when the other rank has called the next verb.
type overtaken struct {
	store.Engine
	unknown int
	fault   uint64
	next    chan struct{}
}

func (e *overtaken) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if offers(req, e.unknown, e.fault+1) {
		close(e.next)
	}
	err := e.Engine.Do(ctx, req, rep)
	if offers(req, 1-e.unknown, e.fault) {
		select {
		case <-e.next:
		case <-ctx.Done():
		}
	}
	return err
}

// TestUnknownOffers checks that a rank which does not know whether its offers were accepted is in
// step with the others in the next verb, even if it calls that before they have received those
// offers. In the verb itself, the others wait for the first rank's result.
func TestUnknownOffers(t *testing.T) {
	const rounds, fault = 7, 3
	for _, w := range ways() {
		for unknown := range 2 {
			memory := &forgetful{Engine: new(store.Memory), lose: func(req *wire.Request) bool { return offers(req, unknown, fault+1) }}
			for name, engine := range map[string]store.Engine{
				"": memory,
				" overtakes": &overtaken{
					Engine: &forgetful{Engine: new(store.Memory), lose: memory.lose}, unknown: unknown, fault: fault + 1, next: make(chan struct{}),
				},
			} {
				t.Run(fmt.Sprint(w.name, " rank ", unknown, name), func(t *testing.T) {
					t.Parallel()
					s := store.New(engine)
					defer s.Close()
					job{way: w, n: 2, meet: s}.run(t, func(r *rank) {
						for round := range rounds {
							res, err := gather.Tensors(r.ctx, r.ga, []int{0, 1}, filled(10*round+r.me(), 1000+round))
							switch {
							case err == nil:
								for rank, got := range res.Present() {
									equal(r.T, filled(10*round+rank, 1000+round), got)
								}
								res.Release()
							case r.me() == unknown:
								assert.ErrorIs(r, err, store.ErrUnknown)
								fallthrough
							default:
								assert.Equal(r, fault, round, "rank %d: %v", r.me(), err)
							}
						}
					})
				})
			}
		}
	}
}
