package torchstore

import (
	"context"
	"errors"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
	"github.com/muster-pg/muster/wire/tcpstore"
)

// wait returns the values of keys once all are there.
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
		switch {
		case err == nil:
		case limited.Err() == nil:
			return err
		case errors.Is(limited.Err(), context.DeadlineExceeded):
			return c.missing(ctx, req.Keys, rep)
		default:
			return limited.Err()
		}
	}
	return nil
}

// await waits until all keys have been there.
func (c *Client) await(ctx context.Context, sent []string) error {
	for tries := 1; ; tries++ {
		_, err := c.send(ctx, c.waits, tcpstore.Request{Op: tcpstore.OpWait, Keys: sent})
		if errors.Is(err, errNoSlot) {
			return c.poll(ctx, sent)
		}
		if _, broken := errors.AsType[brokenError](err); !broken {
			return err
		}
		if tries == mostTries {
			return c.unavailable(err)
		}
	}
}

// How often those ask who have no connection to wait on.
const (
	pollFirst = 2 * time.Millisecond
	pollMost  = 100 * time.Millisecond
)

// poll asks again and again whether all keys are there.
func (c *Client) poll(ctx context.Context, sent []string) error {
	for pause := pollFirst; ; pause = min(2*pause, pollMost) {
		replies, err := c.ask(ctx, checkOf(sent...))
		if err != nil || replies[0].N == tcpstore.Ready {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		case <-c.life.Done():
			return store.ErrClosed
		}
	}
}

// values are those of keys; none if one of them is gone again.
func (c *Client) values(ctx context.Context, keys []string) (values [][]byte, err error) {
	if c.o.Generation.Has(tcpstore.OpMultiGet) {
		k := sent(keys...)
		replies, err := c.ask(ctx, tcpstore.Request{Op: tcpstore.OpMultiGet, Keys: k}, checkOf(k...))
		if err != nil || replies[1].N != tcpstore.Ready {
			return nil, err
		}
		for _, v := range replies[0].Values {
			values = append(values, present(v))
		}
		return values, nil
	}
	for _, k := range keys {
		v, there, err := c.value(ctx, k)
		if err != nil || !there {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

// mostMissing is how many missing keys an error names.
const mostMissing = 100

// missing answers a wait whose time is over with the keys that are missing.
func (c *Client) missing(ctx context.Context, keys []string, rep *wire.Reply) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), store.Grace)
	defer cancel()
	rep.Code, rep.Values = wire.CodeTimeout, nil
	seen := map[string]bool{}
	var reqs []tcpstore.Request
	var asked []string
	for _, k := range keys {
		if !seen[k] && len(asked) < mostMissing {
			seen[k] = true
			asked, reqs = append(asked, k), append(reqs, checkOf(sent(k)...))
		}
	}
	replies, err := c.ask(ctx, reqs...)
	if err != nil {
		return context.DeadlineExceeded
	}
	for i, k := range asked {
		if replies[i].N != tcpstore.Ready {
			rep.Keys = append(rep.Keys, k)
		}
	}
	return nil
}
