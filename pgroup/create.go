package pgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

// Create joins the group and returns when all ranks have joined. If not all do, its error names the
// ranks that are missing. A rank may call it before rank 0 listens. ctx bounds the joining alone;
// without a deadline it gets Config.Timeout.
//
// The caller must Close the group.
func Create(ctx context.Context, c Config) (*Group, error) {
	c, err := c.withDefaults()
	if err == nil {
		err = c.openTrace()
	}
	if err != nil {
		return nil, errors.Join(err, c.closeListener())
	}
	defer c.file.release(&c)
	start := trace.Now(c.sink)
	bounded, cancel := c.withDefaultTimeout(ctx, time.Now())
	defer cancel()
	g, err := c.create(bounded)
	c.traceJoin(ctx, joinRequest{name: c.Name, rank: c.Rank, size: c.Size}, g, start, err)
	return g, err
}

// create opens the store and joins. If the store vanishes meanwhile it may have been that of the
// previous run, which is ending: create then tries again, as if the store did not listen yet.
func (c *Config) create(ctx context.Context) (*Group, error) {
	start := time.Now()
	var before error
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		g, err := c.createOnce(ctx)
		if err == nil {
			return g, nil
		}
		if ended := ctx.Err(); ended != nil || !c.connects() || !storeVanished(err) {
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

// closeListener closes the listener of a group that is not created: Create owns it.
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
	at, err := c.openStore(ctx)
	if err != nil {
		return nil, err
	}
	g, err := c.join(ctx, at, joinRequest{name: c.Name, run: c.Run, rank: c.Rank, size: c.Size})
	if err == nil {
		return g, nil
	}
	at.releaseUnused(c)
	return nil, err
}

// connects reports whether this rank may connect to a store that a rank hosts. Rank 0 does, too, if
// its port is in use.
func (c *Config) connects() bool { return c.Address != "" && !isURL(c.Address) }

// storeVanished reports whether err means that a store was reached, and no longer is.
func storeVanished(err error) bool {
	e, ok := errors.AsType[*store.Error](err)
	return ok && e.Op != "dial" && e.Failure == nil && isGone(code(e))
}

func isGone(c wire.Code) bool { return c == wire.CodeUnavailable || c == wire.CodeLeft }

// code returns the code of the innermost store error: a call that a broken connection ended wraps
// the reason for that.
func code(e *store.Error) wire.Code {
	if inner, ok := errors.AsType[*store.Error](e.Err); ok {
		return code(inner)
	}
	return e.Code
}

// createError adds the step at which Create failed to err.
func (c *Config) createError(err, before error, took time.Duration) error {
	if _, ok := errors.AsType[*RankError](err); ok {
		return err
	}
	step := fmt.Sprintf("pgroup: create of group %q on rank %d of %d", c.Name, c.Rank, c.Size)
	if e, ok := errors.AsType[*store.Error](err); ok && e.Op == "dial" && (e.Code == wire.CodeTimeout || e.Code == wire.CodeCancelled) {
		what, do := "no process listens at", "start rank 0 or the store, or check its address (MASTER_ADDR and MASTER_PORT, or MUSTER_STORE)"
		if e.Reason == wire.ReasonNoAnswer {
			what, do = "no answer from", "check that rank 0 or a store listens there, and is not frozen"
		}
		step += fmt.Sprintf(": %s %s after %.1fs: %s", what, e.Key, took.Seconds(), do)
	}
	if before != nil {
		return fmt.Errorf("%s: %w; the store that was there before went away: %w", step, oneLineError{err}, oneLineError{before})
	}
	return fmt.Errorf("%s: %w%s", step, oneLineError{err}, accessHint(err))
}

// accessHint returns which fields to check if a store and a rank do not accept each other.
func accessHint(err error) string {
	e, ok := errors.AsType[*store.Error](err)
	if !ok || e.Op != "dial" || !errors.Is(err, store.ErrDenied) {
		return ""
	}
	switch e.Reason {
	case wire.ReasonRelay:
		return "" // the relay's own settings are wrong
	case wire.ReasonNoSecret, wire.ReasonSecret, wire.ReasonServerSecret:
		return ": check Config.Secret (MUSTER_SECRET_FILE), which all ranks and the store share"
	}
	return ": check Config.TLS (MUSTER_TLS_CA, MUSTER_TLS_CERT, MUSTER_TLS_KEY)"
}

// oneLineError prints an error with several lines, as errors.Join makes them, in one.
type oneLineError struct{ error }

func (e oneLineError) Error() string { return strings.ReplaceAll(e.error.Error(), "\n", ": ") }
func (e oneLineError) Unwrap() error { return e.error }

// joinRequest is the rank and the group that a process joins.
type joinRequest struct {
	name, run  string
	rank, size int
	from       uint64 // the generation whose survivors form the group, or 0
	op         string // for errors; "" is create
	reports    *reporter
}

// join joins a group and returns its handle. It does not release at if it fails.
func (c *Config) join(ctx context.Context, at *sharedStore, a joinRequest) (*Group, error) {
	host := c.nodeName()
	s := &membership{
		cfg: *c, name: a.name, run: a.run, rank: a.rank, size: a.size, host: -1, shared: at, store: at.store, reports: cmp.Or(a.reports, new(reporter)),
		channels: map[string]*Group{}, uses: map[string]int{},
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if at.hosts() {
		defer context.AfterFunc(at.broken, func() { cancel(context.Cause(at.broken)) })()
	}
	claim := claimOf(&a)
	membership, err := at.store.JoinAs(ctx, claim, wire.Contribution{
		Group: a.name, Run: a.run, Rank: a.rank, Size: a.size, Generation: a.from, Label: fmt.Sprintf("pid %d on %s", os.Getpid(), host),
	}, wire.AppendMember(nil, c.selfInfo(host, at)))
	if err != nil {
		if errors.Is(err, ErrUnknown) {
			a.keepClaim(claim)
		}
		return nil, s.joinError(ctx, a.op, err)
	}
	s.generation, s.id, s.rank, s.size = membership.Generation, membership.ID, membership.Rank, membership.Size
	s.host, s.nodes, s.local = membership.Host, membership.Nodes, membership.Local
	s.prefixed = store.Prefix(s.store, fmt.Sprintf("%s/%d/", s.name, s.generation))
	if membership.Members != nil {
		if s.members, err = parseMembers(membership.Members, s.size); err != nil {
			s.leave(s.request())
			return nil, s.joinError(ctx, a.op, err)
		}
	}
	c.file.hold()
	s.reports.enter(s)
	g := s.handle("")
	g.log.Info("joined", "size", s.size, "host", s.host)
	return g, nil
}

// joinError returns the error of a join. A cause that ended ctx, other than its own, takes
// precedence, unless err is the result that all ranks get.
func (s *membership) joinError(ctx context.Context, op string, err error) error {
	cause := context.Cause(ctx)
	if parent, ok := errors.AsType[*RankError](cause); ok { // of the group that this one is made of
		return parent.of(op)
	}
	e, ofStore := errors.AsType[*store.Error](err)
	isResult := ofStore && e.Failure != nil // of the rendezvous, which all of its ranks get
	switch {
	case cause != nil && !errors.Is(cause, ctx.Err()) && (!isResult || s.shared.hosts() && s.shared.broken.Err() != nil):
		return cause
	case op == "" && (storeVanished(err) || !ofStore): // createError adds the rest
		return err
	}
	return s.handle("").asRankError(cmp.Or(op, "create"), 0, err)
}
