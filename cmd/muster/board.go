package main

import (
	"context"
	"encoding/json"
	"net/url"
	"sync"
	"time"

	"github.com/muster-pg/muster/cmd/muster/internal/agent"
	"github.com/muster-pg/muster/store"
)

// jobPrefix is that of the keys of jobs: jobPrefix + JOB + nodeInfix + NODE has a job, JOB and NODE
// escaped.
const (
	jobPrefix = "muster-run/"
	nodeInfix = "/node/"
)

func nodeKey(j *job) string {
	return jobPrefix + url.PathEscape(j.Job) + nodeInfix + url.PathEscape(j.Node)
}

const (
	boardTTL   = 10 * time.Second // of the lease
	boardPause = time.Second      // until the next attempt to reach the store
	boardEnd   = time.Second      // for the end of the lease
	boardWarn  = 5 * time.Second  // without the store, until a warning: the ranks wait for it, too
)

// board publishes the state of a job for ps: in the job's file at once, and in the store by a
// goroutine, so that a slow store delays no rank. Neither may be possible; the job runs all the same.
type board struct {
	open    func(context.Context) (*store.Store, error) // nil: no store
	warn    func(error)                                 // why the store has not been reached
	changed chan struct{}                               // holds a token after a change
	stop    context.CancelFunc
	tasks   sync.WaitGroup

	mu   sync.Mutex // protects the fields below
	job  job
	file *jobFile // nil: there is none
}

// startBoard publishes j until close is called. open opens the store; its result is closed. warn is
// called once if that has not succeeded for a while.
func startBoard(j job, open func(context.Context) (*store.Store, error), warn func(error)) *board {
	b := &board{open: open, warn: warn, changed: make(chan struct{}, 1), job: j}
	b.file, _ = announce(&j)
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	if open != nil {
		b.tasks.Go(func() { b.publish(ctx) })
	}
	return b
}

// set implements agent.Agent.Status.
func (b *board) set(s agent.Status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.job.Status = s
	if b.file != nil {
		_ = b.file.write(&b.job)
	}
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

func (b *board) close() {
	b.stop()
	b.tasks.Wait()
	if b.file != nil {
		b.file.remove()
	}
}

// publish keeps the job in the store until ctx ends.
func (b *board) publish(ctx context.Context) {
	begun := time.Now()
	for ctx.Err() == nil {
		switch s, err := b.open(ctx); {
		case err == nil:
			begun = time.Time{}
			b.publishIn(ctx, s)
			_ = s.Close()
		case !begun.IsZero() && ctx.Err() == nil && time.Since(begun) >= boardWarn:
			begun = time.Time{}
			b.warn(err)
		}
		select {
		case <-time.After(boardPause):
		case <-ctx.Done():
		}
	}
}

// publishIn is publish until the lease ends, or the store refuses.
func (b *board) publishIn(ctx context.Context, s *store.Store) {
	lease, err := s.Lease(ctx, boardTTL)
	if err != nil {
		return
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), boardEnd)
		defer cancel()
		_ = lease.Close(ctx)
	}()
	for {
		b.mu.Lock()
		j := b.job
		b.mu.Unlock()
		j.URL = ""
		value, err := json.Marshal(&j)
		if err == nil {
			err = s.Set(ctx, nodeKey(&j), value, &store.SetOptions{Lease: lease})
		}
		if err != nil {
			return
		}
		select {
		case <-b.changed:
		case <-lease.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}
