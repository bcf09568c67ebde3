package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/muster-pg/muster/pgroup"
)

// excludedTTL is how long the store keeps the hosts that a job of ranks has left out: they may take part
// again when its agents have ended.
const excludedTTL = time.Minute

// hosts counts the failures of hosts, also those of agents that have ended.
type hosts map[string]host

type host struct {
	Failures int
	Out      bool // it may no longer take part
	Last     Failure
}

// blame counts a failure of a host, which is out after most of them; 0: there is no limit.
func (h hosts) blame(name string, f Failure, most int) host {
	b := host{Failures: h[name].Failures + 1, Last: f}
	b.Out = most > 0 && b.Failures >= most
	h[name] = b
	return b
}

// err returns an *ExcludedError if the host is out.
func (h hosts) err(name string) error {
	if b := h[name]; b.Out {
		return &ExcludedError{Host: name, Failures: b.Failures, Last: b.Last.String()}
	}
	return nil
}

// report tells which hosts other than own are out now, and were not before.
func (h hosts) report(before hosts, own string, report func(string)) {
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if b := h[name]; b.Out && name != own && before.err(name) == nil {
			report(fmt.Sprintf("node %s is left out of the job after %d failures; the last one: %v", name, b.Failures, &b.Last))
		}
	}
}

// exclude agrees on the hosts that are left out of a job of ranks: each agent counts what it sees, and all
// take the highest of their counts. It returns an *ExcludedError if this node is out, and errChanged if
// another node of the view is: the view ends when that has left.
func (r *run) exclude(run string, plans []plan) error {
	if r.MaxNodeFailures == 0 {
		return nil
	}
	agreed := hosts{}
	for _, p := range plans {
		for name, h := range p.Hosts {
			if h.Failures > agreed[name].Failures {
				agreed[name] = h
			}
		}
	}
	r.hosts = agreed
	if err := agreed.err(r.Host); err != nil {
		return err
	}
	agreed.report(r.out, r.Host, r.Report)
	r.keepOut(run, agreed)
	if slices.ContainsFunc(plans, func(p plan) bool { return agreed.err(p.Host) != nil }) {
		return errChanged
	}
	return nil
}

// keepOut has the store keep which hosts are out, until this agent ends: their agents do not join again,
// which would start all ranks anew. Agents of one job, which is one run of their membership, add theirs.
func (r *run) keepOut(run string, agreed hosts) {
	out := maps.Clone(agreed)
	maps.DeleteFunc(out, func(_ string, h host) bool { return !h.Out })
	if len(out) == len(r.out) {
		return
	}
	r.out = out
	r.endKeeping()
	var ctx context.Context
	ctx, r.keeps = context.WithCancel(r.waits)
	s := r.shared()
	r.keeping.Go(func() {
		s.renew(ctx, excludedTTL/3, func(st *state) error {
			if st.Outcome != "" && st.ID != r.before {
				return nil
			}
			if st.Run != run || st.Hosts == nil {
				*st = state{Run: run, Hosts: hosts{}}
			}
			maps.Copy(st.Hosts, out)
			return nil
		})
	})
}

func (r *run) endKeeping() {
	if r.keeps != nil {
		r.keeps()
	}
	r.keeping.Wait()
}

// admitted returns an *ExcludedError if a job of ranks that runs has left this host out. A state with nodes
// is that of an elastic job.
func (r *run) admitted(st *state) error {
	if r.MaxNodeFailures == 0 || r.Elastic != nil || st.Outcome != "" || len(st.Nodes) > 0 {
		return nil
	}
	return st.Hosts.err(r.Host)
}

// blameLost counts the failure of the nodes that a group has lost.
func (r *run) blameLost(at Attempt, e *pgroup.RankError) {
	for _, rank := range e.Lost {
		r.hosts.blame(at.hosts[rank], Failure{Node: at.names[rank], Reason: "has failed", Time: time.Now()}, r.MaxNodeFailures)
	}
}
