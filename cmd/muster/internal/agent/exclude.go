package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

const (
	excludedTTL   = time.Minute      // of the key that keeps a host out: it ends after the job does
	excludedRenew = 20 * time.Second // between two renewals
)

// exclusion counts the failures of hosts in a job whose processes are ranks. Each agent counts what it
// sees, and before each attempt all agents take the highest of their counts. So they agree on which
// hosts are left out. A key for each of these keeps its agents from joining again, which would start
// all ranks anew.
type exclusion struct {
	failures map[string]int    // by host
	last     map[string]string // failure of a host
	out      map[string]bool
	stop     context.CancelFunc // ends the renewal of the keys; nil: there is none
}

// blame counts a failure of a host.
func (r *run) blame(host, what string) {
	if r.hosts.failures == nil {
		r.hosts = exclusion{failures: map[string]int{}, last: map[string]string{}, out: map[string]bool{}}
	}
	r.hosts.failures[host]++
	r.hosts.last[host] = what
}

// exclude merges the counts of all nodes. It returns an *ExcludedError if this node is left out, and
// errChanged if another node of the view is: the view ends when that has left.
func (r *run) exclude(ctx context.Context, plans []plan) error {
	if r.MaxNodeFailures == 0 {
		return nil
	}
	counts, last := map[string]int{}, map[string]string{}
	for _, p := range plans {
		for host, n := range p.Failures {
			if n > counts[host] {
				counts[host], last[host] = n, p.Last[host]
			}
		}
	}
	if r.hosts.out == nil {
		r.hosts.out = map[string]bool{}
	}
	r.hosts.failures, r.hosts.last = counts, last
	var result error
	for _, host := range slices.Sorted(maps.Keys(counts)) {
		if counts[host] < r.MaxNodeFailures {
			continue
		}
		if host == r.Host {
			return r.excluded(last[host])
		}
		if !r.hosts.out[host] {
			r.hosts.out[host] = true
			r.Report(fmt.Sprintf("node %s is left out of the job after %d failures; the last one: %s", host, counts[host], last[host]))
			r.keepOut(ctx)
		}
		if slices.ContainsFunc(plans, func(p plan) bool { return p.Host == host }) {
			result = errChanged
		}
	}
	return result
}

func (r *run) excluded(last string) error {
	return &ExcludedError{Host: r.Host, Failures: r.MaxNodeFailures, Last: last}
}

func (r *run) excludedKey(host string) string { return r.Job + "/excluded/" + host }

// admitted returns an *ExcludedError if the job has left this host out.
func (r *run) admitted(ctx context.Context) error {
	if r.MaxNodeFailures == 0 || r.Elastic != nil {
		return nil
	}
	last, err := r.Store.Get(ctx, r.excludedKey(r.Host))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	return r.excluded(string(last))
}

// keepOut sets the keys of the hosts that are left out, and renews them until the run ends.
func (r *run) keepOut(ctx context.Context) {
	keys := map[string]string{}
	for host := range r.hosts.out {
		keys[r.excludedKey(host)] = r.hosts.last[host]
	}
	set := func(ctx context.Context) {
		for key, last := range keys {
			_ = r.Store.Set(ctx, key, []byte(last), &store.SetOptions{TTL: excludedTTL}) // or the next time
		}
	}
	r.endRenewal()
	set(ctx)
	ctx, r.hosts.stop = context.WithCancel(context.WithoutCancel(ctx))
	r.renewals.Go(func() {
		for {
			select {
			case <-time.After(excludedRenew):
				set(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
}

func (r *run) endRenewal() {
	if r.hosts.stop != nil {
		r.hosts.stop()
	}
	r.renewals.Wait()
}

// blameLost counts the failure of the nodes that a group has lost.
func (r *run) blameLost(at Attempt, e *pgroup.RankError) {
	for _, rank := range e.Lost {
		r.blame(at.hosts[rank], "node "+at.names[rank]+" has failed")
	}
}
