package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/muster-pg/muster/cmd/muster/internal/benchreport"
	"github.com/spf13/cobra"
)

// checkReports reads the runs to compare with, and rejects reports that could not be written. It
// does both before anything is measured.
func (o *benching) checkReports(cmd *cobra.Command) error {
	for _, name := range o.reports {
		if filepath.Ext(name) != ".html" {
			return usagef(cmd, "--report %s: a report is a page: name it .html", name)
		}
		if err := writable(name); err != nil {
			return &exit{code: exitFailed, text: fmt.Sprintf("--report %s: %s", name, cause(err)), err: err}
		}
	}
	for _, name := range o.against {
		runs, err := readRuns(name)
		if err != nil {
			return &exit{code: exitFailed, text: fmt.Sprintf("--against %s: %s", name, err), err: err}
		}
		o.others = append(o.others, runs...)
	}
	return nil
}

// writable checks that writeReport can write the file, and does not change or create it.
func writable(name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err == nil {
		return errors.Join(f.Close(), os.Remove(name))
	}
	if !errors.Is(err, os.ErrExist) {
		return err
	}
	if f, err = os.OpenFile(name, os.O_WRONLY, 0); err != nil {
		return err
	}
	return f.Close()
}

func readRuns(name string) ([]benchreport.Run, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	runs, err := benchreport.Read(f, strings.TrimSuffix(filepath.Base(name), filepath.Ext(name)))
	for i := range runs {
		if runs[i].Name == thisRun { // from an earlier run
			runs[i].Name = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
		}
	}
	return runs, err
}

// thisRun is the name of the current run.
const thisRun = "this run"

// finish prints the comparison and writes the reports that were requested.
func (o *benching) finish(out io.Writer, table benchTable, all benchreport.Run) error {
	runs := append([]benchreport.Run{all}, o.others...)
	if len(o.others) > 0 {
		table.compare(runs)
	}
	var failed []error // collected: figures are printed even if the disk is full
	for _, name := range o.reports {
		if err := writeReport(name, runs); err != nil {
			failed = append(failed, fmt.Errorf("--report %s: %w", name, err))
		}
	}
	if o.asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		failed = append(failed, enc.Encode(all))
	}
	return errors.Join(failed...)
}

// writeReport writes or replaces a file, because a report may be made again.
func writeReport(name string, runs []benchreport.Run) error {
	var b bytes.Buffer
	if err := benchreport.HTML(&b, runs); err != nil {
		return err
	}
	return cause(os.WriteFile(name, b.Bytes(), 0o666))
}

// compare prints a comparison of this run with others.
func (t benchTable) compare(runs []benchreport.Run) {
	rows, by := benchreport.Compare(runs)
	for i, other := range runs[1:] {
		fmt.Fprintf(t.out, "\n%s\n", t.ink.bold(fmt.Sprintf("beside %s, by the %s", printable(other.Name), by)))
		none := true
		for _, r := range rows {
			b := r.Others[i]
			if b.Ratio == 0 {
				continue
			}
			none = false
			name := r.Case
			if r.Size > 0 {
				name += " " + benchreport.Size(r.Size)
			}
			fmt.Fprintf(t.out, "  %s %s  %s  %s\n", padRight(name, 20), padLeft(fmt.Sprintf("%d ranks", r.Ranks), 10), padLeft(benchreport.Latency(b.Micros), 9), t.comparison(b))
		}
		if none {
			fmt.Fprintln(t.out, "  nothing in common: other cases, ranks or sizes, or it has no latency")
		}
	}
}

func (t benchTable) comparison(b benchreport.Beside) string {
	switch v := b.Comparison(); {
	case strings.HasSuffix(v, "faster"):
		return t.ink.green(v)
	case strings.HasSuffix(v, "slower"):
		return t.ink.red(v)
	default:
		return v
	}
}
