package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/benchcase"
	"github.com/muster-pg/muster/pgroup"
)

// member is one process of a group: it is in a star and in a muster group, which rank 0 hosts.
type member struct {
	rank, size int
	star       *ray
	group      *pgroup.Group
	got        []byte // what the star delivers
}

// verb is an operation of a group, in both ways.
type verb struct {
	name   string
	of     string // the case that it belongs to
	bytes  int    // size of the object
	fenced bool   // each time begins after a barrier, and is that of the slowest rank
	bare   func(m *member, object []byte) error
}

var verbs = []verb{
	{name: "barrier", of: "barrier", bare: bareBarrier},
	{name: "all-gather 1 KiB", of: "all-gather", bytes: kib, bare: bareGather},
	{name: "broadcast 1 KiB", of: "broadcast", bytes: kib, fenced: true, bare: bareBroadcast},
	{name: "broadcast 1 MiB", of: "broadcast", bytes: mib, fenced: true, bare: bareBroadcast},
	{name: "ping-pong 1 KiB", of: "ping-pong", bytes: kib, bare: barePingPong},
}

// chosen returns the verbs whose name contains what.
func chosen(what string) []verb {
	return slices.DeleteFunc(slices.Clone(verbs), func(v verb) bool { return !strings.Contains(v.name, what) })
}

func bareBarrier(m *member, _ []byte) error { return m.star.barrier() }

func bareGather(m *member, object []byte) error {
	return m.star.call(starGather, 0, object, m.got[:m.size*len(object)])
}

func bareBroadcast(m *member, object []byte) error {
	reply := m.got[:len(object)]
	if m.rank != 0 {
		object = nil
	}
	return m.star.call(starBroadcast, 0, object, reply)
}

func barePingPong(m *member, object []byte) error {
	switch m.rank {
	case 0:
		return m.star.call(starSend, 1, object, m.got[:len(object)])
	case 1:
		if err := m.star.call(starSend, 1, nil, m.got[:len(object)]); err != nil {
			return err
		}
		return m.star.call(starSend, 0, object, nil)
	}
	return nil
}

// spread summarizes a series of times, in µs.
type spread struct {
	P50, P90, Mean float64
	CPU            float64 // µs of all ranks together, per call
	Others         float64 // the share of the CPU time that other processes used
}

// finding is what rank 0 reports: one turn of one verb.
type finding struct {
	Verb, Way string
	spread
}

// beRank runs the role of a rank: rank RANK SIZE ROUNDS SLICE PROFILE VERBS [STAR GROUP]. Rank 0
// hosts both groups, and first prints both addresses.
func beRank(args []string) error {
	var m member
	var rounds int
	var slice time.Duration
	var err error
	for i, into := range []*int{&m.rank, &m.size, &rounds} {
		if *into, err = strconv.Atoi(args[i]); err != nil {
			return err
		}
	}
	if slice, err = time.ParseDuration(args[3]); err != nil {
		return err
	}
	// the parent has ended
	go func() { _ = listen(func(string) error { return nil }); os.Exit(1) }()
	if err := m.meet(args[6:]); err != nil {
		return err
	}
	if folder := args[4]; folder != "" && m.rank < 2 {
		stop, err := profileCPU(filepath.Join(folder, fmt.Sprintf("rank%d.pprof", m.rank)))
		if err != nil {
			return err
		}
		defer stop()
	}
	m.got = make([]byte, max(mib, m.size*kib))
	for _, v := range chosen(args[5]) {
		if err := m.measure(v, rounds, slice); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return m.group.Shutdown(ctx)
}

// meet hosts both groups on rank 0, and connects to them on other ranks.
func (m *member) meet(addrs []string) error {
	cfg := pgroup.Config{Rank: m.rank, Size: m.size, Timeout: time.Minute}
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
	var err error
	if m.star, err = dialStar(addrs[0], m.rank); err != nil {
		return err
	}
	m.group, err = pgroup.Create(context.Background(), cfg)
	return err
}

// measure measures v in turns: bare, muster, bare, …
func (m *member) measure(v verb, rounds int, slice time.Duration) error {
	ctx := context.Background()
	object := make([]byte, v.bytes)
	muster := &benchcase.Rank{Group: m.group, Object: object}
	ways := []struct {
		name  string
		call  func() error
		count int
	}{
		{name: "bare", call: func() error { return v.bare(m, object) }},
		{name: "muster", call: func() error { return benchcase.Find(v.of).Run(ctx, muster) }},
	}
	for i := range ways {
		n, err := m.calibrate(ways[i].call, v.fenced, slice)
		if err != nil {
			return fmt.Errorf("%s: %w", ways[i].name, err)
		}
		ways[i].count = n
	}
	for range rounds {
		for _, way := range ways {
			s, err := m.series(way.call, way.count, v.fenced)
			if err != nil {
				return fmt.Errorf("%s: %w", way.name, err)
			}
			if m.rank == 0 {
				b, _ := json.Marshal(finding{v.name, way.name, s})
				emit("%s", b)
			}
		}
	}
	return nil
}

// calibrate determines how many calls fit into a slice; rank 0 decides.
func (m *member) calibrate(call func() error, fenced bool, slice time.Duration) (n int, err error) {
	const trial = 10
	if _, err := m.times(call, trial, fenced); err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := m.times(call, trial, fenced); err != nil {
		return 0, err
	}
	took := time.Since(began) / trial
	var mine []byte
	if m.rank == 0 {
		mine = binary.LittleEndian.AppendUint64(nil, uint64(min(max(slice/max(took, time.Microsecond), 5), 5000)))
	}
	got := make([]byte, 8)
	err = m.star.call(starBroadcast, 0, mine, got)
	return int(binary.LittleEndian.Uint64(got)), err
}

// times calls call n times, and returns how long each took on this rank, in µs.
func (m *member) times(call func() error, n int, fenced bool) ([]float64, error) {
	took := make([]float64, n)
	for i := range took {
		if fenced {
			if err := m.star.barrier(); err != nil {
				return nil, err
			}
		}
		began := time.Now()
		if err := call(); err != nil {
			return nil, err
		}
		took[i] = micros(time.Since(began))
	}
	return took, nil
}

// series measures n calls.
func (m *member) series(call func() error, n int, fenced bool) (s spread, err error) {
	if err := m.star.barrier(); err != nil {
		return s, err
	}
	w, before := startWatch(), ownCPU()
	took, err := m.times(call, n, fenced)
	if err != nil {
		return s, err
	}
	cpu, err := m.gather([]float64{micros(ownCPU() - before)})
	if err != nil {
		return s, err
	}
	sum := 0.0
	for _, c := range cpu {
		sum += c[0]
	}
	s.Others = w.others(time.Duration(sum * 1e3))
	if fenced {
		all, err := m.gather(took)
		if err != nil {
			return s, err
		}
		for _, other := range all {
			for i, t := range other {
				took[i] = max(took[i], t)
			}
		}
	}
	s.CPU, s.Mean = sum/float64(n), mean(took)
	slices.Sort(took)
	s.P50, s.P90 = quantile(took, 0.5), quantile(took, 0.9)
	return s, m.star.barrier()
}

// gather returns the numbers of all ranks to all. Each rank passes equally many.
func (m *member) gather(mine []float64) ([][]float64, error) {
	out := make([]byte, 0, 8*len(mine))
	for _, v := range mine {
		out = binary.LittleEndian.AppendUint64(out, math.Float64bits(v))
	}
	in := make([]byte, m.size*len(out))
	if err := m.star.call(starGather, 0, out, in); err != nil {
		return nil, err
	}
	all := make([][]float64, m.size)
	for rank := range all {
		for i := range mine {
			all[rank] = append(all[rank], math.Float64frombits(binary.LittleEndian.Uint64(in[rank*len(out)+8*i:])))
		}
	}
	return all, nil
}
