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

	"github.com/muster-pg/muster/internal/status"
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
	{name: "group-2", blame: map[int]string{2: "has not joined"}},
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
	near := relay(t, j.url)
	host, port, _ := strings.Cut(strings.TrimPrefix(near, "muster://"), ":")
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

// hang has the job hang, until "muster who" says why, and says nothing else. No other rank is blamed meanwhile.
func (j *hangingJob) hang(h *torchHang) {
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
				j.Fatalf("%s: rank %d is blamed", h.name, b.Rank)
			}
		}
	}
	if last != "" {
		out, _ := json.MarshalIndent(v, "", " ")
		j.Fatalf("%s: not named: %s\n%s", h.name, last, out)
	}
	j.Logf("%s: named after %v", h.name, time.Since(began).Round(100*time.Millisecond))
	signal(h.after)
	require.NoError(j, j.s.Set(j.Context(), "go/"+h.name, nil, nil))
}

// TestWhoTorch checks that "muster who" names the ranks for which an unmodified PyTorch job waits, as
// a fact or as a guess, in eleven hangs.
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
		j.hang(&h)
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
		j.hang(&h)
	}
	v := viewOf(t, j.url, "--collectives", "--stacks")
	require.Len(t, v.Blame, 1)
	require.Contains(t, v.Blame[0].Stacks, "in broadcast", v.Blame[0].StacksError)
}
