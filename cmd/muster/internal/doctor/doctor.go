// Package doctor checks whether an environment meets the needs of a job's ranks. It runs in one
// process, or in all ranks of a job at once, which then also test the connections between them.
// Each result is a [Finding], with a remedy. Checks end with their context: a check that gets no
// answer is a finding too.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/wire"
)

// Level is the severity of a finding.
type Level string

// The levels of a finding.
const (
	OK      Level = "ok"
	Warning Level = "warning" // it works, but perhaps not as intended
	Problem Level = "problem" // it does not work
)

// Finding is the result of a check.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Do    string `json:"do,omitempty"` // the remedy
	// that found the same; none if there is no group, or if it concerns all ranks together
	Ranks []int `json:"ranks,omitempty"`
}

// Report contains the results of all checks.
type Report struct {
	Version  string    `json:"version"`
	Ranks    int       `json:"ranks"` // that have joined; 1 without a group
	Hosts    int       `json:"hosts"`
	Problems int       `json:"problems"`
	Warnings int       `json:"warnings"`
	Findings []Finding `json:"findings"`
}

// Doctor runs the checks. Version and System are required.
type Doctor struct {
	Version string
	System  *System
	Store   string // URL of the store to check, with its parameters; "" is none
	// what to do after the store has denied access for a reason; nil is a general advice
	Advice func(why wire.Reason) string
	// a port number, which must be free on this host, or host:port, which must be reachable
	Ports         []string
	Dir           string        // a directory that the ranks share; "" is none
	AnswerTimeout time.Duration // timeout of each answer from another host; 0 is 3 s
}

// checks are the names of all checks, in the order of a report.
var checks = []string{"address", "ports", "store", "security", "dir", "group", "clocks", "links"}

const defaultAnswerTimeout = 3 * time.Second

func (d *Doctor) answerTimeout() time.Duration {
	if d.AnswerTimeout > 0 {
		return d.AnswerTimeout
	}
	return defaultAnswerTimeout
}

// Run runs the checks, until ctx ends at the latest. The context must have a deadline. In a group
// only rank 0 calls report, with the findings of all ranks and before the other ranks return. If
// there is no group, or if it fails, each rank calls report with its own findings. The number of
// problems is the same on all ranks that could agree on it.
func (d *Doctor) Run(ctx context.Context, report func(*Report) error) (problems int, err error) {
	p := d.process()
	found := d.alone(ctx, p)
	if p.config == nil || p.config.Size < 2 {
		r := d.report(found, 1, 1)
		return r.Problems, report(r)
	}
	return d.together(ctx, p, found, report)
}

// process is the configuration of this process.
type process struct {
	config *pgroup.Config // nil if there is no launcher
	wrong  error          // an error in what the launcher set
}

func (d *Doctor) process() *process {
	if !d.launched() {
		return &process{}
	}
	c, err := d.System.FromEnv()
	if err != nil {
		return &process{wrong: err}
	}
	return &process{config: &c}
}

// alone returns what the environment says of the group, unless the ranks are to meet.
func (p *process) alone() []Finding {
	switch {
	case p.wrong != nil:
		return []Finding{problem(strings.TrimPrefix(p.wrong.Error(), "pgroup: "), "set it as the launcher should have; \"muster help environment\" lists the variables")}
	case p.config == nil || p.config.Size < 2:
		return []Finding{ok("checked on this host only: under muster run, torchrun, mpirun or srun the ranks test the connections between them too")}
	}
	return nil
}

// alone runs the checks that need no other rank, concurrently.
func (d *Doctor) alone(ctx context.Context, p *process) []Finding {
	checks := []struct {
		name  string
		check func(context.Context, *process) []Finding
	}{
		{"address", d.address},
		{"ports", d.ports},
		{"store", d.store},
		{"security", d.security},
		{"dir", d.directory},
	}
	// A check that waits for answers uses d.answerTimeout() as its timeout. The rest is for its other
	// work.
	ctx, cancel := context.WithTimeout(ctx, 2*d.answerTimeout())
	defer cancel()
	results := make([]chan []Finding, len(checks))
	for i, c := range checks {
		results[i] = make(chan []Finding, 1) // buffered, because the receiver may have stopped
		go func() { results[i] <- c.check(ctx, p) }()
	}
	found := named("group", p.alone())
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

// late returns the findings of a check that may have run out of time.
func (d *Doctor) late(name string, result <-chan []Finding) []Finding {
	select {
	case fs := <-result:
		return named(name, fs)
	default:
	}
	f := problem(fmt.Sprintf("no answer within %v", 2*d.answerTimeout()), "look at what this check asks: a name server, or a file system whose server is gone, keeps it waiting")
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

// report sorts findings into a report.
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

// merged merges the findings that differ only in their ranks.
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
