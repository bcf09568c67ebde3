package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// traffic is what connections have carried: bytes sent, bytes received, and packets that were
// retransmitted.
type traffic struct{ out, in, resent uint64 }

func (t traffic) plus(u traffic) traffic {
	return traffic{t.out + u.out, t.in + u.in, t.resent + u.resent}
}

// wires are connections whose traffic the kernel counts, so that they are as fast as others.
type wires struct {
	mu    sync.Mutex // protects the fields below
	conns map[*net.TCPConn]bool
	ended traffic // of closed connections
}

// countedConn is a connection of wires.
type countedConn struct {
	*net.TCPConn
	of *wires
}

// Close counts what the connection has carried: the kernel forgets it.
func (c countedConn) Close() error {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.of.conns[c.TCPConn] {
		delete(c.of.conns, c.TCPConn)
		c.of.ended = c.of.ended.plus(trafficOf(c.TCPConn))
	}
	return c.TCPConn.Close()
}

// dial is a dial function for store.DialOptions.
func (w *wires) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	own := countedConn{c.(*net.TCPConn), w}
	if w.conns == nil {
		w.conns = map[*net.TCPConn]bool{}
	}
	w.conns[own.TCPConn] = true
	return own, nil
}

func (w *wires) traffic() traffic {
	w.mu.Lock()
	defer w.mu.Unlock()
	sum := w.ended
	for c := range w.conns {
		sum = sum.plus(trafficOf(c))
	}
	return sum
}

func (t traffic) emit() { emit("%d %d %d", t.out, t.in, t.resent) }

// rankProcess is the ranks of one process.
type rankProcess struct {
	addrs       []string // of the store, or of its relays, each of which serves host ranks
	host        int
	first, size int
	stores      []*store.Store
	members     []wire.Contribution
	wires       wires

	mu     sync.Mutex // protects broken
	broken int
}

func newRankProcess(addrs string, host, first, end, size int) *rankProcess {
	return &rankProcess{
		addrs: strings.Split(addrs, " "), host: host, first: first, size: size,
		stores: make([]*store.Store, end-first), members: make([]wire.Contribution, end-first),
	}
}

// runRankProcess runs the role of the ranks FIRST to END (exclusive) of SIZE, HOST of them at each of
// ADDRS: rank-process ADDRS FIRST END SIZE HOST. It answers each step with its duration.
func runRankProcess(args []string) error {
	var first, end, size, host int
	for i, into := range []*int{&first, &end, &size, &host} {
		n, err := strconv.Atoi(args[1+i])
		if err != nil {
			return err
		}
		*into = n
	}
	c := newRankProcess(args[0], host, first, end, size)
	steps := map[string]func(ctx context.Context, i int) error{
		"connect": c.connect, "join": c.join, "barrier": c.barrier, "all-gather 64 B": c.allGather, "broadcast 1 KiB": c.broadcast, "broken": c.ping,
	}
	return listen(func(line string) error {
		if line == "traffic" {
			c.wires.traffic().emit()
			return nil
		}
		took, err := c.each(func(i int) error {
			ctx, cancel := context.WithTimeout(context.Background(), stepTime)
			defer cancel()
			return steps[line](ctx, i)
		})
		switch {
		case line == "broken":
			emit("%v", time.Duration(c.broken))
		case err != nil:
			return fmt.Errorf("%s: %w", line, err)
		default:
			emit("%v", took)
		}
		return nil
	})
}

// each runs step for all ranks concurrently.
func (c *rankProcess) each(step func(i int) error) (took time.Duration, err error) {
	began := time.Now()
	var wg sync.WaitGroup
	for i := range c.stores {
		wg.Go(func() {
			if e := step(i); e != nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.broken++
				err = fmt.Errorf("rank %d: %w", c.first+i, e)
			}
		})
	}
	wg.Wait()
	return time.Since(began), err
}

// oversubscribed is the liveness timeout for processes that outnumber the machine's cores by far, and so
// may be stopped for long. Processes on hosts of their own would not be.
const oversubscribed = 15 * time.Second

const stepTime = 5 * time.Minute // an all-gather of 10,000 ranks transfers 7 GB

func (c *rankProcess) connect(ctx context.Context, i int) error {
	// without a retry: a reset is an error
	s, err := store.Dial(ctx, c.addrs[i/c.host%len(c.addrs)], &store.DialOptions{Dial: c.wires.dial, LivenessTimeout: oversubscribed})
	c.stores[i] = s
	return err
}

func (c *rankProcess) join(ctx context.Context, i int) error {
	rank := c.first + i
	membership, err := c.stores[i].Join(ctx, wire.Contribution{Group: "rank-process", Rank: rank, Size: c.size, Label: "rank " + strconv.Itoa(rank)}, []byte(net.IPv4zero))
	c.members[i] = wire.Contribution{Generation: membership.Generation, Rank: rank}
	return err
}

// collect calls a verb for one rank, and checks the number of values and their length.
func (c *rankProcess) collect(ctx context.Context, i int, of wire.Contribution, payload []byte, values, length int) error {
	c.members[i].Seq++
	of.Generation, of.Rank, of.Seq = c.members[i].Generation, c.members[i].Rank, c.members[i].Seq
	got, err := c.stores[i].Collect(ctx, of, payload)
	if err == nil && len(got) != values {
		return fmt.Errorf("%s: %d values, and not %d", of.Verb, len(got), values)
	}
	for _, v := range got {
		if len(v) != length {
			return fmt.Errorf("%s: a value of %d bytes, and not %d", of.Verb, len(v), length)
		}
	}
	return err
}

func (c *rankProcess) barrier(ctx context.Context, i int) error {
	return c.collect(ctx, i, wire.Contribution{Root: -1, Verb: "barrier", Want: wire.WantNothing}, nil, 0, 0)
}

func (c *rankProcess) allGather(ctx context.Context, i int) error {
	return c.collect(ctx, i, wire.Contribution{Root: -1, Verb: "all-gather", Want: wire.WantAll}, make([]byte, 64), c.size, 64)
}

func (c *rankProcess) broadcast(ctx context.Context, i int) error {
	var payload []byte
	if c.members[i].Rank == 0 {
		payload = make([]byte, 1<<10)
	}
	return c.collect(ctx, i, wire.Contribution{Root: 0, RootOnly: true, Verb: "broadcast", Want: 0}, payload, 1, 1<<10)
}

// ping checks the connection of rank i.
func (c *rankProcess) ping(ctx context.Context, i int) error {
	_, err := c.stores[i].Revision(ctx)
	return err
}

// beRelays runs the role of COUNT relays: relays ADDR COUNT. It prints their addresses, and answers
// "traffic" with the traffic to the store.
func beRelays(args []string) error {
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	var w wires
	var addrs []string
	for range count {
		addr, stop, err := serveRelay(args[0], &store.DialOptions{Dial: w.dial, LivenessTimeout: oversubscribed})
		if err != nil {
			return err
		}
		defer stop()
		addrs = append(addrs, addr)
	}
	emit("%s", strings.Join(addrs, " "))
	return listen(func(string) error { w.traffic().emit(); return nil })
}

// serveRelay runs a relay of the store at to.
func serveRelay(to string, o *store.DialOptions) (addr string, stop func(), err error) {
	r, err := store.NewRelay(context.Background(), "muster://"+to, o)
	if err != nil {
		return "", nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, errors.Join(err, r.Close())
	}
	s := &store.Server{Engine: r}
	go func() { _ = s.Serve(l) }()
	return l.Addr().String(), func() { _ = errors.Join(s.Close(), r.Close()) }, nil
}
