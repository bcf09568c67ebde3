package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
)

// Where ranks assume that the others run.
const (
	near = iota // on one host
	far         // each on a host of its own
)

// rank is one rank of bench groups, gather and collective. It is in a star, and in one or two muster
// groups. Rank 0 hosts the star and the store.
type rank struct {
	rank, size int
	dir        string // for files
	addrs      []string
	listener   net.Listener // rank 0's, of the store
	star       *ray
	groups     [2]*pgroup.Group
	comms      [2]*collective.Comm
	bare       *bareRanks // those of this process
}

// drill is a measurement: all ranks run call concurrently.
type drill struct {
	chain bool                          // calls follow each other without a barrier
	stamp func(began time.Time) float64 // if not nil, what is measured of a call, in place of how long it takes
	verbs int                           // of a Comm, for each call: the fence may be one
	fence func() error                  // the barrier before a call
	call  func() error                  // what is measured
	after []func() error                // runs at the end, in reverse order
}

func (d *drill) close() (err error) {
	for len(d.after) > 0 {
		f := d.after[len(d.after)-1]
		d.after = d.after[:len(d.after)-1]
		err = errors.Join(err, f())
	}
	return err
}

// times fills took with how long each of as many calls takes, in µs.
func (d *drill) times(took []float64) error {
	for i := range took {
		if i == 0 || !d.chain {
			if err := d.fence(); err != nil {
				return err
			}
		}
		began := time.Now()
		if err := d.call(); err != nil {
			return err
		}
		if d.stamp != nil {
			took[i] = d.stamp(began)
		} else {
			took[i] = micros(time.Since(began))
		}
	}
	return nil
}

// localRanks are the ranks of one process.
type localRanks []*rank

// beRank runs the role of the ranks FIRST to END (exclusive) of SIZE: rank FIRST END SIZE DIR [STAR
// GROUP]. The process of rank 0 first prints the addresses of the star and the store. From then on
// each line is WAY;BYTES;COUNT, and the answer is a lap.
func beRank(args []string) (err error) {
	var first, end, size int
	for i, into := range []*int{&first, &end, &size} {
		if *into, err = strconv.Atoi(args[i]); err != nil {
			return err
		}
	}
	addrs := args[4:]
	var listener net.Listener
	if first == 0 {
		star, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go func() { _ = serveStar(star, size) }()
		if listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		addrs = []string{star.Addr().String(), listener.Addr().String()}
		emit("%s %s", addrs[0], addrs[1])
	}
	var rs localRanks
	bare := newBareRanks(end - first)
	for i := first; i < end; i++ {
		rs = append(rs, &rank{rank: i, size: size, dir: args[3], addrs: addrs, listener: listener, bare: bare})
	}
	if err := rs.each(func(_ int, r *rank) error { return r.meet() }); err != nil {
		return err
	}
	return errors.Join(listen(rs.answer), rs.each(func(_ int, r *rank) error { return r.close() }))
}

// meet connects to the star and forms the near group.
func (r *rank) meet() (err error) {
	if r.star, err = dialStar(r.addrs[0], r.rank); err == nil {
		_, err = r.group(near)
	}
	return err
}

// group returns the rank's group, which all ranks form at its first use. The members of the far group
// rendezvous in the store of the near one.
func (r *rank) group(where int) (*pgroup.Group, error) {
	if r.groups[where] == nil {
		cfg := pgroup.Config{Name: "near", Rank: r.rank, Size: r.size, Timeout: time.Minute, Address: r.addrs[1]}
		switch {
		case where == far:
			cfg.Name, cfg.Host, cfg.Address = "far", "node-"+strconv.Itoa(r.rank), "muster://"+r.addrs[1]
		case r.rank == 0:
			cfg.Listener, cfg.Address = r.listener, ""
		}
		g, err := pgroup.Create(context.Background(), cfg)
		if err != nil {
			return nil, err
		}
		r.groups[where] = g
	}
	return r.groups[where], nil
}

// comm returns the Comm of a group, likewise.
func (r *rank) comm(where int) (*collective.Comm, error) {
	if r.comms[where] == nil {
		g, err := r.group(where)
		if err != nil {
			return nil, err
		}
		if r.comms[where], err = collective.Open(context.Background(), g, &collective.Options{Listen: "127.0.0.1"}); err != nil {
			return nil, err
		}
	}
	return r.comms[where], nil
}

func (r *rank) close() (err error) {
	for _, c := range r.comms {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	for _, where := range []int{far, near} { // the near group hosts the store, and is closed last
		if g := r.groups[where]; g != nil {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			err = errors.Join(err, g.Shutdown(ctx))
			cancel()
		}
	}
	return err
}

// each runs f for all ranks of this process concurrently; i is their index in it.
func (rs localRanks) each(f func(i int, r *rank) error) error {
	errs := make([]error, len(rs))
	var wg sync.WaitGroup
	for i, r := range rs {
		wg.Go(func() { errs[i] = f(i, r) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (rs localRanks) answer(line string) error {
	f := strings.Split(line, ";")
	if len(f) != 3 {
		return fmt.Errorf("%q is no turn", line)
	}
	bytes, err1 := strconv.Atoi(f[1])
	count, err2 := strconv.Atoi(f[2])
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("%q is no turn: %w", line, err)
	}
	l, err := rs.turn(f[0], bytes, count)
	if err != nil {
		return fmt.Errorf("%s, %d B: %w", f[0], bytes, err)
	}
	b, err := json.Marshal(l)
	if err == nil {
		emit("%s", b)
	}
	return err
}

// warmUps is the number of calls of a turn that are not counted: they create segments and touch
// pages.
const warmUps = 3

// turn measures count calls of all ranks of this process.
func (rs localRanks) turn(way string, bytes, count int) (all lap, err error) {
	drills, laps := make([]*drill, len(rs)), make([]lap, len(rs))
	defer func() {
		err = errors.Join(err, rs.each(func(i int, _ *rank) error { return drills[i].close() }))
	}()
	if err := rs.each(func(i int, r *rank) (err error) {
		drills[i] = &drill{fence: r.star.barrier}
		if err = r.open(drills[i], way, bytes); err == nil {
			err = drills[i].times(make([]float64, warmUps))
		}
		return err
	}); err != nil {
		return all, err
	}
	for i := range laps {
		laps[i].Took = make([]float64, count)
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := ownCPU()
	if err := rs.each(func(i int, _ *rank) error { return drills[i].times(laps[i].Took) }); err != nil {
		return all, err
	}
	cpu = ownCPU() - cpu
	runtime.ReadMemStats(&after)
	all = merged(laps, isChained(way))
	all.CPU, all.Alloc = micros(cpu), float64(after.TotalAlloc-before.TotalAlloc)/float64(max(drills[0].verbs, 1)*len(rs))
	return all, rs.each(func(_ int, r *rank) error { return r.star.barrier() })
}

// open prepares a way.
func (r *rank) open(d *drill, way string, bytes int) error {
	verb, who, _ := strings.Cut(way, atWhom)
	verb, d.chain = strings.CutSuffix(verb, chainedSuffix)
	switch who {
	case byStar, byGroup:
		return r.openGroupVerb(d, verb, who, bytes)
	case byMemory:
		return r.openSlices(d, verb, near, bytes)
	case byTCP:
		return r.openSlices(d, verb, far, bytes)
	case byBare, byCopies:
		d.fence = func() error { r.bare.gate.wait(); return nil }
		d.call = r.bare.open(r.rank, bytes, who == byCopies)
		return nil
	}
	if w := gatherWay(way); w != nil {
		return w.open(r, d, bytes)
	}
	return errors.New("no such way")
}
