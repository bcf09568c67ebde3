package main_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Limits of the attacked server. Its memory may exceed their sum by a fifth.
const (
	attackedBytes   = 64 << 20 // of keys and values
	attackedHeld    = 96 << 20
	attackedBuffers = 96 << 20
	attackedLimit   = attackedBytes + attackedHeld + attackedBuffers
)

// TestMemoryUnderAttack lets clients make a server hold as much memory as they can, in different
// ways. It checks that the resident memory stays below the sum of the limits plus a fifth, that the
// clients get errors that name a limit, and that other clients are served meanwhile.
func TestMemoryUnderAttack(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: the race detector takes memory of its own, several times as much")
	}
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	reader := filepath.Join(t.TempDir(), "reader")
	access := filepath.Join(t.TempDir(), "access")
	for file, text := range map[string]string{
		secret: strings.Repeat("w", 32), reader: strings.Repeat("r", 32),
		access: fmt.Sprintf(`[{"secret_file": %q, "write": true}, {"secret_file": %q}]`, secret, reader),
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	for name, a := range map[string]struct {
		with   string // file with a secret
		refuse string // text of the errors; "" if there are none
		attack func(a *attacker)
	}{
		"waits":        {reader, "Limits.Held", (*attacker).waits},
		"watches":      {reader, "Limits.Held", (*attacker).watches},
		"large reads":  {reader, "ServerLimits.Buffers", (*attacker).reads},
		"half a frame": {reader, "", (*attacker).halfFrames},
		"joins":        {secret, "Limits.Held", (*attacker).joins},
		"votes":        {secret, "Limits.Held", (*attacker).votes},
		"sends":        {secret, "Limits.Held", (*attacker).sends},
		"appends":      {secret, "the limit is", (*attacker).appends},
	} {
		t.Run(name, func(t *testing.T) {
			p, at := serve(t, "--access", access, "--max-bytes", "64MiB", "--max-held", "96MiB", "--max-held-per-peer", "64MiB", "--max-buffers", "96MiB")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			by := &attacker{t: t, ctx: ctx, at: strings.TrimPrefix(at, "muster://"), writer: readSecret(t, secret)}
			by.secret = readSecret(t, a.with)
			a.attack(by)
			by.works()
			cancel()
			by.calls.Wait()
			if n := peakMemory(t, p.cmd.Process.Pid); n > attackedLimit+attackedLimit/5 {
				t.Errorf("the server had %d MiB, its limits add up to %d", n>>20, attackedLimit>>20)
			} else {
				t.Logf("%d MiB", n>>20)
			}
			if said, _ := by.said.Load().(string); a.refuse != "" && !strings.Contains(said, a.refuse) {
				t.Errorf("no error names %q, but %q", a.refuse, said)
			}
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

func readSecret(t *testing.T, file string) []byte {
	t.Helper()
	s, err := store.ReadSecret(file)
	require.NoError(t, err)
	return s
}

// attacker makes a server hold memory.
type attacker struct {
	t              *testing.T
	ctx            context.Context
	at             string
	secret, writer []byte
	calls          sync.WaitGroup
	said           atomic.Value // the last error
}

func (a *attacker) dial(secret []byte) *store.Store {
	s, err := store.Dial(a.ctx, a.at, &store.DialOptions{Secret: secret})
	require.NoError(a.t, err)
	a.t.Cleanup(func() { _ = s.Close() })
	return s
}

// works checks that other clients are served.
func (a *attacker) works() {
	s := a.dial(a.writer)
	ctx, cancel := context.WithTimeout(a.ctx, 20*time.Second)
	defer cancel()
	if _, err := s.Add(ctx, "n", 1); err != nil && !errors.Is(err, store.ErrFull) {
		a.t.Errorf("others are not served: %v", err)
	}
	if _, err := s.Revision(ctx); err != nil {
		a.t.Errorf("others are not served: %v", err)
	}
}

const attackers = 4

// each makes n calls by each of the attackers concurrently, and all calls may wait. It returns when
// the first one is denied, or when all have been answered.
func (a *attacker) each(n int, call func(s *store.Store, by, i int) error) {
	refused, answered := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var all sync.WaitGroup
	for by := range attackers {
		s := a.dial(a.secret)
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
	ctx, cancel := context.WithTimeout(a.ctx, time.Second) // the other attackers continue
	defer cancel()
	select {
	case <-answered:
	case <-ctx.Done():
	}
}

func (a *attacker) waits() {
	a.each(25, func(s *store.Store, by, i int) error {
		keys := make([]string, 500) // of 4 MiB together
		for k := range keys {
			keys[k] = fmt.Sprintf("%d/%d/%d/%s", by, i, k, strings.Repeat("k", 8000))
		}
		_, err := s.Wait(a.ctx, keys...)
		return err
	})
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
	w := a.dial(a.writer)
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
func (a *attacker) raw() net.Conn {
	var raw net.Conn
	s, err := store.Dial(a.ctx, a.at, &store.DialOptions{Secret: a.secret, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if raw != nil {
			return nil, errors.New("there is one connection")
		}
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		raw = c
		return c, err
	}})
	require.NoError(a.t, err)
	a.t.Cleanup(func() { _ = s.Close() })
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

func (a *attacker) joins() {
	member := make([]byte, 15<<20)
	a.each(20, func(s *store.Store, by, i int) error {
		_, err := s.Join(a.ctx, wire.Contribution{Group: fmt.Sprint(by, "/", i), Run: "r", Rank: 0, Size: 4}, member)
		return err
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
	if err = errors.Join(err, <-other); err != nil {
		a.t.Fatal(err)
	}
	return m.Generation
}

func (a *attacker) votes() {
	payload := make([]byte, 15<<20)
	groups := sync.Map{}
	a.each(20, func(s *store.Store, by, i int) error {
		once, _ := groups.LoadOrStore(by, sync.OnceValue(func() uint64 { return a.pair(s, fmt.Sprint("votes/", by)) }))
		c := wire.Contribution{Generation: once.(func() uint64)(), Rank: 0, Channel: fmt.Sprint(i), Seq: 1, Verb: "allgather", Root: -1, Want: wire.WantAll}
		_, err := s.Collect(a.ctx, c, payload)
		return err
	})
}

func (a *attacker) sends() {
	payload := make([]byte, 15<<20)
	groups := sync.Map{}
	a.each(20, func(s *store.Store, by, i int) error {
		once, _ := groups.LoadOrStore(by, sync.OnceValue(func() uint64 { return a.pair(s, fmt.Sprint("sends/", by)) }))
		c := wire.Contribution{Generation: once.(func() uint64)(), Rank: 0, Root: 1, Channel: fmt.Sprint(i), Verb: "send"}
		return s.Send(a.ctx, c, payload, time.Hour)
	})
}

func (a *attacker) appends() {
	a.each(40, func(s *store.Store, by, i int) error {
		_, err := s.Append(a.ctx, fmt.Sprint(by, "/", i), make([]byte, 4<<20))
		return err
	})
}
