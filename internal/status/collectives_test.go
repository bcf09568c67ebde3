package status_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/flightrecorder"
	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/store"
)

// recorded is a rank's recording of calls of the default group: "all_reduce", or "all_reduce!" for
// one that has not completed, and that it has been in for 12 seconds. "new" begins the group anew.
func recorded(calls ...string) *status.Recording {
	at := time.Now()
	r := &status.Recording{Dump: new(flightrecorder.Dump), At: at, Live: true, Source: "recording"}
	seq := uint64(0)
	for _, c := range calls {
		if c == "new" {
			seq = 0
			continue
		}
		seq++
		name, open := strings.CutSuffix(c, "!")
		name, inputs, _ := strings.Cut(name, " ")
		r.Dump.Calls = append(r.Dump.Calls, flightrecorder.Call{
			Group: "0", Desc: "default_pg", Backend: "gloo", Name: name, Inputs: inputs, Seq: seq, Done: !open, Created: at.Add(-12 * time.Second),
		})
	}
	return r
}

// collectiveView is the view of a job of 4 whose processes all run, with what its ranks have
// recorded. states are those of the processes, if they are not computing.
func collectiveView(t *testing.T, states map[int]string, ranks ...*status.Recording) *status.View {
	t.Helper()
	var all []tcpwire.Process
	for r := range ranks {
		state := tcpwire.Computing
		if states[r] != "" {
			state = states[r]
		}
		all = append(all, in(rankProcess(r, state), "default_pg", r))
	}
	s := memory(t)
	publish(t, s, "a", all...)
	o := &status.TorchOptions{Recordings: map[int]*status.Recording{}}
	for r, rec := range ranks {
		if rec != nil {
			o.Recordings[r] = rec
		}
	}
	return viewOf(t, s, o)
}

func TestCollectives(t *testing.T) {
	const computes = "connected, waits for nothing in the store, and computes for 5.0 s"
	idle := "in no collective; its last was gloo:barrier #1, called 12 s ago; " + computes
	frozen := &status.Recording{Err: errors.New("no answer"), Source: "x"}
	for name, c := range map[string]struct {
		ranks   []*status.Recording
		states  map[int]string
		blame   map[int]string
		notes   []string
		waiting []string
	}{
		"all run":  {ranks: []*status.Recording{recorded("barrier"), recorded("barrier"), recorded("barrier", "barrier"), recorded()}},
		"one late": {ranks: []*status.Recording{recorded("barrier", "barrier!"), recorded("barrier"), recorded("barrier", "barrier!"), recorded("barrier", "barrier!")}, blame: map[int]string{1: idle}, waiting: []string{"gloo:barrier #2"}},
		"one has called nothing": {
			ranks: []*status.Recording{recorded("barrier!"), recorded(), recorded("barrier!"), recorded("barrier!")},
			blame: map[int]string{1: "in no collective; " + computes}, waiting: []string{"gloo:barrier #1"},
		},
		"another operation": {
			ranks:   []*status.Recording{recorded("barrier!"), recorded("gather!"), recorded("barrier!"), recorded("barrier!")},
			blame:   map[int]string{1: "in gloo:gather #1 for 12 s, while most are in gloo:barrier #1; " + computes},
			notes:   []string{"ranks disagree: ranks 0, 2, 3 in gloo:barrier #1, rank 1 in gloo:gather #1"},
			waiting: []string{"gloo:barrier #1"},
		},
		"another shape": {
			ranks:   []*status.Recording{recorded("all_reduce [1]!"), recorded("all_reduce [1]!"), recorded("all_reduce [1]!"), recorded("all_reduce [2]!")},
			blame:   map[int]string{3: "in gloo:all_reduce #1 of [2] for 12 s, while most are in gloo:all_reduce #1 of [1]; " + computes},
			notes:   []string{"ranks disagree: ranks 0–2 in gloo:all_reduce #1 of [1], rank 3 in gloo:all_reduce #1 of [2]"},
			waiting: []string{"gloo:all_reduce #1"},
		},
		"another shape, which the others have completed": {
			ranks:   []*status.Recording{recorded("all_reduce [1]", "barrier!"), recorded("all_reduce [1]", "barrier!"), recorded("all_reduce [1]"), recorded("all_reduce [2]!")},
			blame:   map[int]string{2: strings.ReplaceAll(idle, "barrier #1", "all_reduce #1 of [1]"), 3: "in gloo:all_reduce #1 of [2] for 12 s, while most are in gloo:all_reduce #1 of [1]; " + computes},
			notes:   []string{"ranks disagree: ranks 0–2 in gloo:all_reduce #1 of [1], rank 3 in gloo:all_reduce #1 of [2]"},
			waiting: []string{"gloo:barrier #2"},
		},
		"shapes that may differ": {
			ranks:   []*status.Recording{recorded("gather [1]!"), recorded("gather [2]!"), recorded("gather [1]!"), recorded("gather [1]!")},
			waiting: []string{"gloo:gather #1"},
		},
		"half and half": {
			ranks:   []*status.Recording{recorded("barrier!"), recorded("gather!"), recorded("barrier!"), recorded("gather!")},
			notes:   []string{"ranks disagree: ranks 0, 2 in gloo:barrier #1, ranks 1, 3 in gloo:gather #1"},
			waiting: []string{"gloo:barrier #1", "gloo:gather #1"},
		},
		"a chain": { // rank 0 waits for rank 1, and rank 2 for rank 0, which is not to blame
			ranks: []*status.Recording{recorded("barrier", "barrier!"), recorded("barrier"), recorded("barrier", "barrier", "gather!"), recorded("barrier", "barrier!")},
			blame: map[int]string{1: idle}, waiting: []string{"gloo:barrier #2", "gloo:gather #3"},
		},
		"one has gone on": { // the root of a broadcast does not wait for its readers
			ranks:   []*status.Recording{recorded("broadcast"), recorded("broadcast!"), recorded("broadcast!"), recorded("broadcast!")},
			waiting: []string{"gloo:broadcast #1"},
		},
		"the group was made again": {
			ranks: []*status.Recording{recorded("barrier", "barrier", "new", "barrier!"), recorded("barrier", "barrier"), recorded("barrier", "barrier", "new", "barrier!"), recorded("barrier", "barrier", "new", "barrier!")},
			blame: map[int]string{1: strings.ReplaceAll(idle, "#1", "#2")}, waiting: []string{"gloo:barrier #1"},
		},
		"one is stopped": {
			ranks: []*status.Recording{recorded("barrier!"), frozen, recorded("barrier!"), recorded("barrier!")}, states: map[int]string{1: tcpwire.Stopped},
			blame: map[int]string{1: "stopped by a signal or a debugger for 5.0 s"}, notes: []string{"rank 1 (pid 41 on b): stopped by a signal or a debugger for 5.0 s"},
			waiting: []string{"gloo:barrier #1"},
		},
		"one does not answer": {
			ranks:   []*status.Recording{recorded("barrier!"), frozen, recorded("barrier!"), recorded("barrier!")},
			notes:   []string{"rank 1: nothing recorded: no answer"},
			waiting: []string{"gloo:barrier #1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := collectiveView(t, c.states, c.ranks...)
			if c.blame == nil {
				c.blame = map[int]string{}
			}
			require.Equal(t, c.blame, blamed(v))
			require.Len(t, v.Groups, 1)
			require.Equal(t, c.notes, v.Groups[0].Notes)
			var waiting []string
			for _, w := range v.Waiting {
				require.Equal(t, "default_pg", w.Group)
				require.InDelta(t, 12, w.For, 1)
				waiting = append(waiting, w.What)
			}
			require.ElementsMatch(t, c.waiting, waiting)
		})
	}
}

// TestShortCollectives checks that calls of a job that runs are not shown.
func TestShortCollectives(t *testing.T) {
	now := recorded("barrier!")
	now.Dump.Calls[0].Created = now.At
	require.Empty(t, collectiveView(t, nil, now, recorded(), recorded(), recorded()).Waiting)
	now.Live = false // it will not go on
	require.Len(t, collectiveView(t, nil, now, recorded(), recorded(), recorded()).Waiting, 1)
}

// TestCollectivesOfOtherGroups checks that a process group of some ranks has their numbers in the job.
func TestCollectivesOfOtherGroups(t *testing.T) {
	ranks := []*status.Recording{recorded(), recorded("barrier", "barrier!"), recorded(), recorded("barrier")}
	for _, r := range ranks {
		for i := range r.Dump.Calls {
			r.Dump.Calls[i].Group, r.Dump.Calls[i].Desc = "5", "undefined"
		}
	}
	v := collectiveView(t, nil, ranks...)
	require.Len(t, v.Blame, 1)
	require.Equal(t, 3, v.Blame[0].Rank)
	require.Equal(t, "default_pg/5, by rank of the job", v.Blame[0].Group)
	require.Equal(t, "pid 43 on b", v.Blame[0].Label)
}

// TestCollectivesAfterAnExit checks that a debug server that does not answer is not taken for a
// process that is connected.
func TestCollectivesAfterAnExit(t *testing.T) {
	ended := &status.Recording{Err: errors.New("connection refused"), Source: "http://b:1"}
	waits := func(r int) tcpwire.Process {
		return in(tcpwire.Process{ID: string(rune('a' + r)), Label: "x", Rank: -1, Waits: []tcpwire.ProcessWait{{Key: gloo + "2", For: time.Minute}}}, "default_pg", r)
	}
	s := memory(t)
	publish(t, s, "a", waits(0), waits(1))
	for _, key := range []string{gloo + "0", gloo + "1"} {
		require.NoError(t, s.Set(t.Context(), key, nil, nil))
	}
	v := viewOf(t, s, &status.TorchOptions{Recordings: map[int]*status.Recording{0: recorded(), 1: recorded(), 2: ended}})
	require.Equal(t, map[int]string{2: "has not joined"}, blamed(v))
	require.Contains(t, v.Groups[0].Notes, "rank 2: nothing recorded: connection refused")
}

// TestRecordingsWithoutProcesses checks dumps of a job that the store does not know.
func TestRecordingsWithoutProcesses(t *testing.T) {
	v := viewOf(t, memory(t), &status.TorchOptions{Recordings: map[int]*status.Recording{0: recorded("barrier!"), 1: recorded("barrier!"), 2: recorded()}})
	require.Equal(t, map[int]string{2: "in no collective"}, blamed(v))
	require.Equal(t, "recording", v.Blame[0].Label)
}

// TestDebugServers checks what debug servers are asked, and which addresses are not.
func TestDebugServers(t *testing.T) {
	t.Parallel() // one does not answer
	dump, err := os.ReadFile("../flightrecorder/testdata/rank1.json")
	require.NoError(t, err)
	stopped := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.String() {
		case "POST /handler/fr_trace_json":
			_, _ = w.Write(dump)
		case "POST /handler/dump_traceback":
			_, _ = io.WriteString(w, "Thread 0x1: File train.py, line 7")
		case "POST /handler/dump_nccl_trace_json":
			http.NotFound(w, r)
		default:
			t.Errorf("%s %s", r.Method, r.URL)
		}
	}))
	defer server.Close()
	elsewhere := httptest.NewServer(http.RedirectHandler(server.URL+"/redirected", http.StatusTemporaryRedirect))
	defer elsewhere.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close(); <-stopped }()
	go func() {
		defer close(stopped)
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	s := memory(t)
	for rank, addr := range []string{server.URL + "/any/path?x", elsewhere.URL, "http://" + silent.Addr().String(), "file:///etc/passwd"} {
		require.NoError(t, s.Set(t.Context(), fmt.Sprintf("debug_server/rank%d", rank), []byte(addr), nil))
	}
	require.NoError(t, s.Set(t.Context(), "debug_server/rank-1", []byte(server.URL), nil))
	v := viewOf(t, s, &status.TorchOptions{Servers: true})
	require.Len(t, v.Waiting, 1)
	require.Equal(t, "gloo:broadcast #2", v.Waiting[0].What)
	notes := strings.Join(v.Groups[0].Notes, "\n")
	require.Contains(t, notes, "rank 1: nothing recorded: its debug server at "+strings.TrimPrefix(elsewhere.URL, "http://")+" answers fr_trace_json: 307")
	require.Contains(t, notes, "rank 2: nothing recorded: its debug server does not answer: ")
	require.Contains(t, notes, `rank 3: nothing recorded: "file:///etc/passwd" is no address of a debug server`)
	require.Len(t, v.Groups[0].Notes, 3)

	// its stacks, when others wait for it
	idle := store.GroupStatus{Name: "g", Protocol: "torch", Ended: -1, Size: 2, Ranks: []store.RankStatus{{Rank: 0}, {Rank: 1, Label: "x", Server: server.URL}}}
	record := store.RecordStatus{Verb: "barrier", Root: -1}
	record.Arrived.Add(0)
	record.Missing.Add(1)
	idle.Records = append(idle.Records, record)
	v = status.Of(&store.Status{Groups: []store.GroupStatus{idle}}, nil)
	status.FetchStacks(t.Context(), s, v)
	require.Len(t, v.Blame, 1)
	require.Equal(t, "Thread 0x1: File train.py, line 7", v.Blame[0].Stacks)

	require.Empty(t, viewOf(t, s, nil).Groups)
}
