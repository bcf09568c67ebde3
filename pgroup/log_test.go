package pgroup_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// records are the records of a logger, one JSON object per line.
type records struct{ testcluster.Log }

func (r *records) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// all returns the records so far.
func (r *records) all(t *testing.T) (list []map[string]any) {
	for line := range strings.Lines(r.String()) {
		var rec map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &rec))
		list = append(list, rec)
	}
	return list
}

// messages returns the messages in the records of a rank, with the sequence number.
func messages(list []map[string]any, group string, rank int) (said []string) {
	for _, rec := range list {
		if rec["group"] == group && rec["rank"] == float64(rank) {
			said = append(said, fmt.Sprint(rec["seq"], " ", rec["msg"]))
		}
	}
	return said
}

// TestLogRecordsHaveGroupAndRank checks that each record has the group, the rank and the sequence
// number. That includes a rank's own records, and those of groups that are derived from others.
func TestLogRecordsHaveGroupAndRank(t *testing.T) {
	var rs records
	gs := create(t, 3, place(hosted).with(func(c *pgroup.Config) { c.Name, c.Logger = "train", rs.logger() }))
	together(3, func(rank int) {
		g := gs[rank]
		g.Logger().Info("begins")
		ok(t, g, "barrier", g.Barrier(t.Context()))
		ok(t, g, "barrier", g.Barrier(t.Context()))
		g.Logger().With("epoch", 7).WithGroup("loss").Info("steps", "value", 0.5)
		ok(t, g, "barrier", g.Channel("side").Barrier(t.Context()))
		g.Channel("side").Logger().Info("is aside")
		sub, err := g.Sub(t.Context(), "same", 0, 1, 2)
		ok(t, g, "sub", err)
		sub.Logger().Info("is in a sub")
		ok(t, g, "close", sub.Close())
		ok(t, g, "barrier", g.Barrier(t.Context()))
	})
	gs[1].Abort(errors.New("no more data"))
	together(3, func(rank int) { assert.ErrorIs(t, gs[rank].Barrier(t.Context()), pgroup.ErrAborted) })
	closeAll(gs)

	list := rs.all(t)
	for _, rec := range list {
		assert.Contains(t, rec, "group", "%v", rec)
		assert.Contains(t, rec, "rank", "%v", rec)
		if rec["peer"] == nil { // the server's record of a connection has no sequence number
			assert.Contains(t, rec, "seq", "%v", rec)
		}
	}
	for rank := range 3 {
		said := messages(list, "train", rank)
		for _, want := range []string{"0 joined", "0 begins", "2 steps", "1 is aside", "4 operation failed"} {
			require.Contains(t, said, want)
		}
		require.Contains(t, messages(list, "train/same", rank), "0 is in a sub")
	}
	i := slices.IndexFunc(list, func(rec map[string]any) bool { return rec["msg"] == "steps" })
	require.Equal(t, map[string]any{"value": 0.5}, list[i]["loss"])
	require.EqualValues(t, 7, list[i]["epoch"])
	i = slices.IndexFunc(list, func(rec map[string]any) bool { return rec["msg"] == "is aside" })
	require.Equal(t, "side", list[i]["channel"])
	i = slices.IndexFunc(list, func(rec map[string]any) bool { return rec["msg"] == "operation failed" })
	require.Equal(t, []any{"WARN", "barrier"}, []any{list[i]["level"], list[i]["op"]})
	require.Contains(t, list[i]["err"], "no more data")
}

// TestRecordsOfTheStoresClient checks that the records of the store's client have the rank, the
// session, and the number of the last request.
func TestRecordsOfTheStoresClient(t *testing.T) {
	var rs records
	gs := create(t, 2, place(hosted).with(func(c *pgroup.Config) { c.Name, c.Logger = "train", rs.logger() }))
	ok(t, gs[1], "set", gs[1].Store().Set(t.Context(), "k", nil, nil))
	closeAll(gs[:1]) // the host leaves
	require.Eventually(t, func() bool { return len(find(rs.all(t), "store connection ended")) > 0 }, 10*time.Second, time.Millisecond)
	closeAll(gs)
	rec := find(rs.all(t), "store connection ended")[0]
	require.Equal(t, []any{"train", 1.0}, []any{rec["group"], rec["rank"]})
	require.GreaterOrEqual(t, rec["seq"], 1.0)
	require.NotZero(t, rec["session"])
}

func find(list []map[string]any, msg string) []map[string]any {
	return slices.DeleteFunc(list, func(rec map[string]any) bool { return rec["msg"] != msg })
}

// A rank's own records have its group and rank, so that the logs of all ranks can be merged.
func ExampleGroup_Logger() {
	ctx := context.Background()
	s := store.New(new(store.Memory))
	defer s.Close()
	plain := &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "generation" { // differ from run to run
			return slog.Attr{}
		}
		return a
	}}
	g, err := pgroup.Create(ctx, pgroup.Config{Name: "train", Store: s, Size: 1, Logger: slog.New(slog.NewTextHandler(os.Stdout, plain))})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer g.Close()
	_ = g.Barrier(ctx)
	g.Logger().Warn("the loss is not finite", "step", 12)
	// Output: level=WARN msg="the loss is not finite" group=train rank=0 seq=1 step=12
}
