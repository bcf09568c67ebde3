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
	"time"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
)

// Where ranks assume that the others run.
const (
	near = iota // on one host
	far         // each on a separate host
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
}

// drill is a measurement: all ranks run call concurrently.
type drill struct {
	chain bool           // calls follow each other without a barrier
	verbs int            // of a Comm, for each call: the fence may be one
	fence func() error   // the barrier before a call
	call  func() error   // what is measured
	after []func() error // runs at the end, in reverse order
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
		took[i] = micros(time.Since(began))
	}
	return nil
}

// beRank runs the role of a rank: rank RANK SIZE DIR [STAR GROUP]. The process of rank 0 first prints the
// addresses of the star and the store. From then on each line is WAY;BYTES;COUNT, and the answer is a lap.
func beRank(args []string) (err error) {
	r := &rank{dir: args[2], addrs: args[3:]}
	for i, into := range []*int{&r.rank, &r.size} {
		if *into, err = strconv.Atoi(args[i]); err != nil {
			return err
		}
	}
	if r.rank == 0 {
		star, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go func() { _ = serveStar(star, r.size) }()
		if r.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		r.addrs = []string{star.Addr().String(), r.listener.Addr().String()}
		emit("%s %s", r.addrs[0], r.addrs[1])
	}
	if err := r.meet(); err != nil {
		return err
	}
	return errors.Join(listen(r.answer), r.close())
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

func (r *rank) answer(line string) error {
	f := strings.Split(line, ";")
	if len(f) != 3 {
		return fmt.Errorf("%q is no turn", line)
	}
	bytes, err1 := strconv.Atoi(f[1])
	count, err2 := strconv.Atoi(f[2])
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("%q is no turn: %w", line, err)
	}
	l, err := r.turn(f[0], bytes, count)
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

// turn measures count calls.
func (r *rank) turn(way string, bytes, count int) (l lap, err error) {
	d := &drill{fence: r.star.barrier}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := r.open(d, way, bytes); err != nil {
		return l, err
	}
	if err := d.times(make([]float64, warmUps)); err != nil {
		return l, err
	}
	l.Took = make([]float64, count)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := ownCPU()
	if err := d.times(l.Took); err != nil {
		return l, err
	}
	l.CPU = micros(ownCPU() - cpu)
	runtime.ReadMemStats(&after)
	l.Alloc = float64(after.TotalAlloc-before.TotalAlloc) / float64(max(d.verbs, 1))
	return l, r.star.barrier()
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
	}
	if w := gatherWay(way); w != nil {
		return w.open(r, d, bytes)
	}
	return errors.New("no such way")
}
