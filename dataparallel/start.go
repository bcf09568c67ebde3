package dataparallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

// Average is a StartGradients in progress. Its methods may be called by several goroutines.
type Average struct {
	call   *call
	cancel context.CancelCauseFunc // ends the verbs in progress, on all ranks
	plan   *plan

	mu      sync.Mutex // protects the fields below
	index   map[string]int
	ready   []bool // by part
	buckets []bucket
	next    int // the first bucket that has not begun
	err     error
	over    bool
}

// bucket is a range of parts that are averaged by one call.
type bucket struct {
	from, to int
	waits    int // number of its parts that are not ready
	pending  *collective.Pending
}

// StartGradients is an AllReduceGradients that overlaps with the backward pass. The program calls Ready
// when it has computed gradients, in any order, and Wait at the end:
//
//	a, err := s.StartGradients(ctx, grads)
//	for layer := range backward(grads) { // from the last to the first
//		a.Ready(layer.Names...)
//	}
//	err = a.Wait(ctx)
//
// Gradients are averaged in buckets of Options.Bucket, in descending order of their names, with numbers in
// them as numbers: layer.10 before layer.2, as a backward pass computes them. A bucket begins when its
// gradients are ready and the buckets before it have begun. The average has the same bits as that of
// AllReduceGradients. Until Wait has returned, gradients that are ready must not be used, and the
// calls of this Strategy by other goroutines wait. Errors are those of AllReduceGradients. Wait must be
// called.
func (s *Strategy) StartGradients(ctx context.Context, grads map[string]*tensor.Tensor) (*Average, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	c, err := s.open(ctx, startGradients)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	p, err := s.agree(c.ctx, startGradients, -1, grads)
	if err != nil {
		defer cancel(nil)
		return nil, c.close(0, err)
	}
	a := &Average{call: c, cancel: cancel, plan: p, index: map[string]int{}, ready: make([]bool, len(p.parts))}
	for i := range p.parts {
		a.index[p.parts[i].name] = i
	}
	for from, to := range p.buckets(s.bucket()) {
		a.buckets = append(a.buckets, bucket{from: from, to: to, waits: to - from})
	}
	return a, nil
}

// Ready reports that these gradients are computed. Wait returns the error if there is no such gradient.
func (a *Average) Ready(names ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range names {
		i, ok := a.index[name]
		switch {
		case a.over:
			return
		case !ok:
			a.err = errors.Join(a.err, fmt.Errorf("%w: ready: there is no tensor %q", pgroup.ErrInvalid, name))
		case !a.ready[i]:
			a.isReady(i)
		}
	}
	a.begin()
}

// isReady marks a part. The caller holds mu.
func (a *Average) isReady(part int) {
	a.ready[part] = true
	at, _ := slices.BinarySearchFunc(a.buckets, part, func(b bucket, part int) int { return b.to - 1 - part })
	a.buckets[at].waits--
}

// begin begins the buckets that are ready, in order. The caller holds mu.
func (a *Average) begin() {
	for a.next < len(a.buckets) && a.buckets[a.next].waits == 0 {
		b := &a.buckets[a.next]
		from, to := b.from, b.to
		b.pending = a.call.comm.Start(a.call.ctx, func(ctx context.Context, c *collective.Comm) error {
			return a.call.averagePart(ctx, c, a.plan, from, to)
		})
		a.next++
	}
}

// Wait returns when all gradients are averaged. It begins with those that were not reported as ready, so
// all must have been computed. If ctx ends first, the call fails on all ranks.
func (a *Average) Wait(ctx context.Context) error {
	a.mu.Lock()
	if a.over {
		defer a.mu.Unlock()
		return a.err
	}
	a.over = true
	end := func() { a.cancel(context.Cause(ctx)) }
	if ctx.Err() != nil { // AfterFunc would end the verbs later
		end()
	}
	defer context.AfterFunc(ctx, end)()
	for i, ready := range a.ready {
		if !ready {
			a.isReady(i)
		}
	}
	a.begin()
	a.mu.Unlock()

	var failed error
	for i := range a.buckets {
		// Not with ctx, which ends the call by its own context: the tensors are used until it has ended.
		if err := a.buckets[i].pending.Wait(context.Background()); err != nil && failed == nil {
			failed = err
		}
	}
	bytes := a.plan.bytes
	a.mu.Lock()
	defer a.mu.Unlock()
	if failed == nil && a.err != nil {
		failed = a.call.fail(startGradients, a.err)
	}
	a.err = a.call.close(bytes, failed)
	a.cancel(nil)
	return a.err
}
