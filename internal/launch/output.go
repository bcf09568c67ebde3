package launch

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	maxLine   = 64 << 10 // a longer line is cut into pieces, or one rank could take all memory
	firstRead = 512      // most ranks of a large job write little: their buffers would be most of its memory
	readSize  = 32 << 10
	maxDrain  = 1 << 20 // the most that a pipe holds, unless root has raised it
)

// output merges the lines of all ranks.
type output struct {
	stdout, stderr io.Writer // nil: discarded

	closed chan struct{} // closed when the reader has gone away (EPIPE)

	mu  sync.Mutex // protects the writers and err
	err error      // the first write that failed; later ones are not tried
}

func newOutput(stdout, stderr io.Writer) *output {
	return &output{stdout: stdout, stderr: cmp.Or(stderr, stdout), closed: make(chan struct{})}
}

// write takes whole lines.
func (o *output) write(w io.Writer, b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return
	}
	if _, err := w.Write(b); err != nil {
		o.err = fmt.Errorf("write the ranks' output: %w", err)
		if errors.Is(err, syscall.EPIPE) {
			close(o.closed)
		}
	}
}

func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// fail keeps the error of a rank's log, as if it were one of the outputs.
func (o *output) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
}

// connect gives cmd a pipe for each of its streams that is not discarded. There are two, since
// lines of the two streams could mix in one. It owns log, even if it fails.
func (o *output) connect(cmd *exec.Cmd, prefix string, log io.WriteCloser) (*streams, error) {
	s := &streams{record: newRecord(log)}
	var err error
	cmd.Stdout, err = s.open(o, o.stdout, prefix)
	if err == nil {
		cmd.Stderr, err = s.open(o, o.stderr, prefix)
	}
	if err != nil {
		s.closePipes()
		return nil, err
	}
	return s, nil
}

// streams are the two outputs of one rank.
type streams struct {
	all     []*stream
	record  *record
	copiers sync.WaitGroup
}

type stream struct {
	read, write *os.File
	lines       lines
}

// open returns the rank's end of a new pipe, or nil if the stream is discarded.
func (s *streams) open(o *output, w io.Writer, prefix string) (io.Writer, error) {
	if w == nil && s.record.file == nil {
		return nil, nil
	}
	r, pw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	send := func(b []byte) {
		s.record.flush()
		if w != nil {
			o.write(w, b)
		}
	}
	s.all = append(s.all, &stream{read: r, write: pw, lines: lines{prefix: prefix, send: send, each: s.record.add}})
	return pw, nil
}

// closePipes closes the pipes and the log of a rank that was not started.
func (s *streams) closePipes() {
	_ = s.record.close() // it is empty
	for _, st := range s.all {
		st.read.Close()
		st.write.Close()
	}
}

// copy starts the copying goroutines; the rank has its own write ends by now.
func (s *streams) copy() {
	for _, st := range s.all {
		st.write.Close()
		s.copiers.Go(st.copy)
	}
}

// finish returns when all that the rank wrote is delivered. The rank's process group has ended, so
// all of it is in the pipe. A process that left the group, and has the pipe open, is not waited
// for. The error is that of the rank's log.
func (s *streams) finish() error {
	for _, st := range s.all {
		_ = st.read.SetReadDeadline(time.Unix(1, 0)) // a pipe without deadlines is read to its end
	}
	s.copiers.Wait()
	for _, st := range s.all {
		st.read.Close()
	}
	return s.record.close()
}

func (s *stream) copy() {
	buf := make([]byte, firstRead)
	for {
		n, err := s.read.Read(buf)
		s.lines.add(buf[:n])
		if n == len(buf) && n < readSize {
			buf = make([]byte, min(4*n, readSize))
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.drain(buf)
		}
		if err != nil {
			s.lines.flush()
			return
		}
	}
}

// drain takes what is in the pipe now, without waiting for more.
func (s *stream) drain(buf []byte) {
	raw, err := s.read.SyscallConn()
	if err != nil {
		return
	}
	_ = s.read.SetReadDeadline(time.Time{}) // a passed one would refuse the reads below
	for taken := 0; taken < maxDrain; {
		n := readNow(raw, buf)
		if n <= 0 {
			return
		}
		s.lines.add(buf[:n])
		taken += n
	}
}

func readNow(raw syscall.RawConn, buf []byte) (n int) {
	read := func(fd uintptr) bool {
		n, _ = syscall.Read(int(fd), buf)
		return true // even when there is nothing: never wait
	}
	if raw.Read(read) != nil {
		return 0
	}
	return n
}

// lines puts a prefix before each line, and sends whole lines only. It is owned by
// one copying goroutine.
type lines struct {
	prefix string
	send   func([]byte) // must not keep what it gets
	each   func([]byte) // receives each line without prefix and newline, before send; must not keep it

	part  []byte // the line begun, at most maxLine
	whole []byte // lines to send
}

func (l *lines) add(b []byte) {
	for len(b) > 0 {
		n := bytes.IndexByte(b, '\n')
		if n < 0 {
			l.take(b)
			break
		}
		l.take(b[:n])
		l.endLine()
		b = b[n+1:]
	}
	l.sendWhole()
}

// flush ends the line begun: nothing more comes.
func (l *lines) flush() {
	if len(l.part) > 0 {
		l.endLine()
	}
	l.sendWhole()
}

// take adds to the line begun, and ends it each time that it is full.
func (l *lines) take(b []byte) {
	for len(l.part)+len(b) > maxLine {
		n := maxLine - len(l.part)
		l.part = append(l.part, b[:n]...)
		l.endLine()
		b = b[n:]
	}
	l.part = append(l.part, b...)
}

func (l *lines) endLine() {
	l.each(l.part)
	l.whole = append(l.whole, l.prefix...)
	l.whole = append(l.whole, l.part...)
	l.whole = append(l.whole, '\n')
	l.part = l.part[:0]
}

func (l *lines) sendWhole() {
	if len(l.whole) > 0 {
		l.send(l.whole)
		l.whole = l.whole[:0]
	}
}
