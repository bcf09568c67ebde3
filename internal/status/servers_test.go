package status_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/store"
)

// viewOf returns the view of s.
func viewOf(t *testing.T, s *store.Store, o status.TorchOptions) *status.View {
	t.Helper()
	now, err := status.Fetch(t.Context(), s, o)
	require.NoError(t, err)
	return status.Of(now, status.Options{})
}

// TestDebugServers checks what debug servers are asked, and which addresses are not.
func TestDebugServers(t *testing.T) {
	t.Parallel() // one does not answer
	dump, err := os.ReadFile("../flightrecorder/testdata/rank1.json")
	require.NoError(t, err)
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
	defer silent.Close() // connections to it are not accepted
	s := store.New(new(store.Memory))
	defer s.Close()
	for rank, addr := range []string{server.URL + "/any/path?x", elsewhere.URL, "http://" + silent.Addr().String(), "file:///etc/passwd"} {
		require.NoError(t, s.Set(t.Context(), fmt.Sprintf("debug_server/rank%d", rank), []byte(addr), nil))
	}
	require.NoError(t, s.Set(t.Context(), "debug_server/rank-1", []byte(server.URL), nil))
	v := viewOf(t, s, status.TorchOptions{Servers: true})
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
	v = status.Of(&store.Status{Groups: []store.GroupStatus{idle}}, status.Options{})
	status.FetchStacks(t.Context(), s, v)
	require.Len(t, v.Blame, 1)
	require.Equal(t, "Thread 0x1: File train.py, line 7", v.Blame[0].Stacks)

	require.Empty(t, viewOf(t, s, status.TorchOptions{}).Groups)
}
