package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
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
	{name: "group-2", blame: map[int]string{2: sleeps}},
	{name: "group-2-3", blame: map[int]string{2: "has not joined"}, notes: []string{"guess: rank 2 of this group is one of the job's rank 2 (pid "}},
	{name: "key-3", keys: 3, notes: []string{"rank 0 (pid ", "guess: rank 3 (pid "}},
	{name: "alone-1", notes: []string{"rank 1 (pid ", "guess: the others wait for rank 1 (pid "}},
	{name: "busy-1", notes: []string{"guess: the others wait for rank 1 (pid "}, doing: map[int]string{1: computes, 2: sleeps}},
	{name: "paused-2", notes: []string{"rank 2 (pid "}, doing: map[int]string{2: "stopped by a signal"}, before: syscall.SIGSTOP, after: syscall.SIGCONT},
	{name: "killed-2", blame: map[int]string{2: "disconnected"}, notes: []string{"rank 2 (pid "}, before: syscall.SIGKILL},
}

// collectiveHangs are hangs in collectives of a job whose ranks have debug servers, one after the
// other; the last one ends the job.
var collectiveHangs = []torchHang{
	{name: "busy-1", blame: map[int]string{1: "in no collective; "}},
	{name: "idle-3", blame: map[int]string{3: "in no collective; "}},
	{name: "paused-2", blame: map[int]string{2: "stopped by a signal"}, notes: []string{"rank 2 (pid "}, before: syscall.SIGSTOP, after: syscall.SIGCONT},
	{name: "operation-1", blame: map[int]string{1: "in gloo:broadcast #1 of Float [4] for"}, notes: []string{"ranks disagree: ranks 0, 2, 3 in gloo:all_reduce #1 of Float [4], rank 1 in gloo:broadcast #1"}},
}

// viewOf returns what "muster who --json" prints.
func viewOf(t *testing.T, url string, args ...string) (v status.View) {
	t.Helper()
	r := run(t, append([]string{"who", "--store", url, "--json"}, args...)...)
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

// hangingJob is a job of four ranks behind a relay, so that the store does not have the connections
// of the ranks.
type hangingJob struct {
	*testing.T
	url   string // of the store
	near  string // address of the relay
	s     *store.Store
	start func(rank int)
	ranks [4]*exec.Cmd
	args  []string // of who
}

// newHangingJob returns a job that goes through hangs. No rank has been started.
func newHangingJob(t *testing.T, hangs []torchHang, servers bool) *hangingJob {
	t.Helper()
	if _, err := os.Stat("/proc/self/environ"); err != nil {
		t.Skip("SKIPPED: this system does not show the environment of other processes")
	}
	exe := testcluster.Torch(t)
	j := &hangingJob{T: t}
	_, j.url = serve(t)
	_, near := relay(t, "--store", j.url)
	j.near = strings.TrimPrefix(near, "muster://")
	host, port, _ := strings.Cut(j.near, ":")
	j.s = dial(t, j.url)
	var names []string
	for _, h := range hangs {
		names = append(names, h.name)
	}
	args := []string{"testdata/hang.py", host, port, strings.Join(names, ",")}
	if servers {
		args, j.args = append(args, "servers"), []string{"--collectives"}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*limit)
	t.Cleanup(func() {
		cancel()
		for _, r := range j.ranks {
			if r != nil {
				_ = r.Wait()
			}
		}
	})
	j.start = func(rank int) {
		r := exec.CommandContext(ctx, exe, args...)
		r.Env = append(os.Environ(), fmt.Sprintf("RANK=%d", rank), "WORLD_SIZE=4", "OMP_NUM_THREADS=1")
		r.Stderr = os.Stderr
		require.NoError(t, r.Start())
		j.ranks[rank] = r
	}
	return j
}

// wait waits until the ranks have set keys.
func (j *hangingJob) wait(keys ...string) {
	ctx, cancel := context.WithTimeout(j.Context(), 2*limit)
	defer cancel()
	_, err := j.s.Wait(ctx, keys...)
	require.NoError(j, err)
}

// hang has the job hang, and returns after how long "muster who" says why, and says nothing else; or
// what it says instead. innocent are the ranks that it has blamed meanwhile and that are not at fault.
func (j *hangingJob) hang(h *torchHang) (took time.Duration, instead string, innocent []int) {
	signal := func(sig syscall.Signal) {
		for _, rank := range h.ranks() {
			if sig != 0 {
				require.NoError(j, j.ranks[rank].Process.Signal(sig))
			}
		}
	}
	if len(h.doing) > 0 { // all ranks have begun with the group
		testcluster.Eventually(j, limit, func() bool {
			v := viewOf(j.T, j.url, j.args...)
			return slices.ContainsFunc(v.Groups, func(g status.Group) bool {
				return g.Name == h.name+"/default_pg" && g.Present == 4 && g.State == "idle"
			})
		}, h.name)
	}
	for _, rank := range h.ranks() {
		if h.before != 0 { // not before the others are past the last case
			j.wait(fmt.Sprintf("at/%s/%d", h.name, rank))
		}
	}
	signal(h.before)
	began := time.Now()
	last, v := "?", status.View{}
	for last != "" && time.Since(began) < limit {
		v = viewOf(j.T, j.url, j.args...)
		last = h.differs(&v)
		for _, b := range v.Blame {
			if strings.HasPrefix(b.Group, h.name+"/") && h.blame[b.Rank] == "" {
				innocent = append(innocent, b.Rank)
			}
		}
	}
	took = time.Since(began).Round(100 * time.Millisecond)
	if last != "" {
		out, _ := json.MarshalIndent(v, "", " ")
		j.Logf("%s: not named: %s\n%s", h.name, last, out)
	} else {
		j.Logf("%s: named after %v", h.name, took)
	}
	signal(h.after)
	require.NoError(j, j.s.Set(j.Context(), "go/"+h.name, nil, nil))
	return took, last, innocent
}

// named checks that a hang is named, and that no other rank is blamed.
func (j *hangingJob) named(h *torchHang) {
	_, instead, innocent := j.hang(h)
	require.Empty(j, instead, h.name)
	require.Empty(j, innocent, h.name)
}

// TestWhoTorch checks that "muster who" names the ranks for which an unmodified PyTorch job waits, as
// a fact or as a guess, in twelve hangs.
func TestWhoTorch(t *testing.T) {
	t.Parallel()
	j := newHangingJob(t, torchHangs, false)
	for rank := range 3 {
		j.start(rank)
	}
	j.wait("started/0", "started/1", "started/2")
	testcluster.Eventually(t, limit, func() bool {
		v := viewOf(t, j.url)
		return slices.ContainsFunc(v.Groups, func(g status.Group) bool { return slices.Equal(g.Notes, []string{"no connection from rank 3"}) })
	}, "rank 3 is known to be absent")
	j.start(3)
	j.wait("started/3")
	for _, h := range torchHangs {
		j.named(&h)
	}
	require.NoError(t, j.s.Set(t.Context(), "end", nil, nil))
}

// TestWhoTorchCollectives checks that "muster who --collectives" names the rank that has not called a
// collective in which the others wait, and one that has called another.
func TestWhoTorchCollectives(t *testing.T) {
	t.Parallel()
	j := newHangingJob(t, collectiveHangs, true)
	for rank := range j.ranks {
		j.start(rank)
	}
	j.wait("started/0", "started/1", "started/2", "started/3")
	for _, h := range collectiveHangs {
		j.named(&h)
	}
	v := viewOf(t, j.url, "--collectives", "--stacks")
	require.Len(t, v.Blame, 1)
	require.Contains(t, v.Blame[0].Stacks, "in broadcast", v.Blame[0].StacksError)
}

// manyHangs are jobs of TestManyHangs with their hangs, one after the other; the last one of a job
// ends it.
func manyHangs() map[string][]torchHang {
	stopped := func(name string, rank int) torchHang {
		return torchHang{name: name, blame: map[int]string{rank: "stopped by a signal"}, notes: []string{fmt.Sprintf("rank %d (pid ", rank)}, before: syscall.SIGSTOP, after: syscall.SIGCONT}
	}
	absent := func(name string, doing string, ranks ...int) torchHang {
		h := torchHang{name: name, blame: map[int]string{}}
		for _, r := range ranks {
			h.blame[r] = doing
		}
		return h
	}
	const idle = "in no collective; "
	ended := func(name string, remains int, note string) torchHang {
		h := torchHang{name: name}
		for rank := range 4 {
			if rank != remains {
				h.notes = append(h.notes, fmt.Sprintf("rank %d (pid ", rank))
			}
		}
		h.notes = append(h.notes, note)
		return h
	}
	killed := torchHang{name: "killed-1", blame: map[int]string{1: "disconnected"}, notes: []string{"rank 1 (pid "}, before: syscall.SIGKILL}
	return map[string][]torchHang{
		"keys": torchHangs,
		"more keys": {
			absent("absent-1", sleeps, 1), absent("absent-3", sleeps, 3), absent("absent-0-1", sleeps, 0, 1), absent("absent-1-2-3", sleeps, 1, 2, 3),
			absent("computes-0", computes, 0), absent("computes-2", computes, 2), stopped("stopped-0", 0), stopped("stopped-2", 2), stopped("stopped-3", 3),
			absent("group-0", sleeps, 0), absent("group-1", sleeps, 1),
			{name: "key-1", keys: 3, notes: []string{"rank 0 (pid ", "guess: rank 1 (pid "}},
			killed,
		},
		"collectives":      collectiveHangs,
		"more collectives": {absent("busy-3", idle, 3), absent("idle-0", idle, 0), absent("idle-1-2", idle, 1, 2), stopped("paused-1", 1), stopped("paused-0", 0), {name: "operation-0", blame: map[int]string{0: "in gloo:broadcast #1"}, notes: []string{"ranks disagree: ranks 1–3 in gloo:all_reduce #1"}}},
		"shapes":           {absent("busy-0", idle, 0), {name: "shape-2", blame: map[int]string{2: "in gloo:all_reduce #1 of Float [5]"}, notes: []string{"ranks disagree: ranks 0, 1, 3 in gloo:all_reduce #1 of Float [4], rank 2"}}},
		"teardown":         {ended("remains-2", 2, "rank 2 (pid ")},
		"end of teardown":  {ended("closes-1", -1, "rank 1 (pid ")},
	}
}

// TestManyHangs injects 42 hangs into jobs: all but one in twenty are named within five seconds, and no other
// rank is ever blamed.
func TestManyHangs(t *testing.T) {
	testcluster.SoakOnly(t, "TestWhoTorch and TestWhoTorchCollectives have sixteen hangs")
	testcluster.Torch(t) // without it there are too few
	all, soon := 0, 0
	jobs := manyHangs()
	for _, name := range slices.Sorted(maps.Keys(jobs)) {
		t.Run(name, func(t *testing.T) {
			hangs := jobs[name]
			j := newHangingJob(t, hangs, strings.Contains(name, "collectives") || name == "shapes")
			for rank := range j.ranks {
				j.start(rank)
			}
			j.wait("started/0", "started/1", "started/2", "started/3")
			agent, err := net.Dial("tcp", j.near) // that of torchrun, which stays
			require.NoError(t, err)
			defer agent.Close()
			_, err = agent.Write([]byte(tcpwire.Preface))
			require.NoError(t, err)
			for _, h := range hangs {
				took, instead, innocent := j.hang(&h)
				assert.Empty(t, innocent, h.name)
				if all++; instead == "" && took <= 5*time.Second {
					soon++
				}
			}
		})
	}
	t.Run("store gone", func(t *testing.T) {
		for range 2 {
			server, url := serve(t)
			_, near := relay(t, "--store", url)
			server.signal(t, syscall.SIGKILL)
			server.wait(t)
			began := time.Now()
			for _, at := range []string{url, near} {
				r := run(t, "who", "--store", at)
				assert.NotZero(t, r.code)
				assert.NotContains(t, r.stdout, "rank")
				t.Logf("after %v: %s", time.Since(began), r.stderr)
				if all++; strings.Contains(r.stderr, strings.TrimPrefix(url, "muster://")) && time.Since(began) <= 5*time.Second {
					soon++
				}
			}
		}
	})
	t.Logf("%d of %d hangs are named within five seconds", soon, all)
	assert.GreaterOrEqual(t, all, 40)
	assert.LessOrEqual(t, all-soon, all/20)
}
