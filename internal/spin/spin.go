// Package spin polls for events that may come sooner than a sleeping process would be woken, such as
// the next message of another process of the host.
package spin

import (
	"sync/atomic"
	"time"
)

const (
	// Time is how long a caller polls before it sleeps. Between polls it yields the processor to other
	// processes, such as the one that causes the event.
	Time = 50 * time.Microsecond
	// WakeUp is about what a caller saves that polls, and need not be woken.
	WakeUp = 25 * time.Microsecond
	// A yield of LongYield shows that another process computes on this processor. A caller that sleeps
	// gets the processor back earlier: if such yields have taken MaxLoss more than polling has saved, a
	// Poller does not poll for Pause times as long as the last one took.
	LongYield = time.Millisecond
	MaxLoss   = 10 * time.Millisecond
	Pause     = 10
)

// Poller decides when its callers poll. The zero value is ready, and safe for concurrent use.
type Poller struct {
	loss   atomic.Int64              // what long yields have taken, less what polling has saved, in ns
	resume atomic.Pointer[time.Time] // when they poll again; nil: now
}

// Poll calls ready until it returns true, which it reports, or until the caller should sleep.
func (p *Poller) Poll(ready func() bool) bool {
	if ready() {
		return true
	}
	start := time.Now()
	if resume := p.resume.Load(); resume != nil && start.Before(*resume) {
		return false
	}
	for last := start; last.Sub(start) < Time; {
		yield()
		now := time.Now()
		if took := now.Sub(last); took > LongYield && p.lose(took) == MaxLoss {
			resume := now.Add(Pause * took)
			p.resume.Store(&resume)
		}
		if last = now; ready() {
			p.lose(-WakeUp)
			return true
		}
	}
	return false
}

// lose adds d to the loss, which stays between 0 and MaxLoss, and returns it.
func (p *Poller) lose(d time.Duration) time.Duration {
	for {
		old := p.loss.Load()
		now := min(max(old+int64(d), 0), int64(MaxLoss))
		if now == old || p.loss.CompareAndSwap(old, now) {
			return time.Duration(now)
		}
	}
}
