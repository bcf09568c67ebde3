package gather

import (
	"sync"
	"time"
)

// reportEvery is the minimum interval of the calls of Options.Progress for a rank, except the last.
const reportEvery = 100 * time.Millisecond

// meter calls Options.Progress, for one verb, one call at a time.
type meter struct {
	report func(Progress)
	mu     sync.Mutex // protects ranks, and is held during report
	ranks  []metered
}

type metered struct {
	Progress
	reported time.Time
}

func (ga *Gatherer) meter(ranks []int, offers []offer) *meter {
	m := &meter{report: ga.opts.Progress}
	if m.report == nil {
		return m
	}
	for i, o := range offers {
		m.ranks = append(m.ranks, metered{Progress: Progress{Rank: ranks[i], Total: o.total()}})
	}
	return m
}

// of returns a function that counts the bytes received from a rank of the list.
func (m *meter) of(i int) func(n int) {
	if m.report == nil {
		return func(int) {}
	}
	return func(n int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		r := &m.ranks[i]
		r.Done += int64(n)
		if now := time.Now(); r.Done == r.Total || now.Sub(r.reported) >= reportEvery {
			r.reported = now
			m.report(r.Progress)
		}
	}
}
