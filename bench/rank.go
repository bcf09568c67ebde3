package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/muster-pg/muster/pgroup"
)

// member is one process of a group: it is in a star and in a muster group, which rank 0 hosts.
type member struct {
	rank, size int
	star       *ray
	group      *pgroup.Group

	kib, mib []byte // to send
	all, got []byte // room for what comes
}

// verb is something that a group does, in both ways.
type verb struct {
	name   string
	fenced bool // each time begins behind a barrier, and is that of the slowest rank
	bare   func(m *member) error
	muster func(ctx context.Context, m *member) error
}

var verbs = []verb{
	{name: "barrier", bare: bareBarrier, muster: musterBarrier},
	{name: "allgather 1 KiB", bare: bareGather, muster: musterGather},
	{name: "broadcast 1 KiB", fenced: true, bare: bareBroadcastKiB, muster: musterBroadcastKiB},
	{name: "broadcast 1 MiB", fenced: true, bare: bareBroadcastMiB, muster: musterBroadcastMiB},
	{name: "pingpong 1 KiB", bare: barePingPong, muster: musterPingPong},
}

func bareBarrier(m *member) error { return m.star.barrier() }

func musterBarrier(ctx context.Context, m *member) error { return m.group.Barrier(ctx) }

func bareGather(m *member) error { return m.star.call(starGather, 0, m.kib, m.all) }

func musterGather(ctx context.Context, m *member) error {
	got, err := pgroup.AllGather(ctx, m.group, m.kib)
	if err == nil && (len(got) != m.size || len(got[m.size-1]) != len(m.kib)) {
		err = errors.New("all-gather: something is missing")
	}
	return err
}

func bareBroadcastKiB(m *member) error { return m.bareBroadcast(m.kib) }
func bareBroadcastMiB(m *member) error { return m.bareBroadcast(m.mib) }

func (m *member) bareBroadcast(v []byte) error {
	reply := m.got[:len(v)]
	if m.rank != 0 {
		v = nil
	}
	return m.star.call(starBroadcast, 0, v, reply)
}

func musterBroadcastKiB(ctx context.Context, m *member) error { return m.musterBroadcast(ctx, m.kib) }

func musterBroadcastMiB(ctx context.Context, m *member) error { return m.musterBroadcast(ctx, m.mib) }

func (m *member) musterBroadcast(ctx context.Context, v []byte) error {
	n := len(v)
	if m.rank != 0 {
		v = nil
	}
	got, err := pgroup.Broadcast(ctx, m.group, 0, v)
	if err == nil && len(got) != n {
		err = errors.New("broadcast: something is missing")
	}
	return err
}

func barePingPong(m *member) error {
	switch m.rank {
	case 0:
		return m.star.call(starSend, 1, m.kib, m.got[:len(m.kib)])
	case 1:
		if err := m.star.call(starSend, 1, nil, m.got[:len(m.kib)]); err != nil {
			return err
		}
		return m.star.call(starSend, 0, m.kib, nil)
	}
	return nil
}

func musterPingPong(ctx context.Context, m *member) error {
	if m.rank > 1 {
		return nil
	}
	if m.rank == 0 {
		if err := pgroup.Send(ctx, m.group, 1, m.kib); err != nil {
			return err
		}
	}
	got, err := pgroup.Recv[[]byte](ctx, m.group, 1-m.rank)
	if err != nil || m.rank == 0 {
		return err
	}
	return pgroup.Send(ctx, m.group, 0, got)
}

// spread is what a series of times came to, in µs.
type spread struct {
	P50, P90, Mean float64
	CPU            float64 // µs of rank 0's process per call
	N              int
}

// finding is what rank 0 tells: one turn of one verb.
type finding struct {
	Verb, Way string
	spread
}

// beRank is the role of a rank: rank RANK SIZE ROUNDS SLICE [STAR GROUP]. Rank 0 hosts, and tells both addresses first.
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
	go func() { _ = listen(func(string) error { return nil }); os.Exit(1) }() // the parent has ended
	if err := m.meet(args[4:]); err != nil {
		return err
	}
	m.kib, m.mib = make([]byte, 1<<10), make([]byte, 1<<20)
	m.got, m.all = make([]byte, 1<<20), make([]byte, m.size<<10)
	if err := m.measure(rounds, slice); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return m.group.Shutdown(ctx)
}

// meet hosts both groups, or goes where they are.
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
		tell("%s %s", addrs[0], addrs[1])
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

// measure does every verb in turns: bare, muster, bare, …
func (m *member) measure(rounds int, slice time.Duration) error {
	ctx := context.Background()
	for _, v := range verbs {
		ways := []struct {
			name string
			call func() error
		}{
			{"bare", func() error { return v.bare(m) }},
			{"muster", func() error { return v.muster(ctx, m) }},
		}
		counts := make([]int, len(ways))
		for round := range rounds {
			for i, way := range ways {
				if round == 0 {
					n, err := m.calibrate(way.call, slice)
					if err != nil {
						return fmt.Errorf("%s, %s: %w", v.name, way.name, err)
					}
					counts[i] = n
				}
				s, err := m.series(way.call, counts[i], v.fenced)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", v.name, way.name, err)
				}
				if m.rank == 0 {
					b, _ := json.Marshal(finding{v.name, way.name, s})
					tell("%s", b)
				}
			}
		}
	}
	return nil
}

// calibrate finds out how many calls fit into a slice; rank 0 decides.
func (m *member) calibrate(call func() error, slice time.Duration) (n int, err error) {
	const trial = 5
	var began time.Time
	for i := range 2 * trial {
		if i == trial {
			began = time.Now()
		}
		if err := call(); err != nil {
			return 0, err
		}
	}
	took := time.Since(began) / trial
	b := make([]byte, 8)
	if m.rank == 0 {
		binary.LittleEndian.PutUint64(b, uint64(min(max(slice/max(took, time.Microsecond), 5), 5000)))
	} else {
		b = nil
	}
	got := make([]byte, 8)
	err = m.star.call(starBroadcast, 0, b, got)
	return int(binary.LittleEndian.Uint64(got)), err
}

// series times n calls.
func (m *member) series(call func() error, n int, fenced bool) (s spread, err error) {
	if err := m.star.barrier(); err != nil {
		return s, err
	}
	took := make([]float64, n)
	cpu := ownCPU()
	for i := range took {
		if fenced {
			if err := m.star.barrier(); err != nil {
				return s, err
			}
		}
		began := time.Now()
		if err := call(); err != nil {
			return s, err
		}
		took[i] = micros(time.Since(began))
	}
	cpu = ownCPU() - cpu
	if fenced {
		if took, err = m.slowest(took); err != nil {
			return s, err
		}
	}
	s = spread{Mean: mean(took), CPU: micros(cpu) / float64(n), N: n}
	slices.Sort(took)
	s.P50, s.P90 = quantile(took, 0.5), quantile(took, 0.9)
	return s, m.star.barrier()
}

// slowest is, for each call, the time of the slowest rank.
func (m *member) slowest(took []float64) ([]float64, error) {
	mine := make([]byte, 0, 8*len(took))
	for _, t := range took {
		mine = binary.LittleEndian.AppendUint64(mine, uint64(t*1e3))
	}
	all := make([]byte, m.size*len(mine))
	if err := m.star.call(starGather, 0, mine, all); err != nil {
		return nil, err
	}
	for i := range took {
		for rank := range m.size {
			took[i] = max(took[i], float64(binary.LittleEndian.Uint64(all[rank*len(mine)+8*i:]))/1e3)
		}
	}
	return took, nil
}
