package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/muster-pg/muster/internal/status"
)

// Ink marks text for a terminal. The zero Ink does not change the text.
type Ink struct{ Good, Fair, Bad, Dim func(string) string }

// Print writes a report for people.
func (r *Report) Print(w io.Writer, ink Ink) error {
	var b strings.Builder
	for _, f := range r.Findings {
		mark := map[Level]func(string) string{OK: ink.Good, Warning: ink.Fair, Problem: ink.Bad}[f.Level]
		fmt.Fprintf(&b, "%s  %-11s  %s%s\n", in(mark, fmt.Sprintf("%-7s", f.Level)), f.Check, r.who(f), f.Text)
		if f.Do != "" {
			fmt.Fprintf(&b, "                      %s\n", in(ink.Dim, "→ "+f.Do))
		}
	}
	fmt.Fprintf(&b, "\n%s\n", r.summary(ink))
	_, err := io.WriteString(w, b.String())
	return err
}

func in(mark func(string) string, s string) string {
	if mark == nil {
		return s
	}
	return mark(s)
}

// who returns the ranks that made a finding, or "" if all have.
func (r *Report) who(f Finding) string {
	if len(f.Ranks) == 0 || len(f.Ranks) == r.Ranks {
		return ""
	}
	return status.RankList(slices.Compact(f.Ranks)) + ": "
}

func (r *Report) summary(ink Ink) string {
	switch {
	case r.Problems > 0:
		return in(ink.Bad, fmt.Sprintf("%s, %s", count(r.Problems, "problem"), count(r.Warnings, "warning")))
	case r.Warnings > 0:
		return in(ink.Fair, "no problem, "+count(r.Warnings, "warning"))
	}
	return in(ink.Good, "all is well")
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
