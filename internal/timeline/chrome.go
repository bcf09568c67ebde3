package timeline

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Chrome writes the timeline as one Chrome trace: a process for each rank, on one clock that begins
// with the first event.
func (t *Timeline) Chrome(w io.Writer) error {
	out := bufio.NewWriter(w)
	sep := "[\n"
	line := func(v any) error {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		_, _ = out.WriteString(sep) // a bufio.Writer keeps its first error
		_, err = out.Write(b)
		sep = ",\n"
		return err
	}
	rows := map[rowOfFile]int{}
	for i, r := range t.Rows {
		if err := t.chromeRow(line, i, r, rows); err != nil {
			return fmt.Errorf("timeline: %w", err)
		}
	}
	_, _ = out.WriteString("\n]\n")
	return out.Flush()
}

// rowOfFile is a row of one file. In the merged trace each has its own number, which is no
// process's number, since some readers identify rows by that alone.
type rowOfFile struct {
	*File
	tid int
}

func (t *Timeline) chromeRow(line func(any) error, pid int, r *Row, rows map[rowOfFile]int) error {
	type name struct {
		Name string `json:"name"`
	}
	type order struct {
		Index int `json:"sort_index"`
	}
	type meta struct {
		Name string `json:"name"`
		Ph   string `json:"ph"`
		PID  int    `json:"pid"`
		Args any    `json:"args"`
	}
	for _, m := range []meta{
		{"process_name", "M", pid, name{fmt.Sprintf("%s (pid %d on %s)", r, r.PID, r.Host)}},
		{"process_sort_index", "M", pid, order{pid}},
	} {
		if err := line(m); err != nil {
			return err
		}
	}
	for _, f := range r.Files {
		for _, s := range f.spans {
			row := rowOfFile{f, s.TID}
			if rows[row] == 0 {
				rows[row] = len(t.Rows) + len(rows)
			}
			s.PID, s.TID = pid, rows[row]
			if s.Ph != "M" {
				s.TS = inMicros(s.at.Sub(t.Start))
			}
			// corrected too: otherwise an event that follows at once would overlap
			if s.Dur != nil {
				s.Dur = new(inMicros(s.end.Sub(s.at)))
			}
			if err := line(s); err != nil {
				return err
			}
		}
	}
	return nil
}

func inMicros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// String returns the row's name.
func (r *Row) String() string {
	if r.Rank < 0 {
		return fmt.Sprintf("pid %d", r.PID)
	}
	return fmt.Sprintf("rank %d", r.Rank)
}
