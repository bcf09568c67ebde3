// Package timeline merges the traces of a job's ranks on one clock. It writes them as one Chrome
// trace, and sums up which ranks the others waited for. Command muster trace uses it.
//
//	files, err := timeline.ReadDir("traces")  // of MUSTER_TRACE, or of trace.Chrome
//	t, err := timeline.Merge(files...)
//	err = t.Chrome(w)
package timeline

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/trace"
)

// The errors that errors of this package match.
var (
	ErrFormat = errors.New("not a trace of muster")
	ErrJobs   = errors.New("traces of different jobs")
	ErrEmpty  = errors.New("it is empty: was the disk full?")
)

// File is the trace of one process, as trace.Chrome wrote it.
type File struct {
	Name    string // of the file, for errors
	Host    string
	PID     int
	Process string    // distinguishes it from others of the same number on that host
	Start   time.Time // its start by its own clock
	// the end is missing: the process did not close its group, was killed, or still runs
	Truncated bool
	Dropped   []string // notes in the file about dropped events
	Events    []trace.Event

	spans []span // the lines of Events, with all their fields
}

// span is one line of a file.
type span struct {
	Name string          `json:"name"`
	Cat  string          `json:"cat,omitempty"`
	Ph   string          `json:"ph"`
	S    string          `json:"s,omitempty"`
	PID  int             `json:"pid"`
	TID  int             `json:"tid"`
	TS   float64         `json:"ts"`
	Dur  *float64        `json:"dur,omitempty"` // of events, even if it is 0
	Args json.RawMessage `json:"args,omitempty"`

	at, end time.Time // on the common clock, once it is known
}

// args are the arguments of an event, or of the line that begins a file.
type args struct {
	Group, Channel   string
	Generation, Seq  uint64
	ID               string
	Rank, Size, Last *int
	Bytes            int64
	Waited           float64
	Error            string

	Version              int
	Start, Host, Process string
}

// maxLine bounds the length of a line: an error's text may be long.
const maxLine = 16 << 20

// Read reads the trace of one process. A trace that stops within an event, since its process was
// killed, is valid up to there.
func Read(name string, r io.Reader) (*File, error) {
	f := &File{Name: name, Truncated: true}
	in := bufio.NewScanner(r)
	in.Buffer(nil, maxLine)
	for n := 1; in.Scan(); n++ {
		text := bytes.TrimSpace(in.Bytes())
		text = bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimPrefix(text, []byte("[")), []byte(",")))
		switch {
		case len(text) == 0:
			continue
		case string(text) == "]":
			f.Truncated = false
			continue
		}
		if err := f.add(text); err != nil {
			// it is not the last line, or not a line of ours
			if in.Scan() || f.Start.IsZero() && !isCut(text, err) {
				return nil, fmt.Errorf("timeline: %s, line %d: %w: %w", name, n, ErrFormat, err)
			}
			break
		}
	}
	switch err := in.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("timeline: %s: %w: a line of more than %d MiB", name, ErrFormat, maxLine>>20)
	case err != nil:
		return nil, fmt.Errorf("timeline: %s: %w", name, err)
	case f.Start.IsZero():
		return nil, fmt.Errorf("timeline: %s: %w: %w", name, ErrFormat, ErrEmpty)
	}
	return f, nil
}

// isCut reports whether text may be the first part of a line.
func isCut(text []byte, err error) bool {
	e, ok := errors.AsType[*json.SyntaxError](err)
	return ok && text[0] == '{' && e.Offset >= int64(len(text))
}

// add parses one line.
func (f *File) add(text []byte) error {
	var s span
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	var a args
	if s.Args != nil {
		if err := json.Unmarshal(s.Args, &a); err != nil {
			return err
		}
	}
	switch {
	case f.Start.IsZero():
		return f.begin(&s, &a)
	case s.Cat == "dropped":
		f.Dropped = append(f.Dropped, s.Name)
	case !sane(s.TS) || s.Dur != nil && !sane(*s.Dur):
		return errors.New("its times are none")
	case s.Ph == "X":
		e, err := f.event(&s, &a)
		if err != nil {
			return err
		}
		f.Events = append(f.Events, e)
	case s.Ph == "M" && s.Name == "process_name":
		return nil // the merged trace has its own names
	}
	f.spans = append(f.spans, s)
	return nil
}

// begin parses the first line.
func (f *File) begin(s *span, a *args) error {
	if s.Ph != "M" || s.Name != "muster" || a.Version == 0 {
		return errors.New("it does not begin as trace.Chrome has it")
	}
	if a.Version > 1 {
		return fmt.Errorf("it is of version %d, and this reads 1: take a newer muster", a.Version)
	}
	ns, err := strconv.ParseInt(a.Start, 10, 64)
	if err != nil {
		return fmt.Errorf("its start is %q, and no number of nanoseconds", a.Start)
	}
	f.Host, f.PID, f.Process, f.Start = a.Host, s.PID, a.Process, time.Unix(0, ns)
	return nil
}

func (f *File) event(s *span, a *args) (e trace.Event, err error) {
	dur := 0.0
	if s.Dur != nil {
		dur = *s.Dur
	}
	e = trace.Event{
		Op: strings.TrimPrefix(s.Cat+"."+s.Name, "."), Group: a.Group, Channel: a.Channel, Generation: a.Generation, Seq: a.Seq,
		Rank: -1, Last: -1, Bytes: a.Bytes, Start: f.Start.Add(micros(s.TS)), Waited: micros(a.Waited),
	}
	e.End = e.Start.Add(micros(dur))
	if a.ID != "" {
		if e.ID, err = strconv.ParseUint(a.ID, 16, 64); err != nil {
			return e, fmt.Errorf("the id %q is no number", a.ID)
		}
	}
	if a.Error != "" {
		e.Err = errors.New(a.Error)
	}
	if a.Size == nil || a.Rank == nil {
		return e, nil
	}
	e.Rank, e.Size = *a.Rank, *a.Size
	if a.Last != nil {
		e.Last = *a.Last
	}
	if e.Rank < 0 || e.Rank >= e.Size || e.Last >= e.Size || dur < 0 {
		return e, fmt.Errorf("rank %d of %d, for rank %d, in %g µs: that cannot be", e.Rank, e.Size, e.Last, dur)
	}
	return e, nil
}

// sane reports whether a number of microseconds is less than ten years.
func sane(us float64) bool { return math.Abs(us) < 10*365*24*3600*1e6 }

func micros(us float64) time.Duration { return time.Duration(math.Round(us * 1e3)) }

// ReadFile reads the trace in the file at path, as Read does.
func ReadFile(path string) (*File, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("timeline: %w", err)
	}
	defer in.Close()
	return Read(path, in)
}

// ReadDir reads every rank*.json in dir, as MUSTER_TRACE names them. It leaves out files without a
// beginning, which are the result of a full disk, and then also returns an error that matches
// ErrEmpty and names them.
func ReadDir(dir string) (files []*File, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("timeline: %w", err)
	}
	var empty []error
	for _, e := range entries {
		if ours, _ := filepath.Match("rank*.json", e.Name()); !ours {
			continue
		}
		f, err := ReadFile(filepath.Join(dir, e.Name()))
		switch {
		case errors.Is(err, ErrEmpty):
			empty = append(empty, err)
		case err != nil:
			return nil, err
		default:
			files = append(files, f)
		}
	}
	if empty != nil {
		return files, errors.Join(empty...)
	}
	if files == nil {
		return nil, fmt.Errorf("timeline: %w: there is no rank*.json in %s", ErrFormat, dir)
	}
	return files, nil
}
