package trace

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	// chromeDelay is how long an event may be in memory alone.
	chromeDelay = 100 * time.Millisecond
	// chromeRoom is how much may wait for a writer that is slow.
	chromeRoom = 8 << 20
	// chromeVersion is of the fields that the reader knows.
	chromeVersion = 1
)

// process tells this process from all others: its number comes again, after it or in another container.
var process = sync.OnceValue(rand.Text)

// ChromeWriter is a Sink that writes a file which Perfetto opens. It may be used by many goroutines at once.
//
// Record does not wait for the file: a timer writes what there is within 100 ms. So a process that is killed loses what it did in that time, and
// its file, which lacks its end then, still opens. A failure alone is written before Record returns, if w takes no more than 100 ms, since programs end because of
// them. While w is slow, what does not fit in 8 MiB is left out, and the file says how much that was.
type ChromeWriter struct {
	w     io.Writer
	start time.Time
	pid   int

	mu      sync.Mutex // protects the fields below; not held while w writes
	idle    sync.Cond  // nobody writes
	buf     []byte     // what is not written yet
	spare   []byte
	timer   *time.Timer
	armed   bool
	writing bool
	closed  bool
	err     error // the first of w
	dropped int
	named   bool // the process has a name
	tracks  map[trackKey]*track
	tids    int
}

// trackKey is what has rows of its own: what one package does in one group.
type trackKey struct{ family, group string }

// track is its rows, by when the last event in each ended: events of one row must not overlap.
type track struct{ rows []row }

type row struct {
	tid int
	end time.Duration
}

// Chrome writes events to w in Chrome's trace event format, one a line, as ui.perfetto.dev, chrome://tracing and "muster trace" open it. A
// file is one process's. Its times count from when Chrome was called, by the running clock of this process, which no change of the
// time of day disturbs; "muster trace" brings those of several processes together (see package timeline). Close it at the end.
func Chrome(w io.Writer) *ChromeWriter {
	c := &ChromeWriter{w: w, start: time.Now(), pid: os.Getpid(), tracks: map[trackKey]*track{}}
	c.idle.L = &c.mu
	c.timer = time.AfterFunc(time.Hour, c.expired)
	c.timer.Stop()
	host, _ := os.Hostname()
	begin := fmt.Appendf(nil, `[`+"\n"+`{"name":"muster","ph":"M","pid":%d,"tid":0,"args":{"version":%d,"start":"%d","process":"%s","host":`,
		c.pid, chromeVersion, c.start.UnixNano(), process())
	_, c.err = w.Write(append(appendJSON(begin, host), "}}"...)) // at once: no file is empty
	return c
}

// Record implements Sink.
func (c *ChromeWriter) Record(_ context.Context, e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed || c.err != nil:
		return
	case len(c.buf) > chromeRoom:
		c.dropped++
		return
	}
	c.noteDropped(e.End)
	c.append(&e)
	if e.Err != nil {
		c.writeNow()
		return
	}
	c.arm()
}

// writeNow has what there is written, and waits for that, but no longer than anything else may be in memory alone: a file may hang, and whoever
// is told of a failure is not to. Called with mu; it unlocks meanwhile.
func (c *ChromeWriter) writeNow() {
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.write()
	}()
	c.mu.Unlock()
	defer c.mu.Lock()
	late := time.NewTimer(chromeDelay)
	defer late.Stop()
	select {
	case <-written:
	case <-late.C:
	}
}

// arm has the timer write what there is. Called with mu.
func (c *ChromeWriter) arm() {
	if !c.armed && !c.writing {
		c.armed = true
		c.timer.Reset(chromeDelay)
	}
}

func (c *ChromeWriter) expired() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = false
	c.write()
}

// write writes until nothing is left, unless somebody else does. Called with mu; it unlocks meanwhile.
func (c *ChromeWriter) write() {
	if c.writing {
		return
	}
	c.writing = true
	for len(c.buf) > 0 && c.err == nil {
		b := c.buf
		c.buf = c.spare[:0]
		c.mu.Unlock()
		_, err := c.w.Write(b)
		c.mu.Lock()
		c.spare, c.err = b, err
	}
	c.writing = false
	c.idle.Broadcast()
}

// Flush writes what there is, and returns w's first error.
func (c *ChromeWriter) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.writing {
		c.idle.Wait()
	}
	c.write()
	return c.err
}

// Close ends the file, leaves w open, and returns w's first error. What is recorded later is nobody's. It may be called twice.
func (c *ChromeWriter) Close() error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		c.timer.Stop()
		c.noteDropped(time.Now())
		c.buf = append(c.buf, "\n]\n"...)
	}
	c.mu.Unlock()
	return c.Flush()
}

// noteDropped says how many events are missing before at. Called with mu.
func (c *ChromeWriter) noteDropped(at time.Time) {
	if c.dropped == 0 {
		return
	}
	c.buf = fmt.Appendf(c.buf, ",\n"+`{"name":"%d events left out: the file was too slow","cat":"dropped","ph":"i","s":"p","pid":%d,"tid":0,"ts":`, c.dropped, c.pid)
	c.buf = append(appendMicros(c.buf, at.Sub(c.start)), '}')
	c.dropped = 0
}

// append appends one event. Called with mu.
func (c *ChromeWriter) append(e *Event) {
	family, name, ok := strings.Cut(e.Op, ".")
	if !ok {
		family, name = "", e.Op
	}
	begin, end := e.Start.Sub(c.start), e.End.Sub(c.start)
	if !c.named && e.Size > 0 {
		c.named = true
		c.nameIt("process_name", 0, fmt.Sprintf("rank %d of %d", e.Rank, e.Size))
	}
	tid := c.row(trackKey{family, e.Group}, begin, end)
	b := append(c.buf, ",\n{\"name\":"...)
	b = appendJSON(b, name)
	b = append(b, `,"cat":`...)
	b = appendJSON(b, family)
	b = append(b, `,"ph":"X","pid":`...)
	b = strconv.AppendInt(b, int64(c.pid), 10)
	b = append(b, `,"tid":`...)
	b = strconv.AppendInt(b, int64(tid), 10)
	b = append(b, `,"ts":`...)
	b = appendMicros(b, begin)
	b = append(b, `,"dur":`...)
	b = appendMicros(b, end-begin)
	b = append(b, `,"args":{"group":`...)
	b = appendJSON(b, e.Group)
	b = appendArgs(b, e)
	c.buf = append(b, "}}"...)
}

// appendArgs appends what is there of the rest.
func appendArgs(b []byte, e *Event) []byte {
	number := func(name string, n int64) {
		b = append(append(append(b, `,"`...), name...), `":`...)
		b = strconv.AppendInt(b, n, 10)
	}
	if e.Channel != "" {
		b = appendJSON(append(b, `,"channel":`...), e.Channel)
	}
	if e.Generation != 0 {
		number("generation", int64(e.Generation))
	}
	if e.ID != 0 { // a string: numbers have 53 bits in some readers
		b = append(b, `,"id":"`...)
		b = append(strconv.AppendUint(b, e.ID, 16), '"')
	}
	if e.Seq != 0 {
		number("seq", int64(e.Seq))
	}
	if e.Size > 0 {
		number("rank", int64(e.Rank))
		number("size", int64(e.Size))
	}
	if e.Last >= 0 && e.Size > 0 {
		number("last", int64(e.Last))
	}
	if e.Bytes != 0 {
		number("bytes", e.Bytes)
	}
	if e.Waited > 0 {
		b = appendMicros(append(b, `,"waited":`...), e.Waited)
	}
	if e.Err != nil {
		b = appendJSON(append(b, `,"error":`...), e.Err.Error())
	}
	return b
}

// row is where an event is drawn: the first row of its track that is free. Called with mu.
func (c *ChromeWriter) row(k trackKey, begin, end time.Duration) int {
	t := c.tracks[k]
	if t == nil {
		t = &track{}
		c.tracks[k] = t
	}
	for i := range t.rows {
		if t.rows[i].end <= begin {
			t.rows[i].end = max(end, begin)
			return t.rows[i].tid
		}
	}
	c.tids++
	t.rows = append(t.rows, row{c.tids, max(end, begin)})
	title := strings.Trim(k.family+" · "+k.group, " ·")
	if n := len(t.rows); n > 1 {
		title += fmt.Sprintf(" (%d)", n)
	}
	c.nameIt("thread_name", c.tids, title)
	return c.tids
}

// nameIt gives a process or a row of it a name.
func (c *ChromeWriter) nameIt(what string, tid int, name string) {
	c.buf = fmt.Appendf(c.buf, ",\n"+`{"name":"%s","ph":"M","pid":%d,"tid":%d,"args":{"name":`, what, c.pid, tid)
	c.buf = append(appendJSON(c.buf, name), "}}"...)
}

// appendMicros appends d in microseconds, to the nanosecond.
func appendMicros(b []byte, d time.Duration) []byte {
	if d < 0 {
		b, d = append(b, '-'), -d
	}
	b = strconv.AppendInt(b, int64(d/time.Microsecond), 10)
	if ns := int64(d % time.Microsecond); ns != 0 {
		b = append(b, '.', byte('0'+ns/100), byte('0'+ns/10%10), byte('0'+ns%10))
	}
	return b
}

// appendJSON appends s as JSON has it.
func appendJSON(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
