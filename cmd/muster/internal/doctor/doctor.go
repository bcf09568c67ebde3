// Package doctor examines an environment as the ranks of a job need it: alone, or on all ranks of a job at once, which
// then try each other too. Whatever it finds is a [Finding], with what to do about it. Nothing in it outlives its
// context: what does not answer is a finding as well.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/muster-pg/muster/pgroup"
)

// Level is how bad a finding is.
type Level string

// What a finding can be.
const (
	OK      Level = "ok"
	Warning Level = "warning" // it works, and may not be what is wanted
	Problem Level = "problem" // it does not work
)

// Finding is what a check has found.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"`    // about it
	Ranks []int  `json:"ranks,omitempty"` // that found the same; none if it is of no group, or of all ranks together
}

// Report is what all checks have found.
type Report struct {
	Version  string    `json:"version"`
	Ranks    int       `json:"ranks"` // that have come; 1 without a group
	Hosts    int       `json:"hosts"`
	Problems int       `json:"problems"`
	Warnings int       `json:"warnings"`
	Findings []Finding `json:"findings"`
}

// Doctor examines. Version and System are required.
type Doctor struct {
	Version  string
	System   *System
	Ports    []string      // a number, which is to be free here, or host:port, which is to be reached
	Dir      string        // a directory that the ranks share; "" is none
	Patience time.Duration // with each answer from elsewhere; 0 is 3 s
}

// checks are all that there are, in the order of a report.
var checks = []string{"version", "environment", "host", "address", "ports", "security", "memory", "files", "dir", "group", "clocks", "links"}

const defaultPatience = 3 * time.Second

func (d *Doctor) patience() time.Duration {
	if d.Patience > 0 {
		return d.Patience
	}
	return defaultPatience
}

// Run examines until ctx ends at the latest, which has a deadline. In a group rank 0 alone tells what all have found, before the
// others return; if there is no group, or no longer, every rank tells what it has found itself. The number of problems is the same on
// all ranks that could agree on it.
func (d *Doctor) Run(ctx context.Context, tell func(*Report) error) (problems int, err error) {
	p := d.patient()
	found := d.alone(ctx, p)
	if p.config == nil || p.config.Size < 2 {
		r := d.report(found, 1, 1)
		return r.Problems, tell(r)
	}
	return d.together(ctx, p, found, tell)
}

// patient is what is known of this process.
type patient struct {
	config *pgroup.Config // nil if no launcher has said
	wrong  error          // with what it said
}

func (d *Doctor) patient() *patient {
	if !d.launched() {
		return &patient{}
	}
	c, err := d.System.FromEnv()
	if err != nil {
		return &patient{wrong: err}
	}
	return &patient{config: &c}
}

// alone makes the checks that take no other rank, all at once.
func (d *Doctor) alone(ctx context.Context, p *patient) []Finding {
	checks := []struct {
		name  string
		check func(context.Context, *patient) []Finding
	}{
		{"environment", d.environment},
		{"host", d.host},
		{"address", d.address},
		{"ports", d.ports},
		{"security", d.security},
		{"memory", d.memory},
		{"files", d.files},
		{"dir", d.directory},
	}
	// What asks others has their patience, and a little for what comes around that.
	ctx, cancel := context.WithTimeout(ctx, 2*d.patience())
	defer cancel()
	results := make([]chan []Finding, len(checks))
	for i, c := range checks {
		results[i] = make(chan []Finding, 1) // nobody may listen any more
		go func() { results[i] <- c.check(ctx, p) }()
	}
	found := []Finding{{Check: "version", Level: OK, Text: d.Version}}
	for i, c := range checks {
		select {
		case fs := <-results[i]:
			found = append(found, named(c.name, fs)...)
		case <-ctx.Done():
			found = append(found, d.late(c.name, results[i])...)
		}
	}
	return found
}

// late is what a check has found that may not have ended in time.
func (d *Doctor) late(name string, result <-chan []Finding) []Finding {
	select {
	case fs := <-result:
		return named(name, fs)
	default:
	}
	f := problem(fmt.Sprintf("no answer within %v", 2*d.patience()), "look at what this check asks: a name server, or a file system whose server is gone, keeps it waiting")
	return named(name, []Finding{f})
}

func named(check string, fs []Finding) []Finding {
	for i := range fs {
		fs[i].Check = check
	}
	return fs
}

func ok(format string, args ...any) Finding {
	return Finding{Level: OK, Text: fmt.Sprintf(format, args...)}
}

func warning(text, do string) Finding { return Finding{Level: Warning, Text: text, Do: do} }
func problem(text, do string) Finding { return Finding{Level: Problem, Text: text, Do: do} }

// report puts findings in order.
func (d *Doctor) report(found []Finding, ranks, hosts int) *Report {
	r := &Report{Version: d.Version, Ranks: ranks, Hosts: hosts, Findings: merged(found)}
	for _, f := range r.Findings {
		switch f.Level {
		case Problem:
			r.Problems++
		case Warning:
			r.Warnings++
		}
	}
	return r
}

// merged makes one of the findings that are the same but for who found them.
func merged(found []Finding) (all []Finding) {
	for _, f := range found {
		i := slices.IndexFunc(all, func(o Finding) bool {
			return o.Check == f.Check && o.Level == f.Level && o.Text == f.Text && o.Do == f.Do
		})
		if i < 0 {
			all = append(all, f)
			continue
		}
		all[i].Ranks = append(all[i].Ranks, f.Ranks...)
	}
	slices.SortStableFunc(all, func(a, b Finding) int { return slices.Index(checks, a.Check) - slices.Index(checks, b.Check) })
	return all
}
