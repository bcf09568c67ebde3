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
	// chromeDelay is the maximum time that an event is only in memory.
	chromeDelay = 100 * time.Millisecond
	// chromeMaxBuffer bounds the bytes that wait for a slow writer.
	chromeMaxBuffer = 8 << 20
	// chromeVersion is the version of the file's fields.
	chromeVersion = 1
)

// process identifies this process, since process ids repeat over time and in other containers.
var process = sync.OnceValue(rand.Text)

// ChromeWriter is a Sink that writes a file for Perfetto. It is safe for concurrent use.
//
// Record does not wait for the file: a timer writes within 100 ms. A process that is killed loses
// the events of that time; its file, which then lacks its end, can still be opened. Only the event
// of a failed operation is written before Record returns, for at most 100 ms, since programs exit
// because of failures. While w is slow, events that do not fit in 8 MiB are dropped, and the file
// has their number.
type ChromeWriter struct {
	w     io.Writer
	start time.Time
	pid   int

	mu         sync.Mutex // protects the fields below; not held while w writes
	notWriting sync.Cond  // signals that writing is false
	buf        []byte     // not yet written
	spare      []byte
	timer      *time.Timer
	armed      bool
	writing    bool
	closed     bool
	err        error // the first error of w
	dropped    int
	named      bool // the process name has been written
	tracks     map[trackKey]*track
	tids       int
}

// trackKey identifies a track: the operations of one package in one group.
type trackKey struct{ family, group string }

// track is the rows of a track. Events of one row must not overlap, so each has the end of its last
// event.
type track struct{ rows []row }

type row struct {
	tid int
	end time.Duration
}

// Chrome returns a sink that writes events to w in Chrome's trace event format, one per line, for
// ui.perfetto.dev, chrome://tracing and "muster trace". A file has the events of one process. Its
// times are monotonic and count from the call of Chrome; "muster trace" aligns those of several
// processes (see package timeline). The caller must Close it.
func Chrome(w io.Writer) *ChromeWriter {
	c := &ChromeWriter{w: w, start: time.Now(), pid: os.Getpid(), tracks: map[trackKey]*track{}}
	c.notWriting.L = &c.mu
	c.timer = time.AfterFunc(time.Hour, c.expired)
	c.timer.Stop()
	host, _ := os.Hostname()
	begin := fmt.Appendf(nil, `[`+"\n"+`{"name":"muster","ph":"M","pid":%d,"tid":0,"args":{"version":%d,"start":"%d","process":"%s","host":`,
		c.pid, chromeVersion, c.start.UnixNano(), process())
	// at once, so that no file is empty
	_, c.err = w.Write(append(appendJSON(begin, host), "}}"...))
	return c
}

// Record implements Sink.
func (c *ChromeWriter) Record(_ context.Context, e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed || c.err != nil:
		return
	case len(c.buf) > chromeMaxBuffer:
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

// writeNow writes the buffer, and waits at most chromeDelay for the write: the file may hang, and a
// failed operation must not hang with it. c.mu must be held; it is unlocked meanwhile.
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

// arm starts the timer for the buffer. c.mu must be held.
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

// write writes until the buffer is empty, unless another goroutine does. c.mu must be held; it is
// unlocked meanwhile.
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
	c.notWriting.Broadcast()
}

// Flush writes the buffer, and returns the first error of w.
func (c *ChromeWriter) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.writing {
		c.notWriting.Wait()
	}
	c.write()
	return c.err
}

// Close ends the file, and returns the first error of w. It does not close w. Later events are
// dropped. A second Close only flushes.
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

// noteDropped writes the number of events that were dropped before at. c.mu must be held.
func (c *ChromeWriter) noteDropped(at time.Time) {
	if c.dropped == 0 {
		return
	}
	c.buf = fmt.Appendf(c.buf, ",\n"+`{"name":"%d events left out: the file was too slow","cat":"dropped","ph":"i","s":"p","pid":%d,"tid":0,"ts":`, c.dropped, c.pid)
	c.buf = append(appendMicros(c.buf, at.Sub(c.start)), '}')
	c.dropped = 0
}

// append appends one event. c.mu must be held.
func (c *ChromeWriter) append(e *Event) {
	family, name, ok := strings.Cut(e.Op, ".")
	if !ok {
		family, name = "", e.Op
	}
	begin, end := e.Start.Sub(c.start), e.End.Sub(c.start)
	if !c.named && e.Size > 0 {
		c.named = true
		c.appendName("process_name", 0, fmt.Sprintf("rank %d of %d", e.Rank, e.Size))
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

// appendArgs appends the fields that are set.
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

// row returns the row for an event: the first one of its track that is free. c.mu must be held.
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
	c.appendName("thread_name", c.tids, title)
	return c.tids
}

// appendName names the process or a row of it.
func (c *ChromeWriter) appendName(what string, tid int, name string) {
	c.buf = fmt.Appendf(c.buf, ",\n"+`{"name":"%s","ph":"M","pid":%d,"tid":%d,"args":{"name":`, what, c.pid, tid)
	c.buf = append(appendJSON(c.buf, name), "}}"...)
}

// appendMicros appends d in microseconds, with nanoseconds as decimals.
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

// appendJSON appends s as a JSON string.
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
