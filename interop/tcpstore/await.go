package tcpstore

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// wait returns the values of keys once all exist.
func (c *Client) wait(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	limited := ctx
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, req.Timeout)
		defer cancel()
	}
	for rep.Values = nil; len(rep.Values) < len(req.Keys); {
		err := c.await(limited, sent(req.Keys...))
		if err == nil {
			rep.Values, err = c.values(limited, req.Keys)
		}
		interrupted := transport.ContextErr(limited)
		switch {
		case err == nil:
		case interrupted == nil:
			return err
		case errors.Is(interrupted, context.DeadlineExceeded):
			return c.missing(ctx, req.Keys, rep)
		default:
			return interrupted
		}
	}
	return nil
}

// await waits until each of the keys has existed. It waits on a connection, and it also polls at
// intervals, since some servers do not notify waiters of a COMPARE_SET, and since it has no connection
// while too many calls wait.
func (c *Client) await(ctx context.Context, sent []string) error {
	blocking, cancel := context.WithCancel(ctx)
	defer cancel()
	blocked := make(chan error, 1)
	go func() { blocked <- c.block(blocking, sent) }()
	for pause := pollFirst; ; pause = min(2*pause, pollMost) {
		select {
		case err := <-blocked:
			return err
		case <-time.After(pause):
			replies, err := c.ask(ctx, checkOf(sent...))
			if err != nil || replies[0].N == tcpwire.Ready {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pollFirst and pollMost bound the polling intervals of a call that waits.
const pollFirst, pollMost = 100 * time.Millisecond, time.Second

// block waits for the keys on a connection.
func (c *Client) block(ctx context.Context, sent []string) error {
	for r := c.retry(); ; {
		began := time.Now()
		_, err := c.send(ctx, c.waits, tcpwire.Request{Op: tcpwire.OpWait, Keys: sent})
		if time.Since(began) > c.o.ReconnectTimeout {
			r = c.retry()
		}
		if !isBroken(err) || !r.again(ctx) {
			return c.callerError(err)
		}
	}
}

// values returns the values of keys, or none if one of them has been deleted. Some servers end the
// connection for a key that is missing.
func (c *Client) values(ctx context.Context, keys []string) (values [][]byte, err error) {
	k := sent(keys...)
	replies, err := c.ask(ctx, checkOf(k...))
	if err != nil || replies[0].N != tcpwire.Ready {
		return nil, err
	}
	replies, err = c.send(ctx, c.calls, tcpwire.Request{Op: tcpwire.OpMultiGet, Keys: k}, checkOf(k...))
	if isBroken(err) {
		return nil, nil
	}
	if err != nil || replies[1].N != tcpwire.Ready {
		return nil, err
	}
	for _, v := range replies[0].Values {
		values = append(values, present(v))
	}
	return values, nil
}

// mostMissing is the maximum number of missing keys that an error names.
const mostMissing = 100

// missing returns the error of a wait that has timed out. It names the keys that are missing. If the
// server cannot be reached, it returns store.ErrUnavailable instead: the keys are not the reason.
func (c *Client) missing(ctx context.Context, keys []string, rep *wire.Reply) error {
	ctx, cancel := transport.Grace(ctx, store.ResultGrace)
	defer cancel()
	rep.Code, rep.Values = wire.CodeTimeout, nil
	seen := map[string]bool{}
	var reqs []tcpwire.Request
	var asked []string
	for _, k := range keys {
		if !seen[k] && len(asked) < mostMissing {
			seen[k] = true
			asked, reqs = append(asked, k), append(reqs, checkOf(sent(k)...))
		}
	}
	replies, err := c.ask(ctx, reqs...)
	if e, ok := errors.AsType[*store.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*net.OpError](err); ok { // of an attempt to connect
		return c.unavailable(e)
	}
	if err != nil {
		return context.DeadlineExceeded
	}
	for i, k := range asked {
		if replies[i].N != tcpwire.Ready {
			rep.Keys = append(rep.Keys, k)
		}
	}
	return nil
}
