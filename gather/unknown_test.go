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

// unknownOffers is a store that loses its reply to the offer of one rank in a verb, once it was applied. If it
// is overtaken, it delivers the other rank's reply only when the first one has called the next verb.
func unknownOffers(unknown int, verb uint64, overtaken bool) store.Engine {
	var lost atomic.Bool
	next := make(chan struct{})
	return &watched{new(store.Memory), func(req *wire.Request) {
		if offers(req, unknown, verb+1) {
			close(next)
		}
	}, func(ctx context.Context, req *wire.Request) error {
		if offers(req, unknown, verb) && !lost.Swap(true) {
			return &store.Error{Op: "collect", Err: store.ErrUnknown, Detail: "the reply was lost"}
		}
		if overtaken && offers(req, 1-unknown, verb) {
			select {
			case <-next:
			case <-ctx.Done():
			}
		}
		return nil
	}}
}

// TestUnknownOffers checks that a rank which does not know whether its offers were accepted is in
// step with the others in the next verb, even if it calls that before they have received those
// offers. In the verb itself, the others wait for the first rank's result.
func TestUnknownOffers(t *testing.T) {
	const rounds, fault = 7, 3
	for _, w := range ways() {
		for unknown := range 2 {
			for _, overtaken := range []bool{false, true} {
				t.Run(fmt.Sprint(w.name, " rank ", unknown, " overtaken ", overtaken), func(t *testing.T) {
					t.Parallel()
					s := store.New(unknownOffers(unknown, fault+1, overtaken))
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
