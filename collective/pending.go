package collective

import "context"

// Pending is a function that Start has started.
type Pending struct {
	done chan struct{}
	err  error
}

// Start runs f in a goroutine, after everything that was called or started before it, and returns
// at once. All ranks call Start in the same order as verbs. The verbs that f calls on its own c run
// before everything that is called or started later; only f may use that c. Data that f uses must
// not be used otherwise until Wait. Close ends the verbs of f, and waits for f; f itself may close
// only its own c.
func (c *Comm) Start(ctx context.Context, f func(ctx context.Context, c *Comm) error) *Pending {
	p := &Pending{done: make(chan struct{})}
	if c.inner {
		p.err = f(ctx, c)
		close(p.done)
		return p
	}
	mine, before := c.queue()
	c.started.Go(func() {
		defer close(mine)
		defer close(p.done)
		if before != nil {
			<-before
		}
		p.err = f(ctx, &Comm{core: c.core, inner: true})
	})
	return p
}

// Wait returns the error of f, when it has ended, or that of ctx if that ends first; then f still
// runs.
func (p *Pending) Wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		if !done(p.done) {
			return context.Cause(ctx)
		}
	}
	return p.err
}
