package trace_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/trace"
)

// line is an event of a Chrome trace.
type line struct {
	Name, Cat, Ph string
	PID, TID      int
	TS, Dur       float64
	Args          map[string]any
}

func lines(t *testing.T, b []byte) (all []line) {
	t.Helper()
	require.NoError(t, json.Unmarshal(b, &all), "%s", b)
	return all
}

// spans returns the events that are not metadata.
func spans(all []line) (some []line) {
	for _, l := range all {
		if l.Ph == "X" {
			some = append(some, l)
		}
	}
	return some
}

func TestChrome(t *testing.T) {
	var b bytes.Buffer
	c := trace.Chrome(&b)
	began := time.Now()
	c.Record(t.Context(), trace.Event{
		Op: "pgroup.barrier", Group: "a \"group\"\n", Channel: "ch", Generation: 7, ID: 1<<63 + 1, Seq: 42, Rank: 1, Size: 4, Last: 3, Bytes: 8,
		Start: began, End: began.Add(1500 * time.Microsecond), Waited: 1250 * time.Nanosecond, Err: errors.New("rank 3 is lost\x00\xff"),
	})
	c.Record(t.Context(), trace.Event{Op: "store.get", Rank: -1, Last: -1, Start: began, End: began})
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	c.Record(t.Context(), event("late", 0))
	require.NoError(t, c.Flush())

	all := lines(t, b.Bytes())
	require.Equal(t, "muster", all[0].Name)
	require.Equal(t, "M", all[0].Ph)
	require.Contains(t, all[0].Args, "start")
	require.Equal(t, "rank 1 of 4", all[1].Args["name"])
	some := spans(all)
	require.Len(t, some, 2)
	require.Equal(t, "barrier", some[0].Name)
	require.Equal(t, "pgroup", some[0].Cat)
	require.InDelta(t, 1500, some[0].Dur, 1e-6)
	require.Equal(t, map[string]any{
		"group": "a \"group\"\n", "channel": "ch", "generation": 7.0, "id": "8000000000000001", "seq": 42.0, "rank": 1.0, "size": 4.0, "last": 3.0,
		"bytes": 8.0, "waited": 1.25, "error": "rank 3 is lost\x00\ufffd",
	}, some[0].Args)
	require.Equal(t, map[string]any{"group": ""}, some[1].Args)
	require.NotEqual(t, some[0].TID, some[1].TID, "what one package does in one group has rows of its own")
}

// TestChromeRows checks that overlapping events are in different rows: in one row, a viewer takes
// them for nested, or draws them wrongly.
func TestChromeRows(t *testing.T) {
	var b bytes.Buffer
	c := trace.Chrome(&b)
	at := time.Now()
	span := func(from, to int) trace.Event {
		return trace.Event{Op: "pgroup.recv", Group: "world", Size: 2, Last: -1, Start: at.Add(time.Duration(from) * time.Millisecond), End: at.Add(time.Duration(to) * time.Millisecond)}
	}
	for _, e := range []trace.Event{span(0, 10), span(5, 12), span(10, 20), span(11, 21), span(12, 22)} {
		c.Record(t.Context(), e)
	}
	require.NoError(t, c.Close())
	var rows []int
	for _, l := range spans(lines(t, b.Bytes())) {
		rows = append(rows, l.TID)
	}
	require.Equal(t, []int{1, 2, 1, 3, 2}, rows)
	require.Contains(t, b.String(), `"name":"pgroup · world (3)"`)
}

// TestChromeWritesSoon checks that a process that is killed has written all but the last 100 ms.
func TestChromeWritesSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		c := trace.Chrome(&b)
		for seq := range uint64(3) {
			c.Record(t.Context(), trace.Event{Op: "pgroup.barrier", Seq: seq + 1, Size: 2, Start: time.Now(), End: time.Now()})
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			require.Len(t, spans(lines(t, append(bytes.Clone(b.Bytes()), ']'))), int(seq)+1)
		}
		written := b.Len()
		time.Sleep(time.Hour)
		require.Equal(t, written, b.Len(), "nothing is written while nothing happens")
		require.NoError(t, c.Close())
	})
}

// stuck is a writer that blocks until it is released.
type stuck struct {
	entered, free chan struct{}
	bytes.Buffer
	once sync.Once
}

func (s *stuck) Write(p []byte) (int, error) {
	if s.Len() > 0 {
		s.once.Do(func() { close(s.entered); <-s.free })
	}
	return s.Buffer.Write(p)
}

func TestChromeNeverWaitsForItsFile(t *testing.T) {
	w := &stuck{entered: make(chan struct{}), free: make(chan struct{})}
	c := trace.Chrome(w)
	e := event("x.y", time.Second)
	c.Record(t.Context(), e)
	<-w.entered
	e.Group = strings.Repeat("g", 1<<20)
	for range 12 {
		c.Record(t.Context(), e)
	}
	close(w.free)
	require.NoError(t, c.Close())
	all := lines(t, w.Bytes())
	kept := len(spans(all))
	require.Less(t, kept, 13)
	require.Equal(t, fmt.Sprintf("%d events left out: the file was too slow", 13-kept), all[len(all)-1].Name)
}

// TestChromeOfAFileThatHangs checks that a failure is written at once, but that its caller does not
// hang with the file.
func TestChromeOfAFileThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuck{entered: make(chan struct{}), free: make(chan struct{})}
		c := trace.Chrome(w)
		e := event("x.y", time.Second)
		e.Err = io.ErrUnexpectedEOF
		began := time.Now()
		c.Record(t.Context(), e)
		require.Equal(t, 100*time.Millisecond, time.Since(began))
		c.Record(t.Context(), e)
		close(w.free)
		require.NoError(t, c.Close())
		require.Len(t, spans(lines(t, w.Bytes())), 2)
	})
}

// full is a disk without space.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestChromeOfAFullDisk(t *testing.T) {
	c := trace.Chrome(full{})
	c.Record(t.Context(), event("x.y", 0))
	require.ErrorIs(t, c.Close(), io.ErrShortWrite)
}

func TestChromeByManyAtOnce(t *testing.T) {
	const goroutines, each = 8, 200
	var b bytes.Buffer
	c := trace.Chrome(&b)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range each {
				start := time.Now()
				c.Record(context.Background(), trace.Event{Op: "store.get", Last: -1, Start: start, End: time.Now()})
				if i%50 == 0 {
					assert.NoError(t, c.Flush())
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, c.Close())
	ends := map[int]float64{}
	some := spans(lines(t, b.Bytes()))
	require.Len(t, some, goroutines*each)
	for _, l := range some {
		require.LessOrEqual(t, ends[l.TID], l.TS+1e-6, "one after the other in row %d", l.TID)
		ends[l.TID] = l.TS + l.Dur
	}
}

func BenchmarkChrome(b *testing.B) {
	c := trace.Chrome(io.Discard)
	defer c.Close()
	e := trace.Event{Op: "pgroup.barrier", Group: "world", Generation: 1, ID: 77, Seq: 1, Rank: 1, Size: 4, Last: 2, Waited: time.Millisecond}
	b.ReportAllocs()
	for b.Loop() {
		e.Start = time.Now()
		e.End = e.Start.Add(time.Microsecond)
		c.Record(b.Context(), e)
		if e.Seq++; e.Seq%1000 == 0 { // or it drops events that do not fit
			if err := c.Flush(); err != nil {
				b.Fatal(err)
			}
		}
	}
}
