package tcpstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Options are the options of Dial. Zero fields have defaults.
type Options struct {
	// Join counts this process among those that the host waits for, once, as every Python process
	// with a world size does. Leave it false below vllm.Join, which counts the rank itself.
	Join bool
	// Dial makes a connection; nil uses a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// ReconnectTimeout is how long a call tries to reach a server that is unreachable, within its context. The
	// default is 10 s.
	ReconnectTimeout time.Duration
}

// The connections of a client: mostCalls for calls that do not wait, and mostBlocked for waiting calls. Waiting
// calls beyond that poll, after 100 ms first and then less often, up to once a second.
const mostCalls, mostBlocked = 16, 256

// Client is an Engine over a TCPStore that Python hosts.
//
// Operations that the server does not have return store.ErrUnsupported: lifetimes and leases,
// revisions and Watch, groups and streams, a Swap that deletes, and List before torch
// 2.10. Some of the other operations guarantee less than those of other
// engines:
//
//   - A Swap to a value that the key already has counts as done. A Swap from "absent" also succeeds
//     on an empty value that is set at the same time.
//   - The length that Append returns may be that of another client's Append directly after it.
//   - Add does not detect an overflow, and reads "12x" as 12.
//   - List returns each value as it was at some time during the call.
//
// A connection that breaks is replaced. Read-only calls are repeated; a change whose answer is
// missing returns ErrUnknown.
type Client struct {
	addr  string
	o     Options
	calls chan struct{}   // holds a token for each call under way that does not wait
	waits chan struct{}   // holds a token for each call that waits on a connection
	life  context.Context // ends with Close, and all connections with it
	end   context.CancelFunc

	mu   sync.Mutex // protects idle
	idle []*link    // the most recently used link is last
}

// Dial connects to the TCPStore at addr, a host:port. It retries until ctx ends or Options.ReconnectTimeout has
// passed, since this process may have started before the one that hosts the store.
func Dial(ctx context.Context, addr string, o *Options) (*Client, error) {
	if o == nil {
		o = &Options{}
	}
	c := &Client{addr: addr, o: *o}
	c.o.ReconnectTimeout = cmp.Or(o.ReconnectTimeout, 10*time.Second)
	c.calls, c.waits = make(chan struct{}, mostCalls), make(chan struct{}, mostBlocked)
	if c.o.Dial == nil {
		c.o.Dial = new(net.Dialer).DialContext
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, &store.Error{Op: "dial", Key: addr, Code: wire.CodeInvalid, Err: store.ErrInvalid, Detail: err.Error()}
	}
	c.life, c.end = context.WithCancel(context.Background())
	req := tcpwire.Request{Op: tcpwire.OpCheck}
	if o.Join {
		req = tcpwire.Request{Op: tcpwire.OpAdd, Key: tcpwire.InitKey, N: 1}
	}
	if _, err := c.change(ctx, req); err != nil {
		_ = c.Close()
		e, ok := errors.AsType[*store.Error](err)
		if !ok { // ctx has ended
			e = c.unavailable(err)
		}
		e.Op, e.Key = "dial", addr
		return nil, e
	}
	return c, nil
}

// Open opens tcp://host:port of torch 2.2 or later. The parameter join=true counts this process among
// those that the host waits for: see Options.Join. Open is a store.Opener.
func Open(ctx context.Context, u *url.URL) (store.Engine, error) {
	o, wrong := &Options{Join: u.RawQuery == "join=true"}, ""
	switch {
	case u.User != nil || u.Fragment != "":
		wrong = "it has neither users nor a #fragment"
	case u.RawQuery != "" && u.RawQuery != "join=false" && !o.Join:
		wrong = "?" + u.RawQuery + ": the only parameter is join=true"
	}
	if wrong != "" {
		return nil, &store.Error{Op: "open", Key: u.Redacted(), Code: wire.CodeInvalid, Err: store.ErrInvalid, Detail: wrong}
	}
	return Dial(ctx, u.Host, o)
}

// Do implements store.Engine.
func (c *Client) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	*rep = wire.Reply{}
	if c.life.Err() != nil {
		return store.ErrClosed
	}
	do := operations[req.Op]
	if do == nil {
		return refuse(rep, wire.CodeUnsupported, "a TCPStore has no "+req.Op.String())
	}
	if req.TTL != 0 || req.Lease > 0 {
		return refuse(rep, wire.CodeUnsupported, "entries of a TCPStore stay: they have no TTL and no lease")
	}
	if what := tooLarge(req); what != "" {
		return refuse(rep, wire.CodeTooLarge, what)
	}
	err := do(c, ctx, req, rep)
	if err != nil && c.life.Err() != nil {
		return store.ErrClosed
	}
	return err
}

// operations maps an op to the method that carries it out, for the operations that a TCPStore has.
var operations = [256]func(c *Client, ctx context.Context, req *wire.Request, rep *wire.Reply) error{
	wire.OpGet:    (*Client).get,
	wire.OpSet:    (*Client).set,
	wire.OpWait:   (*Client).wait,
	wire.OpAdd:    (*Client).add,
	wire.OpSwap:   (*Client).swap,
	wire.OpAppend: (*Client).append,
	wire.OpDelete: (*Client).delete,
	wire.OpList:   (*Client).list,
}

// refuse fills rep with an error.
func refuse(rep *wire.Reply, code wire.Code, detail string) error {
	*rep = wire.Reply{Code: code, Detail: detail}
	return nil
}

// mostKey and mostValue are the largest key and value that PyTorch's server accepts, in bytes.
const (
	mostKey   = 8 << 10
	mostValue = 8 << 20
)

// tooLarge names the part of req that exceeds the server's limits, for which it would end the
// connection. It returns "" if there is none.
func tooLarge(req *wire.Request) string {
	for _, k := range append(slices.Clip(req.Keys), req.Key) {
		if sent, _ := sentOf(k); len(sent) > mostKey {
			return fmt.Sprintf("a key of %d bytes, the limit is %d with the / in front", len(sent), mostKey)
		}
	}
	if n := max(len(req.Value), len(req.Expect)); n > mostValue {
		return fmt.Sprintf("a value of %d bytes, the limit is %d", n, mostValue)
	}
	return ""
}

// Close implements store.Engine.
func (c *Client) Close() error {
	c.end()
	return nil
}

var (
	_ store.Engine = (*Client)(nil)
	_ store.Opener = Open
)
