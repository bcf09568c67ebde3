package pgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/trace"
)

// noteResult keeps the result of a vote for the trace. A rank whose vote came last has waited for
// no rank.
func (cl *call) noteResult(ctx context.Context, given []byte, got [][]byte, last int, err error) {
	cl.ctx, cl.last, cl.err = ctx, last, err
	if err != nil {
		cl.last = culprit(err)
	}
	if cl.last != cl.rank {
		cl.waited = time.Since(cl.voted)
	}
	if cl.bytes = len(given); cl.bytes == 0 {
		for _, b := range got {
			cl.bytes += len(b)
		}
	}
}

// culprit returns the only rank that an error names; -1 if it names none, or several.
func culprit(err error) int {
	re, ok := errors.AsType[*RankError](err)
	if !ok || re.Failure == nil {
		return -1
	}
	for _, ranks := range [][]int{re.Lost, re.Left, re.Missing} {
		if len(ranks) == 1 {
			return ranks[0]
		}
	}
	return re.By
}

// traceCall sends the event of a collective operation.
func (cl *call) traceCall() {
	e := cl.event(cl.c.Verb, cl.start)
	e.Seq, e.Last, e.Bytes, e.Waited, e.Err = cl.c.Seq, cl.last, int64(cl.bytes), cl.waited, cl.err
	trace.Record(cl.ctx, cl.cfg.sink, e)
}

// event returns an event with the fields that all events of a handle have.
func (g *Group) event(verb string, start time.Time) trace.Event {
	return trace.Event{
		Op: "pgroup." + verb, Group: g.name, Channel: g.channel, Generation: g.generation, ID: g.id,
		Rank: g.rank, Size: g.size, Last: -1, Start: start,
	}
}

// traceOp sends the event of an operation that is not collective.
func (g *Group) traceOp(ctx context.Context, verb string, start time.Time, bytes int, err error) {
	if g.cfg.sink == nil {
		return
	}
	e := g.event(verb, start)
	e.Bytes, e.Err = int64(bytes), err
	trace.Record(ctx, g.cfg.sink, e)
}

// traceRecv sends the event of a receive of message seq from src. The whole duration counts as
// waiting for src.
func (g *Group) traceRecv(ctx context.Context, start time.Time, src int, seq uint64, bytes int, err error) {
	e := g.event("recv", start)
	e.Seq, e.Bytes, e.Err, e.End = seq, int64(bytes), err, time.Now()
	if src >= 0 && src < g.Size() {
		e.Last = src
	}
	e.Waited = e.Duration()
	e.Channel += fmt.Sprintf(" from %d", src) // Seq is of the stream
	trace.Record(ctx, g.cfg.sink, e)
}

// traceJoin sends the event of a join that has succeeded or failed. The whole duration counts as
// waiting.
func (c *Config) traceJoin(ctx context.Context, a joinRequest, g *Group, start time.Time, err error) {
	if c.sink == nil {
		return
	}
	verb := "create"
	switch {
	case a.from != 0:
		verb = "shrink"
	case a.op != "":
		verb = "sub"
	}
	e := trace.Event{Op: "pgroup." + verb, Group: a.name, Rank: a.rank, Size: a.size, Last: culprit(err), Start: start}
	if g != nil {
		e = g.event(verb, start)
	}
	e.End, e.Err = time.Now(), err
	e.Waited = e.Duration()
	trace.Record(ctx, c.sink, e)
}

// traceFile is a file of TraceDir. Each handle of a group that writes to it holds a reference; the
// last one closes it.
type traceFile struct {
	*trace.ChromeWriter
	f    *os.File
	refs atomic.Int32
}

// openTrace makes the file that c asks for, and the sink that writes to it and to Trace.
func (c *Config) openTrace() error {
	c.file, c.sink = nil, c.Trace
	if c.TraceDir == "" {
		return nil
	}
	if err := os.MkdirAll(c.TraceDir, 0o777); err != nil {
		return fmt.Errorf("pgroup: Config.TraceDir: %w", err)
	}
	f, err := createTrace(c.TraceDir, fmt.Sprintf("rank%d-%s-%d", c.Rank, fileName(c.nodeName()), os.Getpid()))
	if err != nil {
		return fmt.Errorf("pgroup: Config.TraceDir: %w", err)
	}
	c.file = &traceFile{ChromeWriter: trace.Chrome(f), f: f}
	c.file.hold()
	c.sink = trace.Multi(c.Trace, c.file)
	return nil
}

// createTrace makes a new file: a process may have several groups, and process ids repeat.
func createTrace(dir, name string) (*os.File, error) {
	for n, file := 1, name; ; n++ {
		f, err := os.OpenFile(filepath.Join(dir, file+".json"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
		if !errors.Is(err, os.ErrExist) {
			return f, err
		}
		file = fmt.Sprintf("%s-%d", name, n)
	}
}

// fileName returns a host's name for use in a file name.
func fileName(host string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '_'
	}, host)
}

func (t *traceFile) hold() {
	if t != nil {
		t.refs.Add(1)
	}
}

// traceCloseTimeout is how long Close of a group waits for its trace file.
const traceCloseTimeout = 5 * time.Second

// release releases a reference. A file that cannot be written is logged, and does not make the
// group fail or hang.
func (t *traceFile) release(c *Config) {
	if t == nil || t.refs.Add(-1) > 0 {
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(t.Close(), t.f.Close()) }()
	late := time.NewTimer(traceCloseTimeout)
	defer late.Stop()
	var err error
	select {
	case err = <-ended:
	case <-late.C:
		err = fmt.Errorf("not within %v: the group ends without it", traceCloseTimeout)
	}
	if err != nil {
		c.logger().Error("the trace could not be written", "file", t.f.Name(), "err", err)
	}
}
