// Package flightrecorder reads dumps of PyTorch's Flight Recorder: which collective operations a
// rank has called, in which process groups, and which of them have not completed.
//
// PyTorch writes a dump as a pickle, to the file TORCH_FR_DUMP_TEMP_FILE and the rank
// (TORCH_NCCL_DEBUG_INFO_TEMP_FILE in older versions), and as JSON, from a rank's debug server. Parse
// reads both. A pickle is read by package pickle, which runs no code.
//
// The layout is that of versions 2.x of the dump, which torch 2.2 and later write; the tests run with
// torch 2.15. There, gloo records its operations too, except send, recv and monitored_barrier.
package flightrecorder

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/pickle"
)

// ErrMalformed is wrapped by errors about data that is no dump.
var ErrMalformed = errors.New("not a dump of the Flight Recorder")

// Dump is what one rank has recorded: its last operations, 2,000 unless the job sets another number.
type Dump struct {
	Calls []Call // in the order of the calls
	// Dropped reports whether earlier calls have been dropped.
	Dropped bool
}

// Call is one operation that the rank has called.
type Call struct {
	Group   string // name of the process group, as "0"
	Desc    string // description of the process group, as "default_pg"; "undefined" if it has none
	Backend string // as "gloo"
	Name    string // as "all_reduce"
	// Seq is the sequence number of a collective operation in its group, the same on all ranks: 1, 2,
	// 3 …; or that of a send or recv.
	Seq     uint64
	P2P     bool   // a send or recv
	Inputs  string // dtypes and shapes of the tensors that it is called with, as "Float [8, 2]"
	Done    bool   // it has completed
	Created time.Time
}

// World reports whether the process group is that of all ranks of a job.
func (c *Call) World() bool { return c.Group == "0" || c.Desc == "default_pg" }

func (c *Call) String() string {
	if c.Inputs == "" {
		return fmt.Sprintf("%s #%d", c.Name, c.Seq)
	}
	return fmt.Sprintf("%s #%d of %s", c.Name, c.Seq, c.Inputs)
}

// Parse reads a dump, JSON or a pickle. The strings of the result are valid UTF-8 of at most 256
// bytes. An error wraps ErrMalformed.
func Parse(b []byte) (*Dump, error) {
	var v any
	if t := bytes.TrimLeft(b, " \t\r\n"); len(t) > 0 && t[0] == '{' {
		d := json.NewDecoder(bytes.NewReader(t))
		d.UseNumber() // times have more digits than a float64
		if err := d.Decode(&v); err != nil {
			return nil, fmt.Errorf("flightrecorder: %w: JSON: %w", ErrMalformed, err)
		}
	} else {
		got, err := pickle.Parse(b)
		if err != nil {
			return nil, fmt.Errorf("flightrecorder: %w: %w", ErrMalformed, err)
		}
		v = got
	}
	entries, ok := field(v, "entries").([]any)
	if !ok && text(field(v, "version")) == "" { // without calls there are no entries
		return nil, fmt.Errorf("flightrecorder: %w: it has no list of entries", ErrMalformed)
	}
	type numbered struct {
		Call
		number uint64
	}
	calls := make([]numbered, 0, len(entries))
	for i, e := range entries {
		c := numbered{number: number(field(e, "record_id"))}
		if err := c.read(e); err != nil {
			return nil, fmt.Errorf("flightrecorder: %w: entry %d: %w", ErrMalformed, i, err)
		}
		calls = append(calls, c)
	}
	slices.SortStableFunc(calls, func(a, b numbered) int { return cmp.Compare(a.number, b.number) })
	d := &Dump{Calls: make([]Call, len(calls)), Dropped: len(calls) > 0 && calls[0].number > 0}
	for i := range calls {
		d.Calls[i] = calls[i].Call
	}
	return d, nil
}

// read sets the fields of c from an entry.
func (c *Call) read(e any) error {
	group := list(field(e, "process_group"))
	name := text(field(e, "profiling_name"))
	if len(group) != 2 || name == "" {
		return errors.New("it has no process_group and profiling_name")
	}
	c.Group, c.Desc = text(group[0]), text(group[1])
	var ok bool
	if c.Backend, c.Name, ok = strings.Cut(name, ":"); !ok {
		c.Backend, c.Name = "", name
	}
	c.P2P, _ = field(e, "is_p2p").(bool)
	c.Seq = number(field(e, "collective_seq_id"))
	if c.P2P {
		c.Seq = number(field(e, "p2p_seq_id"))
	}
	retired, _ := field(e, "retired").(bool)
	c.Done = retired || text(field(e, "state")) == "completed"
	c.Inputs = inputs(list(field(e, "input_dtypes")), list(field(e, "input_sizes")))
	if ns := number(field(e, "time_created_ns")); ns <= math.MaxInt64 {
		c.Created = time.Unix(0, int64(ns))
	}
	return nil
}

const (
	mostText    = 256 // bytes
	mostTensors = 4   // whose shapes are in Inputs
)

// inputs formats dtypes and shapes.
func inputs(types, sizes []any) string {
	var parts []string
	for i, size := range sizes {
		if i == mostTensors {
			parts = append(parts, fmt.Sprintf("%d more", len(sizes)-i))
			break
		}
		var dims []string
		for _, n := range list(size) {
			dims = append(dims, fmt.Sprint(number(n)))
		}
		part := "[" + strings.Join(dims, ", ") + "]"
		if i < len(types) {
			part = text(types[i]) + " " + part
		}
		parts = append(parts, part)
	}
	return clip(strings.Join(parts, ", "))
}

// field returns a value of an object of JSON, or of a dict of a pickle; nil if there is none.
func field(v any, name string) any {
	switch v := v.(type) {
	case map[string]any:
		return v[name]
	case pickle.Dict:
		got, _ := v.Get(name)
		return got
	}
	return nil
}

func list(v any) []any {
	switch v := v.(type) {
	case []any:
		return v
	case pickle.Tuple:
		return v
	}
	return nil
}

// number returns a number ≥ 0, and 0 for anything else.
func number(v any) uint64 {
	n, ok := v.(int64)
	if s, is := v.(json.Number); is {
		got, err := s.Int64()
		n, ok = got, err == nil
	}
	if !ok || n < 0 {
		return 0
	}
	return uint64(n)
}

func text(v any) string {
	s, _ := v.(string)
	return clip(s)
}

// clip bounds a text that another process has chosen.
func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), mostText)], "?") }
