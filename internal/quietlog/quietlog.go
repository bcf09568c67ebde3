// Package quietlog limits how many records of a kind a peer can make a log write.
package quietlog

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// MaxPerSecond is how many records of one message, at level Warn or above, are written in a second.
const MaxPerSecond = 100

// New returns a logger that passes records on to l. Of those with the same message, at level Warn or above, it
// passes on MaxPerSecond in a second; the next one has the number of those that were dropped, as "dropped".
// Messages must be constants: what it keeps grows with their number.
func New(l *slog.Logger) *slog.Logger {
	return slog.New(&handler{l.Handler(), &kinds{by: map[string]*kind{}}})
}

type handler struct {
	slog.Handler
	kinds *kinds
}

type kinds struct {
	mu sync.Mutex // protects by
	by map[string]*kind
}

// kind counts the records of a message.
type kind struct {
	second  time.Time // when the counting began
	n       int       // since then
	dropped int
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		write, dropped := h.kinds.add(r.Message)
		if !write {
			return nil
		}
		if dropped > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Int("dropped", dropped))
		}
	}
	return h.Handler.Handle(ctx, r)
}

// add counts a record. It reports whether to write it, and how many were dropped before.
func (ks *kinds) add(message string) (write bool, dropped int) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	k := ks.by[message]
	if k == nil {
		k = &kind{}
		ks.by[message] = k
	}
	if now := time.Now(); now.Sub(k.second) >= time.Second {
		*k = kind{second: now, dropped: k.dropped}
	}
	if k.n++; k.n > MaxPerSecond {
		k.dropped++
		return false, 0
	}
	dropped, k.dropped = k.dropped, 0
	return true, dropped
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.kinds}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.kinds}
}
