package gather_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

var address = regexp.MustCompile(`127\.0\.0\.1:\d{5}`)

// behindProxy returns a job of n hosts, whose ranks get a proxy's address in place of that of rank
// 0's listener.
func behindProxy(t *testing.T, n int, o gather.Options) (job, *testcluster.Proxy) {
	proxy := testcluster.NewProxy(t, "127.0.0.1:1")
	meet := watch(t, func(req *wire.Request) {
		if req.Op != wire.OpCollect || req.Group.Channel != "\x00link gather" || req.Group.Rank != 0 {
			return
		}
		// ports of five digits, as the kernel assigns
		if own := address.Find(req.Value); len(own) == len(proxy.Addr()) {
			proxy.Target(string(own))
			req.Value = bytes.Replace(bytes.Clone(req.Value), own, []byte(proxy.Addr()), 1)
		}
	})
	o.Listen = "127.0.0.1"
	return job{way: way{apart: true}, n: n, meet: meet, o: o}, proxy
}

// TestDataLink breaks the connection that carries the data of a rank, after its first bytes: all
// ranks get one failure, before their deadlines, which names that rank. The next gather works.
func TestDataLink(t *testing.T) {
	t.Parallel()
	type linkFault struct{ on, off func(*testcluster.Proxy) }
	testcluster.AtOnce(t, maps.All(map[string]linkFault{
		"reset":      {func(p *testcluster.Proxy) { p.Cut(testcluster.RST) }, func(*testcluster.Proxy) {}},
		"closed":     {func(p *testcluster.Proxy) { p.Cut(testcluster.FIN) }, func(*testcluster.Proxy) {}},
		"stalled":    {func(p *testcluster.Proxy) { p.Stall(true) }, func(p *testcluster.Proxy) { p.Stall(false) }},
		"black hole": {func(p *testcluster.Proxy) { p.Blackhole(true) }, func(p *testcluster.Proxy) { p.Blackhole(false) }},
		"refused":    {func(p *testcluster.Proxy) { p.Refuse(true); p.Cut(testcluster.RST) }, func(p *testcluster.Proxy) { p.Refuse(false) }},
	}), func(t *testing.T, fault linkFault) {
		j, proxy := behindProxy(t, 3, gather.Options{})
		failures, dir := make([]string, 3), t.TempDir()
		j.run(t, func(r *rank) {
			ranks := []int{0, 1, 2}
			if !r.gathers(ranks, 0, 1000) {
				return
			}
			assert.NoError(r, r.group.Barrier(r.ctx)) // all have the time from here on, of which the report has a tenth
			x := filled(1, 4<<20)
			mine := map[string]gather.Part{}
			end := func() {}
			switch r.me() {
			case 0: // the owner
				mine["w"] = gather.Part{Tensor: &tensor.Tensor{DType: x.DType, Shape: []int{1}, Data: x.Data[:4]}, Start: []int{0}, Shape: x.Shape}
				proxy.Throttle(16 << 20)
				end = r.whenWritten(dir, 1<<20, func() { fault.on(proxy) })
			case 1:
				mine["w"] = gather.Part{Tensor: &tensor.Tensor{DType: x.DType, Shape: []int{4<<20 - 1}, Data: x.Data[4:]}, Start: []int{1}, Shape: x.Shape}
			}
			err := gather.Export(testcluster.Within(r, 20*time.Second), r.ga, dir, mine, nil)
			end()
			re := r.rankError(err)
			failures[r.me()] = failureText(re)
			if errors.Is(err, pgroup.ErrTimeout) {
				assert.Equal(r, []int{1}, re.Missing, "%v", err)
			} else {
				assert.Equal(r, 1, re.By, "%v", err)
			}
			assert.NoError(r, r.group.Barrier(r.ctx))
			if r.me() == 0 {
				fault.off(proxy)
				proxy.Throttle(0)
			}
			assert.NoError(r, r.group.Barrier(r.ctx))
			r.gathers(ranks, 10, 1<<20)
		})
		assert.Equal(t, failures[0], failures[1])
		assert.Equal(t, failures[0], failures[2])
	})
}

// whenWritten calls do when a file to which ranks export to dir has n bytes. The function that it returns
// ends the watch and waits for it; the Export has ended then.
func (r *rank) whenWritten(dir string, n int64, do func()) (end func()) {
	var watch sync.WaitGroup
	ctx, cancel := context.WithCancel(r.ctx)
	watch.Go(func() {
		for tick := time.Tick(time.Millisecond); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick:
			}
			parts, _ := filepath.Glob(filepath.Join(dir, ".muster-export-*.part"))
			for _, path := range parts {
				if st, err := os.Stat(path); err == nil && st.Size() >= n {
					do()
					return
				}
			}
		}
	})
	return func() {
		cancel()
		watch.Wait()
	}
}

// failureText returns the part of an error that is the same on every rank.
func failureText(re *pgroup.RankError) string {
	return fmt.Sprint(re.Code, " by ", re.By, " missing ", re.Missing, " lost ", re.Lost, " left ", re.Left)
}

// deed is what one rank does in one verb.
type deed int

const (
	gives deed = iota
	isAbsent
	cancels
	differs
	breaks
	hurries // with a deadline that may pass before the others call
	deeds
)

// play is one verb: what each rank of a list does.
type play struct {
	ranks []int
	deeds []deed
	n     int
}

// plays returns a sequence of verbs on a list, the same for the same seed.
func plays(seed uint64, ranks []int, n int) (all []play) {
	chance := rand.New(rand.NewPCG(seed, 0))
	for range n {
		p := play{ranks: ranks, n: chance.IntN(20_000)}
		for range ranks {
			d := gives
			if chance.IntN(3) == 0 {
				d = deed(chance.IntN(int(deeds)))
			}
			p.deeds = append(p.deeds, d)
		}
		all = append(all, p)
	}
	return all
}

// ending is the result of a verb on one rank; its failure is empty if the store did not report one.
type ending struct {
	failure string
	err     error
}

// act executes the part of one rank in p.
func (p play) act(ctx context.Context, t *testing.T, ga *gather.Gatherer, me, number int) ending {
	mine := filled(number+me, p.n)
	switch i := slices.Index(p.ranks, me); p.deeds[i] {
	case isAbsent:
		mine = nil
	case cancels:
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		go cancel()
	case differs:
		mine = tensor.New(tensor.I8, 3)
	case breaks:
		mine = &tensor.Tensor{DType: tensor.F32, Shape: []int{3}}
	case hurries:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
	}
	res, err := gather.Tensors(ctx, ga, p.ranks, mine)
	if err != nil {
		re, ok := errors.AsType[*pgroup.RankError](err)
		switch {
		case errors.Is(err, pgroup.ErrUnknown):
			return ending{"", err}
		case !ok:
			return ending{err.Error(), err}
		}
		return ending{failureText(re), err}
	}
	defer res.Release()
	for rank, got := range res.Present() {
		if p.deeds[slices.Index(p.ranks, rank)] != differs {
			equal(t, filled(number+rank, p.n), got)
		}
	}
	return ending{"success", nil}
}

// TestManyListsAtOnce has gatherers of overlapping groups, each with several lists. On all lists
// ranks are absent, differ, cancel and break at random: all ranks of a list always get the same
// result.
func TestManyListsAtOnce(t *testing.T) {
	t.Parallel()
	n := testcluster.Form(15, 500)
	groups := [][]int{{0, 1, 2, 3}, {0, 1, 2}, {3, 2, 1}}
	lists := [][]int{{0, 1, 2}, {2, 0}, {1, 2, 0}}
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			var mu sync.Mutex
			ends := map[string]map[int]ending{} // of a verb, by rank
			o := gather.Options{}
			if w.dir {
				o.Dir = t.TempDir()
			}
			w.run(t, 4, o, func(r *rank) {
				var all sync.WaitGroup
				defer all.Wait()
				for k, members := range groups {
					if !slices.Contains(members, r.me()) {
						continue
					}
					g, err := r.group.Sub(r.ctx, fmt.Sprint("group ", k), members...)
					if !assert.NoError(r, err) {
						return
					}
					all.Go(func() {
						defer g.Close()
						ga, err := gather.Open(r.ctx, g, &o)
						if !assert.NoError(r, err) {
							return
						}
						defer ga.Close()
						var within sync.WaitGroup
						for l, ranks := range lists {
							if slices.Contains(ranks, g.Rank()) {
								within.Go(func() {
									// sets up the list for the later calls
									(&rank{T: r.T, ctx: r.ctx, group: g, ga: ga}).gathers(ranks, 0, 10)
									for v, p := range plays(uint64(10*k+l), ranks, n) {
										end := p.act(r.ctx, r.T, ga, g.Rank(), 1000*v)
										mu.Lock()
										name := fmt.Sprintf("group %d list %v verb %d %v", k, ranks, v, p.deeds)
										if ends[name] == nil {
											ends[name] = map[int]ending{}
										}
										ends[name][g.Rank()] = end
										mu.Unlock()
									}
								})
							}
						}
						within.Wait()
						assert.NoError(r, g.Barrier(r.ctx))
					})
				}
			})
			for name, by := range ends {
				want := ""
				for _, end := range by {
					want = cmp.Or(want, end.failure)
				}
				for _, end := range by {
					if end.failure != "" && end.failure != want {
						assert.Fail(t, "ranks got different failures", "%s: %+v", name, by)
						break
					}
				}
			}
		})
	}
}

// TestLateFirstRank delays, for the first rank, the reply that all ranks have made their offers.
// The sender has finished that verb by then: it closes, or fails in the next verb, and connects
// again. The first rank still gets the tensor that was offered to it.
func TestLateFirstRank(t *testing.T) {
	ranks := []int{0, 1}
	for name, meanwhile := range map[string]func(r *rank){
		"it closes": func(r *rank) { assert.NoError(r, r.ga.Close()) },
		"it fails": func(r *rank) {
			for range 3 {
				_, err := gather.Tensors(testcluster.Within(r, 20*time.Millisecond), r.ga, ranks, r.tensor(1, 5000))
				assert.ErrorIs(r, err, pgroup.ErrTimeout)
			}
		},
	} {
		for _, w := range ways() {
			// the first rank does its part before the others have finished
			if w.apart || w.dir || w.mixed {
				continue
			}
			t.Run(name+"/"+w.name, func(t *testing.T) {
				done := make(chan struct{})
				meet := store.New(&watched{Engine: testcluster.Store(t)(), after: func(_ context.Context, req *wire.Request) error {
					if offers(req, 0, 3) {
						<-done
					}
					return nil
				}})
				defer meet.Close()
				job{way: w, n: 2, meet: meet}.run(t, func(r *rank) {
					mine := r.tensor(10*r.me(), 5000)
					for range 2 { // the second gather shows that later verbs need one record
						r.gather(ranks, mine).Release()
					}
					res := r.gather(ranks, mine)
					if r.me() == 1 {
						meanwhile(r)
						close(done)
					} else {
						equal(r.T, filled(10, 5000), res.Items[1].Value)
					}
					res.Release()
				})
			})
		}
	}
}

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
