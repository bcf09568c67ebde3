package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	muster "github.com/muster-pg/muster/cmd/muster"
	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// stuck makes rank 0 of 2 wait in a barrier at a store.
func stuck(t *testing.T, s *store.Store, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, 2)
	gens := make(chan uint64, 2)
	for rank := range 2 {
		go func() {
			membership, err := s.Join(ctx, wire.Contribution{Group: name, Run: "r", Rank: rank, Size: 2, Label: "pid 7 on node-" + string(rune('a'+rank))}, nil)
			assert.NoError(t, err)
			gens <- membership.Generation
			if rank == 0 {
				_, _ = s.Collect(ctx, wire.Contribution{Generation: membership.Generation, Rank: 0, Seq: 1, Verb: "barrier", Root: -1, Want: wire.WantNothing}, nil)
			}
			done <- struct{}{}
		}()
	}
	t.Cleanup(func() {
		cancel()
		<-done
		<-done
	})
	<-gens
	<-gens
	for deadline := time.Now().Add(limit); ; {
		all, err := s.Status(ctx, "")
		if err != nil || time.Now().After(deadline) {
			t.Fatal("no rank waits", err)
		}
		if slices.ContainsFunc(all.Groups, func(g store.GroupStatus) bool { return g.Name == name && len(g.Records) == 1 }) {
			return
		}
	}
}

func dial(t *testing.T, url string) *store.Store {
	t.Helper()
	s, err := store.Dial(t.Context(), strings.TrimPrefix(url, "muster://"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestWhoSaysThatTheDiskStalls(t *testing.T) {
	var out bytes.Buffer
	muster.PrintWho(&out, &status.View{Server: &status.Server{Durable: true, DiskStalled: 12}}, false)
	assert.Contains(t, out.String(), "the disk stalls: a write of the log takes 12 s so far, and no change is acknowledged meanwhile")
}

// TestWhoShowsNamesAsText checks that the names of groups, ranks, verbs and keys cannot control the terminal,
// as text and as JSON.
func TestWhoShowsNamesAsText(t *testing.T) {
	t.Parallel()
	const evil = "\x1b]0;a title\a\x1b[2J\u009b31m\u202e\U000e0001"
	clash := wire.Failure{Code: wire.CodeMismatch, By: -1, Reason: evil, Clash: []wire.Contribution{{Verb: evil, Label: evil, Type: evil}}}
	g := store.GroupStatus{Name: evil, Run: evil, Generation: 1, Size: 2, Ended: -1, Open: 1, Notes: []string{evil}}
	g.Ranks = []store.RankStatus{{Rank: 0, Label: evil, Session: 1, Verb: evil}, {Rank: 1, Label: evil, Session: 2, Verb: evil}}
	g.Records = []store.RecordStatus{{Verb: evil, Channel: evil, Root: -1, Missing: wire.Ranks{Count: 1, Spans: []wire.Span{{First: 1, Last: 1}}}}}
	g.Failures = []store.FailureStatus{{Verb: evil, Channel: evil, Failure: clash}}
	v := status.Of(&store.Status{Groups: []store.GroupStatus{g}, Keys: []store.KeyStatus{{Key: evil, By: []string{evil}}}}, status.Options{})
	v.Elastic = []status.ElasticJob{{Name: evil, Newest: []status.ElasticChange{{What: evil}}}}
	v.Blame[0].Stacks = evil
	var text, asJSON strings.Builder
	muster.PrintWho(&text, v, true)
	require.NoError(t, muster.PrintJSON(&asJSON, v))
	for _, c := range text.String() + asJSON.String() {
		require.True(t, c == '\n' || unicode.IsPrint(c), "%q is in %q %q", c, &text, &asJSON)
	}
	for _, part := range []string{"waits for rank 1", "last failures", "(0 waiting)", "elastic jobs", "stacks of"} {
		require.Contains(t, text.String(), part)
	}
	var again status.View
	require.NoError(t, json.Unmarshal([]byte(asJSON.String()), &again))
	require.Equal(t, evil, again.Groups[0].Name)
}

// TestPageOfOtherSites checks the requests that a page without a password refuses: by another name of the
// host, and from a page on another site, but not by a link on it.
func TestPageOfOtherSites(t *testing.T) {
	t.Parallel()
	page := muster.PageGuard()
	for _, c := range []struct {
		host, mode string
		want       int
	}{
		{"127.0.0.1:1", "", 200},
		{"localhost:1", "", 200},
		{"[::1]:1", "", 200},
		{"evil.example", "", 421},
		{"evil.example:80", "", 421},
		{"127.0.0.1:1", "no-cors", 403},
		{"127.0.0.1:1", "cors", 403},
		{"127.0.0.1:1", "navigate", 200},
	} {
		r, w := httptest.NewRequest(http.MethodGet, "/", http.NoBody), httptest.NewRecorder()
		if r.Host = c.host; c.mode != "" {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Sec-Fetch-Mode", c.mode)
		}
		page.ServeHTTP(w, r)
		assert.Equal(t, c.want, w.Code, "%+v", c)
	}
}

// TestWhoHeadlines checks the first lines: all ranks that a job waits for in its longest wait, and
// what is known if nothing waits.
func TestWhoHeadlines(t *testing.T) {
	t.Parallel()
	blame := func(group string, rank int, what string) status.Blame {
		return status.Blame{Who: status.Who{Rank: rank, Label: fmt.Sprint("pid ", rank), Doing: "sleeps"}, Group: group, What: what}
	}
	many := make([]status.Blame, 6)
	for i := range many {
		many[i] = blame("g", i, "x")
	}
	noted := []status.Group{{Name: "g", Notes: []string{"one", "guess: two"}}}
	for name, c := range map[string]struct {
		view status.View
		want string
	}{
		"nothing": {status.View{}, "nothing waits\n"},
		"notes":   {status.View{Groups: noted}, "nothing waits in the store; g: one\ng: guess: two\n\n"},
		"two ranks, of another job, and of a shorter wait": {
			status.View{Waiting: make([]status.Wait, 1), Blame: []status.Blame{blame("g", 1, "x"), blame("h", 2, "x"), blame("g", 3, "x"), blame("g", 4, "y")}},
			"g waits for rank 1 (pid 1): sleeps; for rank 3 (pid 3): sleeps\nh waits for rank 2 (pid 2): sleeps\n\n",
		},
		"many": {
			status.View{Waiting: make([]status.Wait, 1), Blame: many},
			"g waits for rank 0 (pid 0): sleeps; for rank 1 (pid 1): sleeps; for rank 2 (pid 2): sleeps; for rank 3 (pid 3): sleeps; and for others\n\n",
		},
	} {
		var out strings.Builder
		muster.PrintWho(&out, &c.view, false)
		require.True(t, strings.HasPrefix(out.String(), c.want), "%s: %s", name, out.String())
	}
	var out strings.Builder
	muster.PrintWho(&out, &status.View{Waiting: []status.Wait{{Kind: "verb", Group: "g", What: "x", Arrived: 2, Size: 3, AtLeast: true}}}, false)
	require.Contains(t, out.String(), "(2 of at least 3 have joined)")
}

// TestWhoShowsPhases checks how far the ranks are that others wait for, and that a rank that has stalled is
// named before everything else, even if no rank waits for it.
func TestWhoShowsPhases(t *testing.T) {
	t.Parallel()
	phase := func(name string, done int64, ago time.Duration) *wire.Phase {
		return &wire.Phase{ID: 1, Name: name, Done: done, Total: 48, Stall: time.Minute, Ago: ago}
	}
	print := func(g store.GroupStatus) string {
		var out strings.Builder
		muster.PrintWho(&out, status.Of(&store.Status{Groups: []store.GroupStatus{g}}, status.Options{}), false)
		return out.String()
	}
	g := store.GroupStatus{Name: "train", Generation: 7, Size: 2, Present: 2, Age: time.Hour, Ended: -1, Open: 1, Ranks: []store.RankStatus{
		{Rank: 0, Label: "pid 7 on a", Session: 1, Verb: "barrier", Seq: 2, Progress: phase("loading shards", 48, 12*time.Second)},
		{Rank: 1, Label: "pid 8 on b", Session: 2, Verb: "barrier", Seq: 1, Ago: 20 * time.Second, Progress: phase("loading shards", 12, 3*time.Second)},
	}, Records: []store.RecordStatus{{Verb: "barrier", Seq: 2, Root: -1, Age: 12 * time.Second, Arrived: wire.Ranks{Count: 1, Spans: []wire.Span{{}}}, Missing: wire.Ranks{Count: 1, Spans: []wire.Span{{First: 1, Last: 1}}}}}}
	require.Equal(t, `train waits for rank 1 (pid 8 on b): loading shards, 12 of 48 (25%), 3.0 s ago; in no call; its last was barrier #1, 20 s ago

       12 s  train · barrier #2  (1 of 2 have joined)
             waits for rank 1 (pid 8 on b): loading shards, 12 of 48 (25%), 3.0 s ago; in no call; its last was barrier #1, 20 s ago

groups
  train  2 of 2 ranks, waiting, for 1 h 0 min
    loading shards: 2 ranks, 12 to 48 of 48
`, print(g))

	g.Records, g.Open = nil, 0
	g.Ranks[1].Progress = phase("\x1b[2J", 12, 61*time.Second)
	require.Equal(t, `nothing waits in the store; "train: rank 1 (pid 8 on b) has made no progress for 1 min 1 s: \x1b[2J, 12 of 48 (25%)"


groups
  train  2 of 2 ranks, idle, for 1 h 0 min
    "\x1b[2J: 1 rank, 12 of 48"
    loading shards: 1 rank, 48 of 48
`, print(g))
}
