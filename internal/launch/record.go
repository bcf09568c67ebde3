package launch

import (
	"bufio"
	"io"
	"sync"
)

const (
	tailLines = 10      // that Process.Tail returns at most
	tailWidth = 1 << 10 // bytes of each; the rest is cut off
)

// record keeps the last lines of a rank, of both streams, and copies all of them to its log.
type record struct {
	mu   sync.Mutex // protects the fields below: both streams write
	tail []string   // oldest first
	log  *bufio.Writer
	file io.Closer // nil: no log
	err  error     // the first write that failed
}

func newRecord(log io.WriteCloser) *record {
	if log == nil {
		return &record{}
	}
	return &record{log: bufio.NewWriter(log), file: log}
}

// add takes a line without its newline.
func (r *record) add(line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.tail) == tailLines {
		r.tail = append(r.tail[:0], r.tail[1:]...)
	}
	r.tail = append(r.tail, string(line[:min(len(line), tailWidth)]))
	if r.file != nil {
		_, _ = r.log.Write(line) // its error is that of the next Flush
		_ = r.log.WriteByte('\n')
	}
}

// flush writes to the log what add has taken, so that a reader of the file sees it at once.
func (r *record) flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return
	}
	if err := r.log.Flush(); r.err == nil {
		r.err = err
	}
}

// close closes the log, and returns the first error of writing it.
func (r *record) close() error {
	r.flush()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	if err := r.file.Close(); r.err == nil {
		r.err = err
	}
	return r.err
}

func (r *record) last() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.tail...)
}
