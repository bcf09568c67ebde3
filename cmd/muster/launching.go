package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

const (
	launchSoon = 300 * time.Millisecond // a faster start shows nothing
	launchLook = 200 * time.Millisecond // between two requests for the status of the store
)

// launching shows on a terminal how many ranks have started, and then how many have joined their
// group, until the group has formed or a rank prints something.
type launching struct {
	began time.Time
	ended chan struct{} // closed by end
	looks sync.WaitGroup

	mu   sync.Mutex // protects the fields below: ranks write while the bar is drawn
	bar  *bar
	over bool
}

func newLaunching(w io.Writer) *launching {
	return &launching{began: time.Now(), ended: make(chan struct{}), bar: newCountBar(w, "ranks have started")}
}

func (l *launching) show(done, total int, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || time.Since(l.began) < launchSoon {
		return
	}
	l.bar.text = func(done, total int64, _ time.Duration) string { return countLine(done, total, 0, what) }
	l.bar.show(int64(done), int64(total))
}

// started is called before a rank is started.
func (l *launching) started(rank, n int) { l.show(rank, n, "ranks have started") }

// look requests the status of the store where the ranks meet, again and again until end is called.
func (l *launching) look(s *store.Store) {
	if l.bar.width() == 0 {
		return
	}
	l.looks.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for {
			select {
			case <-l.ended:
				return
			case <-time.After(launchLook):
			}
			now, err := s.Status(ctx, "")
			if err != nil || l.seen(now) {
				l.conceal()
				return
			}
		}
	})
}

// seen shows the progress of a forming group, and reports whether a group has formed.
func (l *launching) seen(now *wire.Status) bool {
	for _, g := range now.Groups {
		if g.Generation > 0 || g.Ended >= 0 {
			return true
		}
		l.show(g.Present, g.Size, fmt.Sprintf("ranks have joined %s", printable(g.Name)))
	}
	return false
}

// conceal removes the bar for the rest of the job.
func (l *launching) conceal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	l.bar.clear()
}

func (l *launching) end() {
	close(l.ended)
	l.looks.Wait()
	l.conceal()
}

// behind returns a writer to w that removes the bar before it writes.
func (l *launching) behind(w io.Writer) io.Writer { return curtain{l, w} }

type curtain struct {
	*launching
	w io.Writer
}

// Write implements io.Writer.
func (c curtain) Write(p []byte) (int, error) {
	c.conceal()
	return c.w.Write(p)
}
