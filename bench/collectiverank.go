package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
)

// Where the ranks of bench collective assume that the others run.
const (
	ranksNear = "near" // on one host
	ranksFar  = "far"  // each on a host of its own
	ranksBare = "bare" // in one process, without muster
)

// reducers are the ranks of one process.
type reducers struct {
	first, size int
	ranks       []*reducer
}

// reducer is one rank.
type reducer struct {
	rank, size int
	group      *pgroup.Group
	comm       *collective.Comm
	bare       *bareRanks // used instead of group and comm
}

// reducersOptions are the options of startReducers.
type reducersOptions struct {
	size, each int // ranks in total, and per process
	how        string
	profile    string
}

// startReducers starts ranks.
func startReducers(ctx context.Context, o reducersOptions) (*team, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &team{cancel: cancel}
	addr := ""
	for first := 0; first < o.size; first += o.each {
		p, err := spawn(ctx, "reducer", strconv.Itoa(first), strconv.Itoa(first+o.each), strconv.Itoa(o.size), o.how, o.profile, addr)
		if err == nil {
			t.ranks = append(t.ranks, p)
			if first == 0 {
				addr, err = p.line()
			}
		}
		if err != nil {
			cancel()
			return nil, err
		}
	}
	return t, nil
}

// beReducer runs the role of the ranks FIRST to END (exclusive) of SIZE: reducer FIRST END SIZE HOW
// PROFILE ADDR. The process of rank 0 first prints its address. From then on each line is WAY BYTES
// COUNT, and the answer is a lap.
func beReducer(args []string) (err error) {
	var first, end, size int
	for i, into := range []*int{&first, &end, &size} {
		if *into, err = strconv.Atoi(args[i]); err != nil {
			return err
		}
	}
	m := &reducers{first: first, size: size}
	for rank := first; rank < end; rank++ {
		m.ranks = append(m.ranks, &reducer{rank: rank, size: size})
	}
	if err := m.meet(args[3], args[5]); err != nil {
		return err
	}
	if folder := args[4]; folder != "" && first == 0 {
		stop, err := profileCPU(filepath.Join(folder, fmt.Sprintf("%s%d.pprof", args[3], end)))
		if err != nil {
			return err
		}
		defer stop()
	}
	return errors.Join(listen(m.answer), m.close())
}

// meet forms the group.
func (m *reducers) meet(how, addr string) error {
	if how == ranksBare {
		emit("nowhere")
		shared := newBareRanks(m.size)
		return m.each(func(r *reducer) error { r.bare = shared; return nil })
	}
	var listener net.Listener
	if m.first == 0 {
		var err error
		if listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		addr = listener.Addr().String()
		emit("%s", addr)
	}
	return m.each(func(r *reducer) (err error) {
		cfg := pgroup.Config{Rank: r.rank, Size: r.size, Timeout: time.Minute}
		if how == ranksFar {
			cfg.Host = "node-" + strconv.Itoa(r.rank)
		}
		if r.rank == 0 {
			cfg.Listener = listener
		} else {
			cfg.Address = addr
		}
		if r.group, err = pgroup.Create(context.Background(), cfg); err != nil {
			return err
		}
		r.comm, err = collective.Open(context.Background(), r.group, &collective.Options{Listen: "127.0.0.1"})
		return err
	})
}

func (m *reducers) close() error {
	return m.each(func(r *reducer) error {
		if r.group == nil {
			return nil
		}
		err := r.comm.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return errors.Join(err, r.group.Shutdown(ctx))
	})
}

// each runs f for all ranks of this process concurrently.
func (m *reducers) each(f func(r *reducer) error) error {
	errs := make([]error, len(m.ranks))
	var wg sync.WaitGroup
	for i, r := range m.ranks {
		wg.Go(func() { errs[i] = f(r) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (m *reducers) answer(line string) error {
	f := strings.Split(line, ";")
	if len(f) != 3 {
		return fmt.Errorf("%q is no turn", line)
	}
	bytes, err1 := strconv.Atoi(f[1])
	count, err2 := strconv.Atoi(f[2])
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("%q is no turn: %w", line, err)
	}
	l, err := m.turn(f[0], bytes, count)
	if err != nil {
		return fmt.Errorf("%s, %d B: %w", f[0], bytes, err)
	}
	b, err := json.Marshal(l)
	if err == nil {
		emit("%s", b)
	}
	return err
}

// turn measures count calls of all ranks of this process.
func (m *reducers) turn(way string, bytes, count int) (all lap, err error) {
	drills := make([]*drill, len(m.ranks))
	took := make([][]float64, len(m.ranks))
	for i := range took {
		took[i] = make([]float64, count)
	}
	at := func(r *reducer) int { return r.rank - m.first }
	if err := m.each(func(r *reducer) (err error) { drills[at(r)], err = r.open(way, bytes); return err }); err != nil {
		return all, err
	}
	if err := m.each(func(r *reducer) error { return drills[at(r)].times(make([]float64, warmUps)) }); err != nil {
		return all, err
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := ownCPU()
	if err := m.each(func(r *reducer) error { return drills[at(r)].times(took[at(r)]) }); err != nil {
		return all, err
	}
	cpu = ownCPU() - cpu
	runtime.ReadMemStats(&after)
	laps := make([]lap, len(m.ranks))
	for i := range laps {
		laps[i].Took = took[i]
	}
	all = merged(laps, isChained(way))
	all.CPU, all.Alloc = micros(cpu), float64(after.TotalAlloc-before.TotalAlloc)/float64(len(m.ranks))
	if !isChained(way) {
		all.Alloc /= 2 // half, since the barrier is a verb too
	}
	return all, nil
}

// times fills took with the duration of each call. A barrier, before, precedes each call, or only
// the first one if calls are chained.
func (d *drill) times(took []float64) error {
	for i := range took {
		if i == 0 || !d.chain {
			if err := d.before(); err != nil {
				return err
			}
		}
		began := time.Now()
		if err := d.call(); err != nil {
			return err
		}
		took[i] = micros(time.Since(began))
	}
	return nil
}

// open prepares a way.
func (r *reducer) open(way string, bytes int) (d *drill, err error) {
	name, who, _ := strings.Cut(way, atWhom)
	name, chained := strings.CutSuffix(name, chainedSuffix)
	d = &drill{chain: chained}
	if r.bare != nil {
		d.before = func() error { r.bare.gate.wait(); return nil }
		d.call = r.bare.open(r.rank, bytes, who == byCopies)
		return d, nil
	}
	v := verbOf(name)
	if v == nil {
		return nil, errors.New("no such verb")
	}
	ctx := context.Background()
	d.before = func() error { return r.comm.Barrier(ctx) }
	d.call = v.open(ctx, r.comm, bytes)
	if name == allReduceVerb {
		return d, check(ctx, r.comm, bytes)
	}
	return d, nil
}

// check runs one all-reduce whose result is known.
func check(ctx context.Context, c *collective.Comm, bytes int) error {
	rank, size := c.Group().Rank(), c.Group().Size()
	x := make([]float32, bytes/4)
	for i := range x {
		x[i] = float32(rank + 1)
	}
	if err := collective.AllReduce(ctx, c, collective.Sum, x); err != nil {
		return err
	}
	for i, v := range x {
		if v != float32(size*(size+1)/2) {
			return fmt.Errorf("element %d of the sum is %v", i, v)
		}
	}
	return nil
}
