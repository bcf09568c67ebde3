package status_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/store"
)

// memory returns a new store.
func memory(t *testing.T) *store.Store {
	m := new(store.Memory)
	t.Cleanup(func() { _ = m.Close() })
	return store.New(m)
}

// publish publishes processes in s, as a server does.
func publish(t *testing.T, s *store.Store, server string, processes ...tcpwire.Process) {
	t.Helper()
	value, err := (&tcpwire.Processes{Processes: processes}).Encode()
	require.NoError(t, err)
	require.NoError(t, s.Set(t.Context(), tcpwire.ProcessesKey+server, value, &store.SetOptions{TTL: tcpwire.ProcessesTTL}))
}

// viewOf returns the view of s.
func viewOf(t *testing.T, s *store.Store, o *status.TorchOptions) *status.View {
	t.Helper()
	now, err := status.Fetch(t.Context(), s, o)
	require.NoError(t, err)
	return status.Of(now, nil)
}

// torchView returns the view of a store in which servers have published processes, and the keys
// exist.
func torchView(t *testing.T, keys map[string]string, servers ...[]tcpwire.Process) *status.View {
	t.Helper()
	s := memory(t)
	for i, some := range servers {
		publish(t, s, string(rune('a'+i)), some...)
	}
	for k, v := range keys {
		require.NoError(t, s.Set(t.Context(), k, []byte(v), nil))
	}
	return viewOf(t, s, nil)
}

// rankProcess is rank r of a job of 4, by its environment.
func rankProcess(r int, state string, waits ...string) tcpwire.Process {
	p := tcpwire.Process{ID: string(rune('a' + r)), Label: "pid 4" + string(rune('0'+r)) + " on b", Rank: r, Size: 4, State: state, For: 5 * time.Second}
	for _, key := range waits {
		p.Waits = append(p.Waits, tcpwire.ProcessWait{Key: key, For: 48 * time.Second})
	}
	return p
}

// in returns p as a process that has set its key in a process group.
func in(p tcpwire.Process, group string, rank int) tcpwire.Process {
	p.Members = append(p.Members, tcpwire.GroupRank{Group: group, Rank: rank})
	return p
}

// blamed returns the ranks that a view says others wait for, and what they do.
func blamed(v *status.View) map[int]string {
	doing := map[int]string{}
	for _, b := range v.Blame {
		doing[b.Rank] = b.Doing
	}
	return doing
}

const gloo = "default_pg/0//cpu//0/"

func TestTorchAbsentRank(t *testing.T) {
	arrived := map[string]string{gloo + "0": "x", gloo + "1": "x", gloo + "3": "x"}
	waits := func(r int) tcpwire.Process { return in(rankProcess(r, tcpwire.Sleeping, gloo+"2"), "default_pg", r) }
	v := torchView(t, arrived, []tcpwire.Process{waits(0), waits(1)}, []tcpwire.Process{waits(3)})
	require.Equal(t, map[int]string{2: "has not joined"}, blamed(v))
	w := v.Waiting[0]
	require.Equal(t, "init of gloo", w.What)
	require.Equal(t, "default_pg", w.Group)
	require.InDelta(t, 48, w.For, 10)
	require.Equal(t, []status.Span{{0, 1}, {3, 3}}, w.Present)
	require.Equal(t, []string{"no connection from rank 2"}, v.Groups[0].Notes)
	require.Equal(t, "waiting", v.Groups[0].State)

	for state, doing := range map[string]string{
		tcpwire.Computing: "connected, waits for nothing in the store, and computes for 5.0 s", tcpwire.Stopped: "stopped by a signal or a debugger for 5.0 s",
		tcpwire.Disconnected: "disconnected 5.0 s ago: it has exited or failed", "": "connected, waits for nothing in the store",
	} {
		v = torchView(t, arrived, []tcpwire.Process{waits(0), waits(1), waits(3), rankProcess(2, state)})
		require.Equal(t, map[int]string{2: doing}, blamed(v))
	}
}

// TestTorchNoRankIsBlamed checks that no rank is said to be missing that is not known to be.
func TestTorchNoRankIsBlamed(t *testing.T) {
	waits := func(r int, key string) tcpwire.Process { return rankProcess(r, tcpwire.Sleeping, key) }
	// the key has been set since
	v := torchView(t, map[string]string{gloo + "0": "", gloo + "1": "", gloo + "2": "", gloo + "3": ""}, []tcpwire.Process{waits(0, gloo+"2")})
	require.Empty(t, v.Blame)
	// a rank has been counted, and does not wait: which one is not known
	const barrier = "default_pg/store_based_barrier_key:0"
	last := barrier + ":last_worker"
	v = torchView(t, map[string]string{barrier: "3"}, []tcpwire.Process{waits(0, last), waits(1, last)})
	require.Empty(t, v.Blame)
	require.Equal(t, 3, v.Waiting[0].Arrived)
	require.Equal(t, 1, v.Waiting[0].Missing)
	v = torchView(t, map[string]string{barrier: "3"}, []tcpwire.Process{waits(0, last), waits(1, last), waits(3, last)})
	require.Equal(t, map[int]string{2: "has not joined"}, blamed(v))
	// two jobs of this size: the process may belong to either
	a := in(waits(0, "a/"+gloo+"1"), "a/default_pg", 0)
	b := in(waits(0, "b/"+gloo+"1"), "b/default_pg", 0)
	b.ID = "other"
	v = torchView(t, map[string]string{"a/" + gloo + "0": "", "b/" + gloo + "0": ""}, []tcpwire.Process{a, b, rankProcess(1, tcpwire.Computing)})
	for _, x := range v.Blame {
		require.Equal(t, "has not joined", x.Doing)
	}
	// a key of another pattern: who waits is known, and not for whom
	v = torchView(t, nil, []tcpwire.Process{waits(0, "ready/1")})
	require.Empty(t, v.Blame)
}

// TestTorchDeadlock checks that ranks that have made process groups in different orders are shown
// with the groups in which they wait.
func TestTorchDeadlock(t *testing.T) {
	const one, two = "default_pg/0//1//cpu//0/", "default_pg/0//2//cpu//0/"
	v := torchView(t, map[string]string{one + "0": "", two + "1": ""}, []tcpwire.Process{
		in(in(rankProcess(0, tcpwire.Sleeping, one+"1"), "default_pg", 0), "default_pg/1", 0),
		in(in(rankProcess(1, tcpwire.Sleeping, two+"0"), "default_pg", 1), "default_pg/2", 1),
	})
	require.Len(t, v.Waiting, 2)
	require.Equal(t, "default_pg/1", v.Waiting[0].Group)
	require.Equal(t, []status.Who{{Rank: 1, Doing: "has not joined", LastSeen: -1}}, v.Waiting[0].Ranks)
	require.True(t, v.Waiting[0].AtLeast)
	require.False(t, v.Groups[0].AtLeast)
}

// TestTorchTeardown checks that a rank that has not ended, while the others have, is not said to have
// failed or to be waited for.
func TestTorchTeardown(t *testing.T) {
	p := func(r int, state string) tcpwire.Process { return in(rankProcess(r, state), "default_pg", r) }
	const ended = ": disconnected 5.0 s ago: it has exited or failed"
	v := torchView(t, nil, []tcpwire.Process{p(0, tcpwire.Disconnected), p(1, tcpwire.Disconnected), p(2, tcpwire.Sleeping), p(3, tcpwire.Exiting)})
	require.Empty(t, v.Blame)
	require.Equal(t, []string{
		"rank 0 (pid 40 on b)" + ended, "rank 1 (pid 41 on b)" + ended,
		"rank 3 (pid 43 on b): in teardown for 5.0 s: it has closed its connections to the store, and its process still runs",
		"rank 2 (pid 42 on b): in teardown, or in work that the ranks that have ended do not have: connected, waits for nothing in the store, and uses no processor for 5.0 s",
	}, v.Groups[0].Notes)

	// two have failed of four: the others are no remaining ones
	v = torchView(t, nil, []tcpwire.Process{p(0, tcpwire.Disconnected), p(1, tcpwire.Disconnected), p(2, tcpwire.Sleeping), p(3, tcpwire.Computing)})
	require.Len(t, v.Groups[0].Notes, 2)
}

// TestTorchBelowAPrefix checks that jobs in a part of the store, which servers open to PyTorch, are
// in the status of the whole, and in that of the part.
func TestTorchBelowAPrefix(t *testing.T) {
	s := memory(t)
	part := store.Prefix(s, "job/1/")
	publish(t, part, "a", in(rankProcess(0, "", gloo+"1"), "default_pg", 0))
	require.NoError(t, s.Set(t.Context(), tcpwire.PrefixesKey+"a", []byte("job/1/"), &store.SetOptions{TTL: tcpwire.ProcessesTTL}))
	require.NoError(t, part.Set(t.Context(), gloo+"0", nil, nil))
	for name, s := range map[string]*store.Store{"job/1/default_pg": s, "default_pg": part} {
		v := viewOf(t, s, nil)
		require.Len(t, v.Groups, 1)
		require.Equal(t, name, v.Waiting[0].Group)
		require.Contains(t, blamed(v), 1)
	}
}

// TestTorchGuesses checks what is concluded from ranks of which none waits for another one in the
// store, and that this is marked as a guess.
func TestTorchGuesses(t *testing.T) {
	const c, s = tcpwire.Computing, tcpwire.Sleeping
	job := func(states ...string) (all []tcpwire.Process) {
		for r, state := range states {
			all = append(all, in(rankProcess(r, state), "default_pg", r))
		}
		return all
	}
	waits := func(all []tcpwire.Process, key string, ranks ...int) []tcpwire.Process {
		for _, r := range ranks {
			all[r].Waits = []tcpwire.ProcessWait{{Key: key, For: 48 * time.Second}}
		}
		return all
	}
	short := job(s, c, s, s)
	short[3].For = time.Second
	brief := waits(job(s, s, s, s), "x", 2)
	brief[2].Waits[0].For = time.Second
	const stopped = "rank 1 (pid 41 on b): stopped by a signal or a debugger for 5.0 s"
	for name, j := range map[string]struct {
		job   []tcpwire.Process
		notes []string
	}{
		"one computes":              {job(s, c, s, s), []string{"guess: the others wait for rank 1 (pid 41 on b), which alone uses the processor, for 5.0 s"}},
		"one does not compute":      {job(c, c, s, c), []string{"guess: the others wait for rank 2 (pid 42 on b), which alone uses no processor, for 5.0 s"}},
		"of two":                    {[]tcpwire.Process{in(tcpwire.Process{ID: "a", Label: "a", Size: 2, State: s, For: time.Minute}, "default_pg", 0), in(tcpwire.Process{ID: "b", Label: "b", Rank: 1, Size: 2, State: c, For: time.Minute}, "default_pg", 1)}, []string{"guess: the others wait for rank 1 (b), which alone uses the processor, for 1 min 0 s"}},
		"two compute":               {job(s, c, s, c), nil},
		"all compute":               {job(c, c, c, c), nil},
		"not for long":              {short, nil},
		"the state of one unknown":  {job(s, c, s, ""), nil},
		"one is stopped":            {job(s, tcpwire.Stopped, s, c), []string{stopped}},
		"one is absent":             {job(s, c, s), []string{"no connection from rank 3"}},
		"one waits for a key":       {waits(job(s, s, s, s), "x y", 2), []string{`rank 2 (pid 42 on b) waits for key "x y", which does not exist`, "guess: the others wait for rank 2 (pid 42 on b)"}},
		"one does not wait for it":  {waits(job(s, s, s, c), "x", 0, 1, 2), []string{"rank 0 (pid 40 on b), rank 1 (pid 41 on b), rank 2 (pid 42 on b) wait for key x, which does not exist", "guess: rank 3 (pid 43 on b), which alone does not wait for it, is to set it"}},
		"two do not wait for it":    {waits(job(s, s, s, c), "x", 0, 1), []string{"rank 0 (pid 40 on b), rank 1 (pid 41 on b) wait for key x, which does not exist"}},
		"different keys":            {waits(waits(job(s, s, s, s), "x", 0), "y", 1), []string{"rank 0 (pid 40 on b) waits for key x, which does not exist", "rank 1 (pid 41 on b) waits for key y, which does not exist"}},
		"a key, not for long":       {brief, nil},
		"one waits in an operation": {waits(job(s, c, s, s), gloo+"1", 0), nil},
	} {
		t.Run(name, func(t *testing.T) {
			v := torchView(t, map[string]string{gloo + "0": "", gloo + "1": "", gloo + "2": "", gloo + "3": ""}, j.job)
			require.Empty(t, v.Blame)
			require.Len(t, v.Groups, 1)
			require.Equal(t, j.notes, v.Groups[0].Notes)
		})
	}
}
