package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// groupCheck is a group whose ranks are checked together.
type groupCheck struct {
	*Doctor
	group   *pgroup.Group
	members []pgroup.Member
	found   []Finding // findings of this rank
	all     []Finding // on rank 0: findings about all ranks together
}

// together runs the checks that need all ranks. The findings that this rank made alone are included
// in the report.
func (d *Doctor) together(ctx context.Context, p *process, alone []Finding, report func(*Report) error) (int, error) {
	g, err := d.join(ctx, *p.config)
	if err != nil {
		r := d.report(append(alone, d.notJoined(ctx, p, err)...), 1, 1)
		return r.Problems, report(r)
	}
	defer g.Close()
	w := &groupCheck{Doctor: d, group: g, found: alone}
	problems := 0
	if w.members, err = g.Members(ctx); err == nil {
		problems, err = w.examine(ctx, report)
	}
	if err == nil {
		return problems, g.Shutdown(ctx)
	}
	if _, failed := errors.AsType[*reportError](err); failed {
		return problems, err
	}
	f := problem(strings.TrimPrefix(err.Error(), "pgroup: "), "that rank, or its way to the store, failed while the ranks were examined; what follows is what this rank has found itself")
	r := d.report(append(w.found, named("group", []Finding{f})...), g.Size(), g.NodeCount())
	return r.Problems, report(r)
}

// reportError is an error of the report function, as opposed to one of the group.
type reportError struct{ err error }

func (e *reportError) Error() string { return e.err.Error() }
func (e *reportError) Unwrap() error { return e.err }

// join forms a group in addition to those of the job, within half of the time until the deadline.
func (d *Doctor) join(ctx context.Context, c pgroup.Config) (*pgroup.Group, error) {
	c.Name = "muster-doctor"
	if end, isSet := ctx.Deadline(); isSet {
		c.Timeout = time.Until(end)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	return pgroup.Create(ctx, c)
}

// notJoined returns the reason why the group has not formed, and what can be seen of it from here.
func (d *Doctor) notJoined(ctx context.Context, p *process, err error) []Finding {
	invalid := errors.Is(err, pgroup.ErrInvalid)
	do := "are all ranks started, and do they have the same addresses? --timeout gives them more time"
	switch {
	case invalid:
		do = "correct the environment"
	case errors.Is(err, store.ErrProtocol):
		do = "another program listens there: end it, or let the ranks meet at another port"
	case errors.Is(err, store.ErrInsecure):
		do = "let MUSTER_SECRET_FILE name a file with a secret, the same on all ranks, or MUSTER_TLS_CA, MUSTER_TLS_CERT and MUSTER_TLS_KEY certificates; or set MUSTER_INSECURE=1 in a network that you trust"
	}
	fs := named("group", []Finding{problem(strings.TrimPrefix(err.Error(), "pgroup: "), do)})
	if p.hosting() || invalid {
		return fs
	}
	for _, way := range waysOf(p.config.Address) {
		fs = append(fs, named("ports", []Finding{d.reach(ctx, way)})...)
	}
	return fs
}

// examine runs the checks of the group, and returns the number of problems of all ranks.
func (w *groupCheck) examine(ctx context.Context, report func(*Report) error) (int, error) {
	if w.group.Rank() == 0 {
		w.say("group", ok("%d ranks have met, on %s", w.group.Size(), w.nodes()))
	}
	for _, check := range []func(context.Context) error{w.clocks, w.links} {
		if err := check(ctx); err != nil {
			return 0, err
		}
	}
	return w.reportAll(ctx, report)
}

// say adds findings about all ranks together, on rank 0.
func (w *groupCheck) say(check string, fs ...Finding) { w.all = append(w.all, named(check, fs)...) }

// find adds findings of this rank.
func (w *groupCheck) find(check string, fs ...Finding) {
	w.found = append(w.found, named(check, fs)...)
}

// nodes lists the hosts with their ranks.
func (w *groupCheck) nodes() string {
	var text []string
	for node := range w.group.NodeCount() {
		text = append(text, w.node(node))
	}
	const most = 8
	if n := len(text); n > most {
		text = append(text[:most], fmt.Sprintf("and %d more hosts", n-most))
	}
	return strings.Join(text, ", ")
}

// node describes one host with its ranks.
func (w *groupCheck) node(n int) string {
	var ranks []int
	name := ""
	for _, m := range w.members {
		if m.Node == n {
			ranks, name = append(ranks, m.Rank), m.Host
		}
	}
	return fmt.Sprintf("%s (%s)", name, status.RankList(ranks))
}

// reportAll collects all findings on rank 0, which reports them, and sends the number of problems to all
// ranks.
func (w *groupCheck) reportAll(ctx context.Context, report func(*Report) error) (int, error) {
	mine, err := json.Marshal(w.found)
	if err != nil {
		return 0, err
	}
	theirs, err := pgroup.Gather(ctx, w.group, 0, mine)
	if err != nil {
		return 0, err
	}
	problems, failed := 0, error(nil)
	if w.group.Rank() == 0 {
		var found []Finding
		if found, err = w.attributed(theirs); err != nil {
			return 0, err
		}
		r := w.report(append(found, w.all...), w.group.Size(), w.group.NodeCount())
		problems, failed = r.Problems, report(r)
	}
	problems, err = pgroup.Broadcast(ctx, w.group, 0, problems)
	if failed != nil {
		return problems, &reportError{failed}
	}
	return problems, err
}

// attributed returns the findings of all ranks, with the ranks that made them.
func (w *groupCheck) attributed(theirs [][]byte) (found []Finding, err error) {
	for rank, b := range theirs {
		var fs []Finding
		if err := json.Unmarshal(b, &fs); err != nil {
			return nil, fmt.Errorf("the findings of rank %d: %w", rank, err)
		}
		for i := range fs {
			fs[i].Ranks = []int{rank}
		}
		found = append(found, fs...)
	}
	return found, nil
}
