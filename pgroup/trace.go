package pgroup

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/trace"
)

// note keeps what cast knows for the trace. A rank that came last has waited for nobody.
func (cl *call) note(ctx context.Context, given []byte, got [][]byte, last int, err error) {
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

// culprit is the one rank that an error names; -1 if it names none, or more.
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

// record tells the trace of a collective verb.
func (cl *call) record() {
	e := cl.event(cl.c.Verb, cl.start)
	e.Seq, e.Last, e.Bytes, e.Waited, e.Err = cl.c.Seq, cl.last, int64(cl.bytes), cl.waited, cl.err
	trace.Record(cl.ctx, cl.cfg.sink, e)
}

// event is what all events of a handle have in common.
func (g *Group) event(verb string, start time.Time) trace.Event {
	return trace.Event{
		Op: "pgroup." + verb, Group: g.name, Channel: g.channel, Generation: g.generation, ID: g.id,
		Rank: g.rank, Size: g.size, Last: -1, Start: start,
	}
}

// tell tells the trace of what is no collective verb.
func (g *Group) tell(ctx context.Context, verb string, start time.Time, bytes int, err error) {
	e := g.event(verb, start)
	e.Bytes, e.Err = int64(bytes), err
	trace.Record(ctx, g.cfg.sink, e)
}

// tellRecv tells the trace of message seq from src: all of its time this rank waited for that one, if there is one.
func (g *Group) tellRecv(ctx context.Context, start time.Time, src int, seq uint64, bytes int, err error) {
	e := g.event("recv", start)
	e.Seq, e.Bytes, e.Err, e.End = seq, int64(bytes), err, time.Now()
	if src >= 0 && src < g.Size() {
		e.Last = src
	}
	e.Waited = e.Duration()
	e.Channel += fmt.Sprintf(" from %d", src) // numbers are the stream's
	trace.Record(ctx, g.cfg.sink, e)
}

// tellJoin tells the trace of a group that has come together, or did not: all of its time this rank waited.
func (c *Config) tellJoin(ctx context.Context, a admission, g *Group, start time.Time, err error) {
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

// identify makes what tells this generation from one with the same number on another store: who its ranks are.
func (s *seat) identify() {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%d", s.name, s.run, s.generation)
	for _, m := range s.members {
		h.Write(m)
	}
	s.id = max(h.Sum64(), 1)
}

// traceFile is a file of TraceDir. Every handle of a group that tells it holds it; it goes with the last one.
type traceFile struct {
	*trace.ChromeWriter
	f *os.File

	mu   sync.Mutex // protects refs
	refs int
}

// openTrace makes the file that c asks for, and has it told what Trace is.
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
	c.file = &traceFile{ChromeWriter: trace.Chrome(f), f: f, refs: 1}
	c.sink = trace.Multi(c.Trace, c.file)
	return nil
}

// createTrace makes a file that is not there yet: a process may have several groups, and its number may come again.
func createTrace(dir, name string) (*os.File, error) {
	for n, file := 1, name; ; n++ {
		f, err := os.OpenFile(filepath.Join(dir, file+".json"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
		if !errors.Is(err, os.ErrExist) {
			return f, err
		}
		file = fmt.Sprintf("%s-%d", name, n)
	}
}

// fileName is a host's name as part of a file's.
func fileName(host string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '_'
	}, host)
}

func (t *traceFile) hold() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refs++
}

// fileTime is how long the end of a group may wait for its file.
const fileTime = 5 * time.Second

// release lets go of the file. That it could not be written is no reason for a group to fail, or to hang.
func (t *traceFile) release(c *Config) {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.refs--
	last := t.refs == 0
	t.mu.Unlock()
	if !last {
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(t.Close(), t.f.Close()) }()
	late := time.NewTimer(fileTime)
	defer late.Stop()
	var err error
	select {
	case err = <-ended:
	case <-late.C:
		err = fmt.Errorf("not within %v: the group ends without it", fileTime)
	}
	if err != nil {
		c.logger().Error("the trace could not be written", "file", t.f.Name(), "err", err)
	}
}
