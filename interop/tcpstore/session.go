package tcpstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// A key of Protocol.Sessions is an entry under the lease of the connection that has set it. The lease
// lasts as long as the connection, and then for sessionGrace. So the store deletes the keys even if
// this process ends, and its limits bound them.

const (
	// sessionGrace is how long the keys of a client remain after its connection has ended.
	sessionGrace = 30 * time.Second
	// exitInterval is how often the server checks meanwhile whether the client's process has ended.
	exitInterval = 500 * time.Millisecond
)

// checkSessions rejects prefixes without the "/" that begins each key of a user.
func checkSessions(prefixes []string) error {
	for _, prefix := range prefixes {
		if !strings.HasPrefix(prefix, tcpwire.KeyPrefix) {
			return fmt.Errorf("tcpstore: the session prefix %q is to begin with %q, which clients put before each key", prefix, tcpwire.KeyPrefix)
		}
	}
	return nil
}

// inSession reports whether a key, as the client sends it, ends with its client.
func (p *Protocol) inSession(sent string) bool {
	return slices.ContainsFunc(p.Sessions, func(prefix string) bool { return strings.HasPrefix(sent, prefix) })
}

// setInSession sets a key under the lease of the connection.
func (p *peer) setInSession(ctx context.Context, req wire.Request) error {
	if p.lease == 0 {
		if err := p.question.do(ctx, p.Store, wire.Request{Op: wire.OpGrant, TTL: sessionGrace}); err != nil {
			return err
		}
		p.lease = uint64(p.question.rep.N)
		lease := p.lease // the goroutine must not read the field
		p.running.Go(func() { p.keepAlive(lease) })
	}
	req.Lease = p.lease
	return p.change(ctx, req)
}

// keepAlive keeps a lease alive until the connection has ended. If the lease has, which happens if a
// relay is cut off from the store, it ends the connection: the client has to learn that its keys are gone.
func (p *peer) keepAlive(lease uint64) {
	tick := time.NewTicker(sessionGrace / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.life.Done():
			return
		}
		if err := p.doLease(p.life, wire.OpKeepAlive, lease); errors.Is(err, store.ErrNotFound) {
			p.fail(fmt.Errorf("the store was away for too long: the keys of this connection have ended: %w", err))
			return
		}
	}
}

// doLease keeps a lease alive, or revokes it. The store has sessionGrace/3 to answer.
func (p *peer) doLease(ctx context.Context, op wire.Op, lease uint64) error {
	ctx, cancel := context.WithTimeout(ctx, sessionGrace/3)
	defer cancel()
	return p.Store.Do(ctx, &wire.Request{Op: op, Lease: lease}, new(wire.Reply))
}

// endSession begins the grace of the client's keys when its connection has ended. The store deletes
// them after it. If the client's process is known, endSession does not return before, and deletes
// them as soon as the process has ended, or returns when ctx ends.
func (p *peer) endSession(ctx context.Context) {
	if p.lease == 0 || p.doLease(ctx, wire.OpKeepAlive, p.lease) != nil {
		return
	}
	end := time.After(sessionGrace)
	tick := time.NewTicker(exitInterval)
	defer tick.Stop()
	for x := p.process.Load(); x != nil && x.pid != 0; {
		select {
		case <-tick.C:
		case <-end:
			return
		case <-ctx.Done():
			return
		}
		if startOf(x.pid) != x.start {
			_ = p.doLease(ctx, wire.OpRevoke, p.lease) // otherwise it ends with the grace
			return
		}
	}
}
