package doctor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/muster-pg/muster/store"
)

// ports checks the port where the ranks meet, and the ports in d.Ports.
func (d *Doctor) ports(ctx context.Context, p *process) (fs []Finding) {
	switch meeting := d.meeting(p); {
	case p.hosting():
		fs = append(fs, d.free(ctx, p.config.Address, true))
		fs = append(fs, d.givenAway(meeting)...)
	case p.config == nil: // in a group, joining it is the test
		for _, way := range waysOf(meeting) {
			fs = append(fs, d.reach(ctx, way))
		}
	}
	return append(fs, d.asked(ctx)...)
}

// asked checks the ports in d.Ports concurrently: each may take the full timeout.
func (d *Doctor) asked(ctx context.Context) []Finding {
	fs := make([]Finding, len(d.Ports))
	var wg sync.WaitGroup
	for i, port := range d.Ports {
		wg.Go(func() {
			if _, err := strconv.Atoi(port); err == nil {
				fs[i] = d.free(ctx, ":"+port, false)
			} else {
				fs[i] = d.reach(ctx, port)
			}
		})
	}
	wg.Wait()
	return fs
}

// free reports whether this process can listen at addr. At the address where the ranks meet, a store
// is fine too.
func (d *Doctor) free(ctx context.Context, addr string, meeting bool) Finding {
	l, err := d.listen(ctx, addr)
	_, port, _ := net.SplitHostPort(addr)
	switch {
	case err == nil:
		_ = l.Close()
		return ok("port %s is free", port)
	case errors.Is(err, syscall.EADDRINUSE) && meeting && d.isStore(ctx, addr):
		return ok("a store answers at port %s", port)
	case errors.Is(err, syscall.EADDRINUSE):
		return problem(fmt.Sprintf("port %s is taken", port), "end the process that \"ss -tlnp\" shows there, if it is of an earlier run, or use another port")
	case errors.Is(err, syscall.EACCES):
		return problem(fmt.Sprintf("port %s may not be listened at", port), "ports below 1024 are root's: use a higher one")
	}
	return problem(fmt.Sprintf("no process can listen at %s: %s", addr, innermost(err)), "let the address be one of this host")
}

// listen retries if the port is taken: other ranks of this host may be testing it too.
func (d *Doctor) listen(ctx context.Context, addr string) (l net.Listener, err error) {
	for pause := time.Millisecond; pause < 200*time.Millisecond; pause *= 2 {
		if l, err = d.System.Listen(ctx, "tcp", addr); !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
		select {
		// a random time, so that ranks do not retry together
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return nil, err
		}
	}
	return nil, err
}

// isStore reports whether a muster store listens at addr, even if it denies access.
func (d *Doctor) isStore(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, d.answerTimeout()/2)
	defer cancel()
	s, err := store.Dial(ctx, addr, nil)
	if err == nil {
		_ = s.Close()
	}
	return err == nil || errors.Is(err, store.ErrDenied)
}

// givenAway warns of a port in the ephemeral range, which the system may have given to a client
// when the job needs it.
func (d *Doctor) givenAway(addr string) []Finding {
	_, port, _ := net.SplitHostPort(addr)
	n, err := strconv.Atoi(port)
	if first, last := d.System.Ephemeral(); err == nil && first <= n && n <= last {
		return []Finding{warning(fmt.Sprintf("port %d is one that the system gives to clients (%d to %d): now and then it is taken", n, first, last),
			fmt.Sprintf("let MASTER_PORT be below %d", first))}
	}
	return nil
}

// reach reports whether addr accepts connections.
func (d *Doctor) reach(ctx context.Context, addr string) Finding {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return problem(addr+", where the ranks meet, has no port", "let MUSTER_STORE be muster://host:port")
	}
	ctx, cancel := context.WithTimeout(ctx, d.answerTimeout())
	defer cancel()
	c, err := d.System.Dial(ctx, "tcp", addr)
	if err == nil {
		_ = c.Close()
		return ok("%s can be reached", addr)
	}
	switch kind := dialKind(ctx, err); kind {
	case refused:
		return problem(addr+" refuses: no process listens there, or a firewall rejects it", "start the store or rank 0 first; is the port right?")
	case silent:
		return problem(fmt.Sprintf("%s does not answer within %v", addr, d.answerTimeout()), "a firewall drops it, or the address is of no host: let TCP to that port through")
	}
	return problem(fmt.Sprintf("%s cannot be reached: %s", addr, innermost(err)), "is the address right, and is there a route to it?")
}
