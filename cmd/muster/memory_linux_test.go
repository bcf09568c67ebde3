package main_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Limits of the attacked server. Its memory may exceed their sum by a fifth.
const (
	attackedBytes   = 64 << 20 // of keys and values
	attackedHeld    = 96 << 20
	attackedBuffers = 96 << 20
	attackedLimit   = attackedBytes + attackedHeld + attackedBuffers
	attackers       = 4
)

// TestMemoryUnderAttack lets clients make a server hold as much memory as they can, in different
// ways. It checks that the resident memory stays below the sum of the limits plus a fifth, that the
// clients get errors that name a limit, and that other clients are served meanwhile. Package core has
// the calls that count against Limits.Held.
func TestMemoryUnderAttack(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: the race detector takes several times as much memory")
	}
	t.Parallel()
	for name, c := range map[string]struct {
		refuse string // text of the errors; "" if there are none
		attack func(a *attacker)
	}{
		"watches":      {"Limits.Held", (*attacker).watches},
		"large reads":  {"ServerLimits.Buffers", (*attacker).reads},
		"half a frame": {"", (*attacker).halfFrames},
		"sends":        {"Limits.Held", (*attacker).sends},
	} {
		t.Run(name, func(t *testing.T) {
			p, at := serve(t, "--max-bytes", "64MiB", "--max-held", "96MiB", "--max-buffers", "96MiB")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			a := &attacker{t: t, ctx: ctx, at: strings.TrimPrefix(at, "muster://")}
			c.attack(a)
			a.works()
			cancel()
			a.calls.Wait()
			peak := peakMemory(t, p.cmd.Process.Pid)
			require.LessOrEqual(t, peak, int64(attackedLimit+attackedLimit/5), "the server had %d MiB, its limits add up to %d", peak>>20, attackedLimit>>20)
			said, _ := a.said.Load().(string)
			require.Contains(t, said, c.refuse)
		})
	}
}

// peakMemory returns the peak of the resident memory of a process.
func peakMemory(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	require.NoError(t, err)
	return kib << 10
}

// attacker makes a server hold memory.
type attacker struct {
	t     *testing.T
	ctx   context.Context
	at    string
	calls sync.WaitGroup
	said  atomic.Value // the last error
}

func (a *attacker) dial() *store.Store { return testcluster.Dial(a.t, a.at, nil) }

// works checks that other clients are served.
func (a *attacker) works() {
	s := a.dial()
	ctx, cancel := context.WithTimeout(a.ctx, 20*time.Second)
	defer cancel()
	if _, err := s.Add(ctx, "n", 1); err != nil && !errors.Is(err, store.ErrFull) {
		a.t.Errorf("others are not served: %v", err)
	}
	if _, err := s.Revision(ctx); err != nil {
		a.t.Errorf("others are not served: %v", err)
	}
}

// each makes n calls by each of the attackers concurrently, and all calls may wait. It returns a second after
// the first one is denied, or when all have been answered.
func (a *attacker) each(n int, call func(s *store.Store, by, i int) error) {
	refused, answered := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var all sync.WaitGroup
	for by := range attackers {
		s := a.dial()
		for i := range n {
			all.Add(1)
			a.calls.Go(func() {
				defer all.Done()
				if err := call(s, by, i); errors.Is(err, store.ErrFull) {
					a.said.Store(err.Error())
					once.Do(func() { close(refused) })
				}
			})
		}
	}
	go func() { all.Wait(); close(answered) }()
	select {
	case <-refused:
	case <-answered:
	case <-a.ctx.Done():
		a.t.Error("nothing is refused")
	}
	select {
	case <-answered:
	case <-time.After(time.Second): // the other attackers continue
	}
}

func (a *attacker) watches() {
	a.each(5000, func(s *store.Store, by, i int) error {
		prefix := fmt.Sprintf("%d/%d/%s", by, i, strings.Repeat("p", 8000))
		for _, err := range s.Watch(a.ctx, prefix, 1) {
			return err
		}
		return nil
	})
}

// reads requests many values at once.
func (a *attacker) reads() {
	w := a.dial()
	value := make([]byte, 15<<20)
	var keys []string
	for i := range 15 {
		k := fmt.Sprint("v", i%4)
		if keys = append(keys, k); i < 4 {
			require.NoError(a.t, w.Set(a.ctx, k, value, nil))
		}
	}
	a.each(10, func(s *store.Store, _, _ int) error {
		_, err := s.Wait(a.ctx, keys...)
		return err
	})
	for range attackers { // and does not read the answers
		c := a.raw()
		for i := range 20 {
			if _, err := c.Write(wire.AppendRequest(nil, &wire.Request{Op: wire.OpGet, ID: uint64(i + 1), Key: "v0"})); err != nil {
				break
			}
		}
	}
	a.works()
}

// raw returns a connection with a session, whose answers are not read.
func (a *attacker) raw() (raw net.Conn) {
	testcluster.Dial(a.t, a.at, &store.DialOptions{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if raw != nil {
			return nil, errors.New("there is one connection")
		}
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		raw = c
		return c, err
	}})
	return raw
}

func (a *attacker) halfFrames() {
	frame := wire.AppendRequest(nil, &wire.Request{Op: wire.OpSet, ID: 1, Key: "k", Value: make([]byte, 15<<20)})
	var sent sync.WaitGroup
	for range 40 {
		c := a.raw()
		sent.Go(func() {
			_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
			_, _ = c.Write(frame[:len(frame)-1])
		})
	}
	sent.Wait()
}

// sends has each attacker send messages, in its own group of two ranks, that are not received.
func (a *attacker) sends() {
	payload := make([]byte, 15<<20)
	var formed [attackers]sync.Once
	var groups [attackers]uint64
	a.each(20, func(s *store.Store, by, i int) error {
		formed[by].Do(func() { groups[by] = a.pair(s, fmt.Sprint(by)) })
		return s.Send(a.ctx, wire.Contribution{Generation: groups[by], Rank: 0, Root: 1, Channel: fmt.Sprint(i), Verb: "send"}, payload, time.Hour)
	})
}

// pair forms a group of two ranks, both of which are the attacker.
func (a *attacker) pair(s *store.Store, name string) (generation uint64) {
	other := make(chan error, 1)
	go func() {
		_, err := s.Join(a.ctx, wire.Contribution{Group: name, Run: "r", Rank: 1, Size: 2}, nil)
		other <- err
	}()
	m, err := s.Join(a.ctx, wire.Contribution{Group: name, Run: "r", Rank: 0, Size: 2}, nil)
	require.NoError(a.t, errors.Join(err, <-other))
	return m.Generation
}
