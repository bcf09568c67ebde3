package torchstore

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

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
	"github.com/muster-pg/muster/wire/tcpstore"
)

// Options has defaults for nil.
type Options struct {
	// Generation is that of the torch which hosts the store; 0 is C, torch 2.2 and later.
	Generation tcpstore.Generation
	// Join counts this process among those that the host waits for, as every Python process with a world size does, once. Leave it false
	// below vllm.Join, which counts the rank itself.
	Join bool
	// Dial makes a connection; nil is a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Conns is how many calls that need not wait may be under way at once, each with a connection; default 16.
	Conns int
	// Waits is how many that wait have a connection of their own; default 256. More of them ask again and again.
	Waits int
	// Mend is how long a call tries to reach a server that is not there; default 10 s, and no longer than its context.
	Mend time.Duration
	// Limits are the server's; zero fields are those of PyTorch's.
	Limits tcpstore.Limits
}

// Client is an Engine over a TCPStore that Python hosts.
//
// What that server cannot do is store.ErrUnsupported: lifetimes and leases, counted reads, revisions and Watch, groups and streams, a Swap
// that deletes, Append with torch before 2.1, and List before 2.10. Some of what it can do has less to it:
//
//   - Swap to a value that is there already counts as done, and one from "absent" takes an empty value that comes at the same time for absent.
//   - Append's length may be that of somebody else's Append right after it.
//   - Add does not notice an overflow, and takes "12x" for 12.
//   - List gives each value as it was at some time while it ran.
//
// A connection that breaks is made anew. Calls that only look are repeated; a change whose answer has not come is ErrUnknown.
type Client struct {
	addr    string
	o       Options
	calls   chan struct{}   // has one for each call under way that need not wait
	waits   chan struct{}   // and for each that waits
	life    context.Context // until Close
	end     context.CancelFunc
	running sync.WaitGroup // links

	mu    sync.Mutex // protects the fields below
	links map[*link]struct{}
	idle  []*link // the one used last is last
}

// Dial connects to the TCPStore at addr, a host:port. It retries while nobody listens there until ctx ends, or Options.Mend
// has passed: this process may have started before the one that hosts.
func Dial(ctx context.Context, addr string, o *Options) (*Client, error) {
	if o == nil {
		o = &Options{}
	}
	c := &Client{addr: addr, o: *o, links: map[*link]struct{}{}}
	c.o.Generation = cmp.Or(o.Generation, tcpstore.C)
	c.o.Mend = cmp.Or(o.Mend, 10*time.Second)
	c.o.Limits.Value = cmp.Or(o.Limits.Value, 8<<20)
	c.o.Limits.Key = cmp.Or(o.Limits.Key, 8<<10)
	c.calls, c.waits = make(chan struct{}, cmp.Or(o.Conns, 16)), make(chan struct{}, cmp.Or(o.Waits, 256))
	if c.o.Dial == nil {
		c.o.Dial = new(net.Dialer).DialContext
	}
	if _, _, err := net.SplitHostPort(addr); err != nil || c.o.Generation > tcpstore.C {
		return nil, &store.Error{Op: "dial", Key: addr, Code: wire.CodeInvalid, Err: store.ErrInvalid, Detail: fmt.Sprintf("generation %v, %v", c.o.Generation, err)}
	}
	c.life, c.end = context.WithCancel(context.Background())
	req := tcpstore.Request{Op: tcpstore.OpCheck}
	if o.Join {
		req = tcpstore.Request{Op: tcpstore.OpAdd, Key: tcpstore.InitKey, N: 1}
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

// Open opens tcp://host:port, with these parameters, all of which may be left out:
//
//	torch  the version of it that hosts the store, as 1.13 or 2.1; anything from 2.2 on is the default
//	join   true counts this process among those that the host waits for: see Options.Join
//
// It is a store.Opener.
func Open(ctx context.Context, u *url.URL) (store.Engine, error) {
	o, err := optionsOf(u)
	if err != nil {
		return nil, &store.Error{Op: "open", Key: u.Redacted(), Code: wire.CodeInvalid, Err: store.ErrInvalid, Detail: err.Error()}
	}
	return Dial(ctx, u.Host, o)
}

func optionsOf(u *url.URL) (*Options, error) {
	o := &Options{Generation: tcpstore.C}
	values, err := url.ParseQuery(u.RawQuery)
	switch {
	case err != nil:
		return nil, err
	case u.User != nil || u.Fragment != "":
		return nil, errors.New("it has neither users nor a #fragment")
	}
	for name, v := range values {
		switch {
		case len(v) > 1:
			return nil, fmt.Errorf("the parameter %s is repeated", name)
		case name == "join" && (v[0] == "true" || v[0] == "false"):
			o.Join = v[0] == "true"
		case name == "torch":
			if o.Generation, err = generationOf(v[0]); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("%s=%s: there are torch=VERSION and join=true", name, v[0])
		}
	}
	return o, nil
}

// generationOf is what a version of torch speaks.
func generationOf(version string) (tcpstore.Generation, error) {
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil || major < 1 || major == 1 && minor < 9 {
		return 0, fmt.Errorf("torch=%s: it is no version from 1.9 on", version)
	}
	switch {
	case major == 1, major == 2 && minor == 0:
		return tcpstore.A, nil
	case major == 2 && minor == 1:
		return tcpstore.B, nil
	}
	return tcpstore.C, nil
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
	if req.TTL != 0 || req.Reads > 0 || req.Lease > 0 {
		return refuse(rep, wire.CodeUnsupported, "entries of a TCPStore stay: they have no TTL, no number of reads and no lease")
	}
	if what := c.tooLarge(req); what != "" {
		return refuse(rep, wire.CodeTooLarge, what)
	}
	err := do(c, ctx, req, rep)
	if err != nil && c.life.Err() != nil {
		return store.ErrClosed
	}
	return err
}

// operations are those that a TCPStore has.
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

// refuse is the answer to what cannot be.
func refuse(rep *wire.Reply, code wire.Code, detail string) error {
	*rep = wire.Reply{Code: code, Detail: detail}
	return nil
}

// tooLarge says what of req the server would end the connection for.
func (c *Client) tooLarge(req *wire.Request) string {
	for _, k := range append(slices.Clip(req.Keys), req.Key) {
		if sent, _ := sentOf(k); len(sent) > c.o.Limits.Key {
			return fmt.Sprintf("a key of %d bytes, the limit is %d with the / in front", len(sent), c.o.Limits.Key)
		}
	}
	if n := max(len(req.Value), len(req.Old)); n > c.o.Limits.Value {
		return fmt.Sprintf("a value of %d bytes, the limit is %d", n, c.o.Limits.Value)
	}
	return ""
}

// Close implements store.Engine.
func (c *Client) Close() error {
	c.mu.Lock()
	c.end()
	for l := range c.links {
		_ = l.conn.Close()
	}
	c.mu.Unlock()
	c.running.Wait()
	return nil
}

var (
	_ store.Engine = (*Client)(nil)
	_ store.Opener = Open
)
