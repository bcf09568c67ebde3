package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/pgroup"
)

// gatherer is one rank of bench gather. It is in a star, and in two muster groups of the same
// processes: in one they assume that all are on one host, in the other that each is on a host of
// its own. Rank 0 hosts the star and the store.
type gatherer struct {
	rank, size int
	dir        string // for files
	star       *ray
	near, far  *pgroup.Group
	list       []int // all ranks
	open       []*pgroup.Group
}

// warmUps is the number of calls of a turn that are not counted: they create segments and touch
// pages.
const warmUps = 3

// lap is what one rank reports of a turn.
type lap struct {
	Took  []float64 // µs, of each call
	CPU   float64   // µs, of all calls and the overhead around them
	Alloc float64   // bytes that a rank allocated in all calls, if known
}

// drill is a measurement: all ranks run call concurrently.
type drill struct {
	chain  bool         // calls follow each other without a barrier
	before func() error // if not nil, runs before each call, and is not measured
	call   func() error
	after  []func() error // runs at the end, in reverse order
}

func (d *drill) close() (err error) {
	for len(d.after) > 0 {
		f := d.after[len(d.after)-1]
		d.after = d.after[:len(d.after)-1]
		err = errors.Join(err, f())
	}
	return err
}

// beGatherer runs the role of a rank: gatherer RANK SIZE DIR PROFILE [STAR GROUP]. Rank 0 first
// prints both addresses. From then on each line is WAY BYTES COUNT, and the answer is a lap.
func beGatherer(args []string) (err error) {
	m := &gatherer{dir: args[2]}
	for i, into := range []*int{&m.rank, &m.size} {
		if *into, err = strconv.Atoi(args[i]); err != nil {
			return err
		}
	}
	for rank := range m.size {
		m.list = append(m.list, rank)
	}
	if err := m.meet(args[4:]); err != nil {
		return err
	}
	if folder := args[3]; folder != "" && m.rank < 2 {
		stop, err := profileCPU(filepath.Join(folder, fmt.Sprintf("gatherer%d.pprof", m.rank)))
		if err != nil {
			return err
		}
		defer stop()
	}
	if err := listen(m.answer); err != nil {
		return err
	}
	for _, g := range m.open {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err = errors.Join(err, g.Shutdown(ctx))
		cancel()
	}
	return err
}

// meet forms the groups. The members of the far group rendezvous in the store of the near one.
func (m *gatherer) meet(addrs []string) (err error) {
	cfg := pgroup.Config{Name: "near", Rank: m.rank, Size: m.size, Timeout: time.Minute}
	if m.rank == 0 {
		star, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go func() { _ = serveStar(star, m.size) }()
		if cfg.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		addrs = []string{star.Addr().String(), cfg.Listener.Addr().String()}
		emit("%s %s", addrs[0], addrs[1])
	} else {
		cfg.Address = addrs[1]
	}
	if m.star, err = dialStar(addrs[0], m.rank); err != nil {
		return err
	}
	if m.near, err = pgroup.Create(context.Background(), cfg); err != nil {
		return err
	}
	cfg.Name, cfg.Host, cfg.Listener, cfg.Address = "far", "node-"+strconv.Itoa(m.rank), nil, "muster://"+addrs[1]
	m.far, err = pgroup.Create(context.Background(), cfg)
	m.open = []*pgroup.Group{m.far, m.near} // the near group hosts the store, and is closed last
	return err
}

func (m *gatherer) answer(line string) error {
	f := strings.Split(line, ";")
	if len(f) != 3 {
		return fmt.Errorf("%q is no turn", line)
	}
	way := gatherWay(f[0])
	bytes, err1 := strconv.Atoi(f[1])
	count, err2 := strconv.Atoi(f[2])
	if err := errors.Join(err1, err2); way == nil || err != nil {
		return fmt.Errorf("%q is no turn: %w", line, err)
	}
	l, err := m.turn(way, bytes, count)
	if err != nil {
		return fmt.Errorf("%s, %d B: %w", way.name, bytes, err)
	}
	b, err := json.Marshal(l)
	if err == nil {
		emit("%s", b)
	}
	return err
}

// turn measures count calls, each after a barrier.
func (m *gatherer) turn(way *way, bytes, count int) (l lap, err error) {
	d := new(drill)
	defer func() { err = errors.Join(err, d.close()) }()
	if err := way.open(m, d, bytes); err != nil {
		return l, err
	}
	var cpu time.Duration
	for i := range warmUps + count {
		if i == warmUps {
			cpu = ownCPU()
		}
		took, err := m.once(d)
		if err != nil {
			return l, err
		}
		if i >= warmUps {
			l.Took = append(l.Took, took)
		}
	}
	l.CPU = micros(ownCPU() - cpu)
	return l, m.star.barrier()
}

func (m *gatherer) once(d *drill) (took float64, err error) {
	if d.before != nil {
		if err := d.before(); err != nil {
			return 0, err
		}
	}
	if !d.chain {
		if err := m.star.barrier(); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	err = d.call()
	return micros(time.Since(began)), err
}

// file returns the file that rank 0 writes; it is removed at the end.
func (m *gatherer) file(d *drill, folder string) (f *os.File, err error) {
	if m.rank != 0 {
		return nil, nil
	}
	if f, err = os.CreateTemp(folder, "muster-bench-*.safetensors"); err != nil {
		return nil, err
	}
	d.after = append(d.after, f.Close, func() error { return os.Remove(f.Name()) })
	return f, nil
}
