package pgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

// Create joins the group: it returns when all ranks have, or says who has not. A rank may come before rank 0
// listens. ctx bounds the joining alone; one without a deadline gets Config.Timeout.
func Create(ctx context.Context, c Config) (*Group, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, errors.Join(err, c.closeListener())
	}
	if err := c.openTrace(); err != nil {
		return nil, errors.Join(err, c.closeListener())
	}
	defer c.file.release(&c)
	start := trace.Now(c.sink)
	bounded, cancel := (&seat{cfg: c}).bound(ctx)
	defer cancel()
	g, err := c.create(bounded)
	c.tellJoin(ctx, admission{name: c.Name, rank: c.Rank, size: c.Size}, g, start, err)
	return g, err
}

// create meets and joins. A store that goes away meanwhile may be the last run's, which still ends: it is
// looked for again, as one that does not listen yet.
func (c *Config) create(ctx context.Context) (*Group, error) {
	start := time.Now()
	var before error
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		g, err := c.createOnce(ctx)
		if err == nil {
			return g, nil
		}
		if ended := ctx.Err(); ended != nil || !c.connects() || !wentAway(err) {
			if ended != nil && !errors.Is(err, ended) {
				err = fmt.Errorf("%w: %w", ended, err)
			}
			return nil, c.createError(err, before, time.Since(start))
		}
		before = err
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// closeListener ends the listener of a group that is not to be: Create has taken it over.
func (c *Config) closeListener() error {
	if c.Listener == nil {
		return nil
	}
	return c.Listener.Close()
}

func (c *Config) createOnce(ctx context.Context) (*Group, error) {
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(err, c.closeListener())
	}
	at, err := c.meet(ctx)
	if err != nil {
		return nil, err
	}
	g, err := c.join(ctx, at, admission{name: c.Name, run: c.Run, rank: c.Rank, size: c.Size})
	if err == nil {
		return g, nil
	}
	at.abandon(c)
	return nil, err
}

// connects reports whether this rank may meet at a store that a rank of some run hosts. Rank 0 does so too, if it finds
// its port in use.
func (c *Config) connects() bool { return c.Address != "" && !isURL(c.Address) }

// wentAway reports whether a store was there and is not any more: it gave no verdict.
func wentAway(err error) bool {
	e, ok := errors.AsType[*store.Error](err)
	return ok && e.Op != "dial" && e.Failure == nil && isGone(code(e))
}

// isStores reports whether err is an answer of the store.
func isStores(err error) bool {
	_, ok := errors.AsType[*store.Error](err)
	return ok
}

func isGone(c wire.Code) bool { return c == wire.CodeUnavailable || c == wire.CodeLeft }

// code is the code of what e wraps: a call that a broken connection ended says why that broke.
func code(e *store.Error) wire.Code {
	if inner, ok := errors.AsType[*store.Error](e.Err); ok {
		return code(inner)
	}
	return e.Code
}

// createError says at which step it failed.
func (c *Config) createError(err, before error, took time.Duration) error {
	if _, ok := errors.AsType[*RankError](err); ok {
		return err
	}
	step := fmt.Sprintf("pgroup: create of group %q on rank %d of %d", c.Name, c.Rank, c.Size)
	if e, ok := errors.AsType[*store.Error](err); ok && e.Op == "dial" && (e.Code == wire.CodeTimeout || e.Code == wire.CodeCancelled) {
		what, do := "nobody listens at", "start rank 0 or the store, or check its address (MASTER_ADDR and MASTER_PORT, or MUSTER_STORE)"
		if strings.Contains(err.Error(), "it has not answered") {
			what, do = "no answer from", "is that rank 0 or a store, and does it hang?"
		}
		step += fmt.Sprintf(": %s %s after %.1fs: %s", what, e.Key, took.Seconds(), do)
	}
	if before != nil {
		return fmt.Errorf("%s: %w; the store that was there before went away: %w", step, oneLine{err}, oneLine{before})
	}
	return fmt.Errorf("%s: %w%s", step, oneLine{err}, refused(err))
}

// refused says which fields to look at if a store refuses a rank, or is refused by it.
func refused(err error) string {
	e, ok := errors.AsType[*store.Error](err)
	switch {
	case !ok || e.Op != "dial" || !errors.Is(err, store.ErrDenied):
		return ""
	case strings.Contains(e.Detail, "secret"):
		return ": check Config.Secret (MUSTER_SECRET_FILE), which all ranks and the store share"
	}
	return ": check Config.TLS (MUSTER_TLS_CA, MUSTER_TLS_CERT, MUSTER_TLS_KEY)"
}

// oneLine is an error of several lines, as errors.Join makes them, on one.
type oneLine struct{ error }

func (e oneLine) Error() string { return strings.ReplaceAll(e.error.Error(), "\n", ": ") }
func (e oneLine) Unwrap() error { return e.error }

// admission is the roll that a rank enters.
type admission struct {
	name, run  string
	rank, size int
	from       uint64 // the generation whose survivors these are, or 0
	op         string // for errors; "" is create
}

// join enters the roll, and gives the handle. It does not let go of at if it fails.
func (c *Config) join(ctx context.Context, at *site, a admission) (*Group, error) {
	host := c.nodeName()
	s := &seat{
		cfg: *c, name: a.name, run: a.run, rank: a.rank, size: a.size, host: -1, site: at, store: at.store,
		closing: make(chan struct{}), closed: make(chan struct{}), channels: map[string]*Group{}, uses: map[string]int{},
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if at.hosts() {
		defer context.AfterFunc(at.broken, func() { cancel(context.Cause(at.broken)) })()
	}
	claim := claimOf(&a)
	roll, err := at.store.JoinAs(ctx, claim, wire.Contribution{
		Group: a.name, Run: a.run, Rank: a.rank, Size: a.size, Generation: a.from, Label: fmt.Sprintf("pid %d on %s", os.Getpid(), host),
	}, appendMember(nil, c.self(host, at)))
	if err != nil {
		if errors.Is(err, ErrUnknown) {
			a.keep(claim)
		}
		return nil, s.joinError(ctx, a.op, err)
	}
	s.generation, s.members, s.size = roll.Generation, roll.Members, len(roll.Members)
	if a.from != 0 {
		s.rank = slices.Index(roll.Ranks, a.rank)
	}
	if err := s.checkRoll(); err != nil {
		s.leave(s.request())
		return nil, s.joinError(ctx, a.op, err)
	}
	if c.sink != nil {
		s.identify()
	}
	c.file.hold()
	g := s.open("")
	g.log.Info("joined", "size", s.size, "host", s.host)
	return g, nil
}

// decided reports whether err is the outcome of an attempt, the same for all ranks in it.
func decided(err error) bool {
	e, ok := errors.AsType[*store.Error](err)
	return ok && e.Failure != nil
}

// joinError says why the roll was not completed. A cause that ended ctx, other than its own, comes first, unless all ranks have the same outcome.
func (s *seat) joinError(ctx context.Context, op string, err error) error {
	cause := context.Cause(ctx)
	if parent, ok := errors.AsType[*RankError](cause); ok { // of the group that this one is made of
		return parent.of(op)
	}
	switch {
	case cause != nil && !errors.Is(cause, ctx.Err()) && (!decided(err) || s.site.hosts() && s.site.broken.Err() != nil):
		return cause
	case op == "" && (wentAway(err) || !isStores(err)): // Create says the rest
		return err
	}
	return s.fault(cmp.Or(op, "create"), "", 0, err)
}

// checkRoll looks at what others said of themselves, once: it comes from the network.
func (s *seat) checkRoll() error {
	if s.rank < 0 || s.rank >= s.size {
		return fmt.Errorf("%w: a roll of %d without this rank", store.ErrProtocol, s.size)
	}
	for rank, b := range s.members {
		m, err := parseMember(b)
		if err != nil {
			return fmt.Errorf("the entry of rank %d: %w", rank, err)
		}
		if m.hosts {
			s.host = rank
		}
	}
	return nil
}
