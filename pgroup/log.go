package pgroup

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
)

// Logger returns Config.Logger with attributes: group, generation, rank, channel if it is one, and
// seq, the number of the last collective operation that this rank has begun there. Ranks with the
// same seq are at the same operation.
func (g *Group) Logger() *slog.Logger { return g.log }

// loggerOf returns the logger of a channel of s.
func (s *membership) loggerOf(channel string, seq *atomic.Uint64) *slog.Logger {
	as := []slog.Attr{slog.String("group", s.name), slog.Uint64("generation", s.generation), slog.Int("rank", s.rank)}
	if channel != "" {
		as = append(as, slog.String("channel", channel))
	}
	return slog.New(&numbered{s.cfg.Logger.Handler().WithAttrs(as), seq, func(h slog.Handler) slog.Handler { return h }})
}

// logger returns the logger for what happens before the group exists.
func (c *Config) logger() *slog.Logger { return c.storeLogger().With("seq", uint64(0)) }

// storeLogger returns the logger for the client or the server of the store: records of a client
// have their own seq.
func (c *Config) storeLogger() *slog.Logger { return c.Logger.With("group", c.Name, "rank", c.Rank) }

// numbered is a handler that adds the current sequence number to each record, before the attributes
// of the caller.
type numbered struct {
	base slog.Handler
	seq  *atomic.Uint64
	more func(slog.Handler) slog.Handler // applies what the caller has added
}

func (n *numbered) Enabled(ctx context.Context, l slog.Level) bool { return n.base.Enabled(ctx, l) }

func (n *numbered) Handle(ctx context.Context, r slog.Record) error {
	return n.more(n.base.WithAttrs([]slog.Attr{slog.Uint64("seq", n.seq.Load())})).Handle(ctx, r)
}

func (n *numbered) WithAttrs(as []slog.Attr) slog.Handler {
	return &numbered{n.base, n.seq, func(h slog.Handler) slog.Handler { return n.more(h).WithAttrs(as) }}
}

func (n *numbered) WithGroup(name string) slog.Handler {
	return &numbered{n.base, n.seq, func(h slog.Handler) slog.Handler { return n.more(h).WithGroup(name) }}
}

// logFailure logs a failed operation. One that the caller has cancelled is logged at debug level.
func (g *Group) logFailure(op string, err error) {
	level := slog.LevelWarn
	if errors.Is(err, ErrCancelled) {
		level = slog.LevelDebug
	}
	if op == "" {
		g.log.Log(context.Background(), level, "the group is revoked", "err", err)
		return
	}
	g.log.Log(context.Background(), level, "operation failed", "op", op, "err", err)
}
