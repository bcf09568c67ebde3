package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/status"
)

// torchHang is a way in which a job of four ranks hangs, and what "muster who" has to say.
type torchHang struct {
	name   string         // for hang.py: how, and the ranks at fault
	blame  map[int]string // ranks that the others wait for, and what they do; others must not be blamed
	notes  []string       // about the group
	keys   int            // processes that wait for a key of the program
	doing  map[int]string // of ranks that no rank is known to wait for
	before syscall.Signal // is sent to the ranks at fault
	after  syscall.Signal // ends the hang; 0: the key go/NAME does
}

func (h *torchHang) ranks() (ranks []int) {
	for _, r := range strings.Split(h.name, "-")[1:] {
		ranks = append(ranks, int(r[0]-'0'))
	}
	return ranks
}

const sleeps, computes = "waits for nothing in the store, and uses no processor", "waits for nothing in the store, and computes"

// torchHangs are the hangs of one job, one after the other.
var torchHangs = []torchHang{
	{name: "absent-2", blame: map[int]string{2: sleeps}},
	{name: "absent-0", blame: map[int]string{0: sleeps}},
	{name: "absent-1-3", blame: map[int]string{1: sleeps, 3: sleeps}},
	{name: "computes-3", blame: map[int]string{3: computes}},
	{name: "stopped-1", blame: map[int]string{1: "stopped by a signal"}, notes: []string{"rank 1 (pid "}, before: syscall.SIGSTOP, after: syscall.SIGCONT},
	{name: "group-2", blame: map[int]string{2: "has not joined"}},
	{name: "key-3", keys: 3},
	{name: "busy-1", doing: map[int]string{1: computes, 2: sleeps}},
	{name: "paused-2", notes: []string{"rank 2 (pid "}, doing: map[int]string{2: "stopped by a signal"}, before: syscall.SIGSTOP, after: syscall.SIGCONT},
	{name: "killed-2", blame: map[int]string{2: "disconnected"}, notes: []string{"rank 2 (pid "}, before: syscall.SIGKILL},
}

// viewOf returns what "muster who --json" prints.
func viewOf(t *testing.T, url string) (v status.View) {
	t.Helper()
	r := run(t, "who", "--store", url, "--json")
	require.Zero(t, r.code, r.stderr)
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &v))
	return v
}

// differs returns how v differs from what it has to say, or "".
func (h *torchHang) differs(v *status.View) string {
	of := func(group string) bool { return strings.HasPrefix(group, h.name+"/default_pg") }
	blamed := map[int]bool{}
	for _, b := range v.Blame {
		if !of(b.Group) {
			return fmt.Sprintf("rank %d of %s is blamed", b.Rank, b.Group)
		}
		if !strings.Contains(b.Doing, h.blame[b.Rank]) || h.blame[b.Rank] == "" {
			return fmt.Sprintf("rank %d: %s", b.Rank, b.Doing)
		}
		blamed[b.Rank] = true
	}
	for rank := range h.blame {
		if !blamed[rank] {
			return fmt.Sprintf("rank %d is not blamed", rank)
		}
	}
	byKey := 0
	for _, w := range v.Waiting {
		if w.Kind == "key" && w.What == "key "+h.name+"/ready" {
			byKey = len(w.By)
		}
	}
	if byKey != h.keys {
		return fmt.Sprintf("%d processes wait for the key", byKey)
	}
	var notes []string
	for i := range v.Groups {
		g := &v.Groups[i]
		notes = append(notes, g.Notes...)
		if g.Name != h.name+"/default_pg" {
			continue
		}
		for _, r := range g.Ranks {
			if !strings.Contains(r.Doing, h.doing[r.Rank]) {
				return fmt.Sprintf("rank %d: %s", r.Rank, r.Doing)
			}
		}
	}
	if h.doing != nil && !slices.ContainsFunc(v.Groups, func(g status.Group) bool { return g.Name == h.name+"/default_pg" && len(g.Ranks) == 4 }) {
		return "the group is not there"
	}
	for _, want := range h.notes {
		if !slices.ContainsFunc(notes, func(note string) bool { return strings.HasPrefix(note, want) }) {
			return fmt.Sprintf("notes: %q", notes)
		}
	}
	if len(notes) > len(h.notes) {
		return fmt.Sprintf("notes: %q", notes)
	}
	return ""
}

// TestWhoTorch checks that "muster who" names the ranks for which an unmodified PyTorch job waits, in
// ten kinds of hangs: behind a relay, so that the store does not have the connections of the ranks.
func TestWhoTorch(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("this system does not show the environment of other processes")
	}
	exe := testcluster.Torch(t)
	_, url := serve(t)
	_, near := relay(t, "--store", url)
	host, port, _ := strings.Cut(strings.TrimPrefix(near, "muster://"), ":")
	s := dial(t, url)
	ctx, cancel := context.WithTimeout(t.Context(), 8*limit)
	var names []string
	for _, h := range torchHangs {
		names = append(names, h.name)
	}
	var ranks [4]*exec.Cmd
	t.Cleanup(func() {
		cancel()
		for _, r := range ranks {
			if r != nil {
				_ = r.Wait()
			}
		}
	})
	started := func(ranks ...string) {
		_, err := s.Wait(ctx, ranks...)
		require.NoError(t, err)
	}
	start := func(rank int) {
		ranks[rank] = exec.CommandContext(ctx, exe, "testdata/hang.py", host, port, strings.Join(names, ","))
		ranks[rank].Env = append(os.Environ(), fmt.Sprintf("RANK=%d", rank), "WORLD_SIZE=4", "OMP_NUM_THREADS=1")
		ranks[rank].Stderr = os.Stderr
		require.NoError(t, ranks[rank].Start())
	}

	// rank 3 has not connected
	for rank := range 3 {
		start(rank)
	}
	started("started/0", "started/1", "started/2")
	testcluster.Eventually(t, limit, func() bool {
		v := viewOf(t, url)
		return slices.ContainsFunc(v.Groups, func(g status.Group) bool { return slices.Equal(g.Notes, []string{"no connection from rank 3"}) })
	}, "rank 3 is known to be absent")
	start(3)
	started("started/3")

	for _, h := range torchHangs {
		signal := func(sig syscall.Signal) {
			for _, rank := range h.ranks() {
				if sig != 0 {
					require.NoError(t, ranks[rank].Process.Signal(sig))
				}
			}
		}
		var v status.View
		if len(h.doing) > 0 { // all ranks have begun with the group
			testcluster.Eventually(t, limit, func() bool {
				v = viewOf(t, url)
				return slices.ContainsFunc(v.Groups, func(g status.Group) bool {
					return g.Name == h.name+"/default_pg" && g.Present == 4 && g.State == "idle"
				})
			}, h.name)
		}
		for _, rank := range h.ranks() {
			if h.before != 0 { // not before the others are past the last case
				started(fmt.Sprintf("at/%s/%d", h.name, rank))
			}
		}
		signal(h.before)
		began := time.Now()
		last := ""
		for last = "?"; last != "" && time.Since(began) < limit; {
			v = viewOf(t, url)
			last = h.differs(&v)
		}
		if last != "" {
			out, _ := json.MarshalIndent(v, "", " ")
			t.Fatalf("%s: %s\n%s", h.name, last, out)
		}
		t.Logf("%s: named after %v", h.name, time.Since(began).Round(100*time.Millisecond))
		signal(h.after)
		require.NoError(t, s.Set(ctx, "go/"+h.name, nil, nil))
	}
	require.NoError(t, s.Set(ctx, "end", nil, nil))
}
