package pgroup

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
)

// Logger is Config.Logger with who this is: each record has the group, its generation, the channel if it is one, the rank, and as
// seq the number of the last collective verb that this rank has begun there. Ranks are at the same place when they have the same one.
func (g *Group) Logger() *slog.Logger { return g.log }

// loggerOf is what the records of a channel of s are told to.
func (s *seat) loggerOf(channel string, seq *atomic.Uint64) *slog.Logger {
	as := []slog.Attr{slog.String("group", s.name), slog.Uint64("generation", s.generation), slog.Int("rank", s.rank)}
	if channel != "" {
		as = append(as, slog.String("channel", channel))
	}
	return slog.New(newNumbered(s.cfg.Logger.Handler().WithAttrs(as), seq))
}

// logger is for what happens before there is a group.
func (c *Config) logger() *slog.Logger { return c.storeLogger().With("seq", uint64(0)) }

// storeLogger is for the client or the server through which the group meets: a client's records have a seq of their own.
func (c *Config) storeLogger() *slog.Logger { return c.Logger.With("group", c.Name, "rank", c.Rank) }

// numbered is a handler that adds the sequence number as it is when something is told, ahead of what the caller adds.
type numbered struct {
	base slog.Handler
	seq  *atomic.Uint64
	more func(slog.Handler) slog.Handler // what the caller has added so far
}

func newNumbered(base slog.Handler, seq *atomic.Uint64) slog.Handler {
	return &numbered{base, seq, func(h slog.Handler) slog.Handler { return h }}
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

// warn tells of a failure. What the caller has cancelled itself is hardly worth a word.
func (g *Group) warn(op string, err error) {
	level := slog.LevelWarn
	if errors.Is(err, ErrCancelled) {
		level = slog.LevelDebug
	}
	if op == "" {
		g.log.Log(context.Background(), level, "the group is over", "err", err)
		return
	}
	g.log.Log(context.Background(), level, "a verb has failed", "op", op, "err", err)
}
