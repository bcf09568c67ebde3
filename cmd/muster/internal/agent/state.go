package agent

import (
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"time"
)

// state is what the agents of an elastic job share about it. It is one key of the store, which they
// change by compare-and-swap (shared.go). Its methods are the changes: they are pure, so the result
// does not depend on the agent that makes the change, and all agents read the same outcome.
type state struct {
	ID    string // random: a later job of this name has another one
	Run   string // of the membership of the agents, whose views have the generations of Nodes
	Rules rules

	Nodes    map[string]*node // by name: the nodes that run workers
	Restarts int              // of workers
	Failures int              // of workers and nodes
	First    *Failure         // of a worker
	Last     *Failure

	Done int // workers that have succeeded
	Late int // workers that have failed since the first one has succeeded, or since the work is finished

	Finished bool `json:",omitempty"` // the workers have said so: none starts again

	Outcome outcome
	Code    int    // exit code of all nodes if the job has failed; 0: there were too few workers
	Reason  string // why there are too few workers
}

// outcome is the end of a job; empty: it runs.
type outcome string

const (
	succeeded outcome = "succeeded"
	failed    outcome = "failed"
)

// rules are the options that all nodes must have in common.
type rules struct{ Min, Max, MaxRestarts int }

// node is a node that runs workers.
type node struct {
	Since   uint64 // generation of the view in which it has entered
	Running int    // workers that have not ended, or start again
}

// members are the nodes of a view of the agents.
type members struct {
	run        string
	generation uint64
	names      []string
}

// Failure is the failure of a process, or of a node if Process is empty.
type Failure struct {
	Process string    `json:"process,omitempty"` // as "rank 3" or "worker a-3"
	Node    string    `json:"node"`
	Reason  string    `json:"reason"`            // as "exit status 3"
	Code    int       `json:"code,omitempty"`    // as a shell's
	Restart int       `json:"restart,omitempty"` // number of the restart that followed
	Time    time.Time `json:"time"`              // of the node's clock
}

func (f *Failure) String() string {
	switch {
	case f.Process == "":
		return fmt.Sprintf("node %s %s", f.Node, f.Reason)
	case f.Reason == "":
		return f.Process
	}
	return fmt.Sprintf("%s: %s", f.Process, f.Reason)
}

// running returns the number of workers that have not ended.
func (s *state) running() (n int) {
	for _, node := range s.Nodes {
		n += node.Running
	}
	return n
}

// left returns the number of workers that have not failed.
func (s *state) left() int { return s.running() + s.Done }

// enter adds a node with its workers. If the job has ended, it does nothing; before is the ID of a
// job that had ended when this agent began, so another one of that name begins now. It also begins
// if the agents of a job have been killed.
func (s *state) enter(name string, workers int, view members, r rules, before string, now time.Time) {
	if s.Outcome != "" && s.ID != before {
		return
	}
	s.reconcile(view, now)
	if s.Outcome != "" || s.Run != view.run || len(s.Nodes) == 0 {
		*s = state{ID: rand.Text(), Run: view.run, Rules: r, Nodes: map[string]*node{}}
	}
	s.Nodes[name] = &node{Since: view.generation, Running: workers}
}

// reconcile removes the nodes that are not in a view: they have failed. A node that leaves removes
// itself before. A node that has entered in a later view stays: this agent is behind.
func (s *state) reconcile(view members, now time.Time) {
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		if s.Run == view.run && s.Nodes[name].Since <= view.generation && !slices.Contains(view.names, name) {
			s.lost(name, now)
		}
	}
}

// lost removes a node that has failed. It is idempotent.
func (s *state) lost(name string, now time.Time) {
	n := s.Nodes[name]
	delete(s.Nodes, name)
	if n == nil || s.Outcome != "" {
		return
	}
	s.end(n, n.Running)
	s.count(Failure{Node: name, Reason: "has failed", Time: now})
	s.settle()
}

// leaves removes a node whose agent ends, with its workers.
func (s *state) leaves(name string) {
	delete(s.Nodes, name)
	s.settle()
	if len(s.Nodes) == 0 && s.Outcome == "" {
		*s = state{}
	}
}

// active returns the node with this name; nil if its workers do not count.
func (s *state) active(name string) *node {
	n := s.Nodes[name]
	if n == nil || s.Outcome != "" {
		return nil
	}
	return n
}

// end counts workers of a node that have failed and do not start again.
func (s *state) end(n *node, workers int) {
	n.Running -= workers
	if s.Done > 0 || s.Finished {
		s.Late += workers
	}
}

// success counts a worker that has exited with 0.
func (s *state) success(name string) {
	if n := s.active(name); n != nil {
		n.Running--
		s.Done++
		s.settle()
	}
}

// failure counts a worker that has failed, and reports whether it starts again. It does not after
// another one has succeeded, or when the work is finished: the new worker might never find enough others.
// A standby may end with an error then.
func (s *state) failure(f Failure) (restarts bool) {
	n := s.active(f.Node)
	if n == nil {
		return false
	}
	if s.First == nil {
		s.First = &f
	}
	s.count(f)
	restarts = s.Done == 0 && !s.Finished && s.Restarts < s.Rules.MaxRestarts
	if restarts {
		s.Restarts++
		s.Last.Restart = s.Restarts
	} else {
		s.end(n, 1)
		if left := s.left(); left < s.Rules.Min {
			s.few(left)
		}
	}
	s.settle()
	return restarts
}

// count counts a failure.
func (s *state) count(f Failure) {
	s.Failures++
	s.Last = &f
}

// few ends a job that has too few workers.
func (s *state) few(left int) {
	code := 1
	if s.First != nil {
		code = s.First.Code
	}
	s.fail(code, fmt.Sprintf("%d of at least %d workers are left", left, s.Rules.Min))
}

// overdue ends a job that has had too few workers for too long.
func (s *state) overdue(limit time.Duration) {
	if left := s.left(); s.Outcome == "" && left < s.Rules.Min {
		s.fail(0, fmt.Sprintf("%d of at least %d workers within --join-timeout %v", left, s.Rules.Min, limit))
	}
}

func (s *state) fail(code int, why string) {
	if s.Outcome == "" {
		s.Outcome, s.Code, s.Reason = failed, code, why
	}
}

// settle decides the outcome when the workers have ended. Standbys have not: a worker that finds no
// others would wait for them, or begin the work from the start. So the job has ended when as many
// workers have ended as can be in one view.
func (s *state) settle() {
	ended := s.Done + s.Late
	switch {
	case s.Outcome != "" || s.Done == 0 || ended < min(s.Rules.Max, ended+s.running()):
	case s.left() < s.Rules.Min && s.Failures > 0:
		s.few(s.left())
	default:
		s.Outcome = succeeded
	}
}

// err returns the outcome as an error: nil, or a *JobError.
func (s *state) err() error {
	if s.Outcome == succeeded {
		return nil
	}
	return &JobError{Reason: s.Reason, First: s.First, Last: s.Last, Failures: s.Failures, Restarts: s.Restarts, Code: s.Code}
}

// JobError is the failure of an elastic job, the same on all nodes.
type JobError struct {
	Reason   string   // as "1 of at least 2 workers are left"
	First    *Failure // of a worker; nil: there was none
	Last     *Failure // nil: there was none
	Failures int
	Restarts int
	Code     int // exit code; 0: there were too few workers for too long
}

func (e *JobError) Error() string {
	text := e.Reason
	if e.First != nil {
		text = fmt.Sprintf("%v on node %s", e.First, e.First.Node)
		text += afterRestarts(e.Restarts) + ": " + e.Reason
	}
	if e.Failures > 1 && e.Last != nil {
		text += fmt.Sprintf("; the last of %d failures: %v", e.Failures, e.Last)
	}
	return text
}
