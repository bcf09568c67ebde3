package tcpstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// ask carries out read-only requests.
func (c *Client) ask(ctx context.Context, reqs ...tcpwire.Request) ([]tcpwire.Reply, error) {
	for r := c.retry(); ; {
		replies, err := c.send(ctx, c.calls, reqs...)
		if !isBroken(err) || !r.again(ctx) {
			return replies, c.callerError(err)
		}
	}
}

// change carries out requests that change entries.
func (c *Client) change(ctx context.Context, reqs ...tcpwire.Request) ([]tcpwire.Reply, error) {
	replies, err := c.send(ctx, c.calls, reqs...)
	if isBroken(err) {
		return nil, c.unavailable(fmt.Errorf("%w: %w", store.ErrUnknown, err))
	}
	return replies, err
}

func isBroken(err error) bool {
	_, is := errors.AsType[brokenError](err)
	return is
}

// callerError maps err to the error that the caller gets.
func (c *Client) callerError(err error) error {
	if isBroken(err) {
		return c.unavailable(err)
	}
	return err
}

// retry is the state of a call that is repeated after its connection broke.
type retry struct {
	life  context.Context // of the client
	until time.Time
	pause time.Duration
}

func (c *Client) retry() retry {
	return retry{c.life, time.Now().Add(c.o.ReconnectTimeout), time.Millisecond}
}

// again waits for a short time, and reports whether there is time for another attempt.
func (r *retry) again(ctx context.Context) bool {
	if !time.Now().Add(r.pause).Before(r.until) {
		return false
	}
	select {
	case <-time.After(r.pause):
	case <-ctx.Done():
		return false
	case <-r.life.Done():
		return false
	}
	r.pause = min(2*r.pause, 250*time.Millisecond)
	return true
}

func checkOf(sent ...string) tcpwire.Request {
	return tcpwire.Request{Op: tcpwire.OpCheck, Keys: sent}
}

// sent returns keys in the form that the protocol sends.
func sent(keys ...string) []string {
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i], _ = sentOf(k)
	}
	return out
}

func (c *Client) get(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	v, ok, err := c.value(ctx, req.Key)
	if !ok && err == nil {
		return refuse(rep, wire.CodeNotFound, "")
	}
	rep.Value = v
	return err
}

// value returns a key's value, and whether the key exists. For a missing key a server answers with
// an empty value, or ends the connection.
func (c *Client) value(ctx context.Context, key string) (v []byte, ok bool, err error) {
	k := sent(key)
	for r := c.retry(); ; {
		replies, err := c.ask(ctx, checkOf(k...))
		if err != nil || replies[0].N != tcpwire.Ready {
			return nil, false, err
		}
		replies, err = c.send(ctx, c.calls, tcpwire.Request{Op: tcpwire.OpGet, Key: k[0]}, checkOf(k...))
		if err == nil && (len(replies[0].Value) > 0 || replies[1].N == tcpwire.Ready) {
			return present(replies[0].Value), true, nil
		}
		// otherwise the key has just been deleted
		if err != nil && !isBroken(err) || !r.again(ctx) {
			return nil, false, c.callerError(err)
		}
	}
}

func (c *Client) set(ctx context.Context, req *wire.Request, _ *wire.Reply) error {
	k := sent(req.Key)
	// SET has no answer: the answer to the CHECK shows that the server has processed it.
	_, err := c.change(ctx, tcpwire.Request{Op: tcpwire.OpSet, Key: k[0], Value: req.Value}, checkOf(k...))
	return err
}

func (c *Client) add(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	replies, err := c.change(ctx, tcpwire.Request{Op: tcpwire.OpAdd, Key: sent(req.Key)[0], N: req.Add})
	// the server ends the connection if the value is not a number
	if errors.Is(err, store.ErrUnknown) {
		v, _, lookErr := c.value(ctx, req.Key)
		if _, numErr := strconv.ParseInt(string(v), 10, 64); lookErr == nil && len(v) > 0 && numErr != nil {
			return refuse(rep, wire.CodeInvalid, "the value is not a decimal number")
		}
	}
	if err == nil {
		rep.N = replies[0].N
	}
	return err
}

func (c *Client) append(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	k := sent(req.Key)
	if old, _, err := c.value(ctx, req.Key); err != nil {
		return err
		// no other client could set it back
	} else if n := len(old) + len(req.Value); n > mostValue {
		return refuse(rep, wire.CodeTooLarge, fmt.Sprintf("the value would have %d bytes, the limit is %d", n, mostValue))
	}
	replies, err := c.change(ctx, tcpwire.Request{Op: tcpwire.OpAppend, Key: k[0], Value: req.Value}, tcpwire.Request{Op: tcpwire.OpGet, Key: k[0]})
	if err == nil {
		rep.N = int64(len(replies[0].Value))
	}
	return err
}

// mostDeleted is the maximum number of keys that one request deletes.
const mostDeleted = 1000

func (c *Client) delete(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	for keys := range slices.Chunk(sent(req.Keys...), mostDeleted) {
		reqs := make([]tcpwire.Request, len(keys))
		for i, k := range keys {
			reqs[i] = tcpwire.Request{Op: tcpwire.OpDeleteKey, Key: k}
		}
		replies, err := c.change(ctx, reqs...)
		if err != nil {
			return err
		}
		for _, r := range replies {
			rep.N += r.N
		}
	}
	return nil
}

// swap reads first, since COMPARE_SET does not distinguish an empty value from a missing key, and
// its answer does not show whether it changed the value or found it there.
func (c *Client) swap(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if req.Value == nil && req.Expect != nil {
		return refuse(rep, wire.CodeUnsupported, "a TCPStore cannot delete a key only if it has a value")
	}
	now, there, err := c.value(ctx, req.Key)
	if err != nil {
		return err
	}
	if rep.Value = now; there != (req.Expect != nil) || there && string(now) != string(req.Expect) {
		rep.Code = wire.CodeConflict
		return nil
	}
	if req.Value == nil {
		return nil
	}
	k, _ := sentOf(req.Key)
	replies, err := c.change(ctx, tcpwire.Request{Op: tcpwire.OpCompareSet, Key: k, Old: req.Expect, Value: req.Value})
	if err != nil {
		return err
	}
	rep.Value = present(replies[0].Value)
	if string(rep.Value) == string(req.Value) {
		return nil
	}
	rep.Code = wire.CodeConflict
	if len(req.Expect) > 0 && string(rep.Value) == string(req.Expect) { // it was deleted meanwhile
		rep.Value = nil
	}
	return nil
}

// list returns one page of entries.
func (c *Client) list(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	all, supported, err := c.keys(ctx)
	if !supported || err != nil {
		if err == nil {
			err = refuse(rep, wire.CodeUnsupported, "a TCPStore of torch before 2.10 does not list its keys")
		}
		return err
	}
	var keys []string
	for _, k := range all {
		if strings.HasPrefix(k, req.Key) && (len(req.Keys) == 0 || k > req.Keys[0]) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	most := int(mostListed)
	if req.Limit > 0 {
		most = int(min(req.Limit, mostListed))
	}
	if len(keys) > most {
		keys, rep.N = keys[:most], 1
	}
	if req.KeysOnly {
		rep.Keys, rep.Nums = keys, make([]int64, 2*len(keys)) // neither revisions nor TTLs
	}
	if len(keys) == 0 || req.KeysOnly {
		return nil
	}
	replies, err := c.ask(ctx, tcpwire.Request{Op: tcpwire.OpMultiGet, Keys: sent(keys...)})
	if err != nil {
		return err
	}
	for i, k := range keys {
		v := replies[0].Values[i]
		if len(v) == 0 {
			var there bool
			if v, there, err = c.value(ctx, k); err != nil {
				return err
			}
			if !there && i < len(keys)-1 { // the last key is where the next page begins
				continue
			}
		}
		rep.Keys, rep.Values, rep.Nums = append(rep.Keys, k), append(rep.Values, present(v)), append(rep.Nums, 0, 0)
	}
	return nil
}

// mostListed is the maximum number of entries of a page.
const mostListed int64 = 1000

// keys returns all keys of the server; supported is false if the server cannot list them.
func (c *Client) keys(ctx context.Context) (keys []string, supported bool, err error) {
	replies, err := c.send(ctx, c.calls, tcpwire.Request{Op: tcpwire.OpListKeys})
	if isBroken(err) {
		if _, err := c.ask(ctx, checkOf()); err != nil { // the server is not reachable at all
			return nil, true, err
		}
		return nil, false, nil
	}
	if err != nil {
		return nil, true, err
	}
	for _, k := range replies[0].Keys {
		keys = append(keys, keyOf(k))
	}
	return keys, true, nil
}
