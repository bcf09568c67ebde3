package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// shape is the number of connections of a load, and the number of requests that each has under way.
type shape struct{ conns, depth int }

func (s shape) String() string { return fmt.Sprintf("%d×%d", s.conns, s.depth) }

// The columns of a load.
const (
	rateColumn = "ops/s"
	p99Column  = "p99 µs"
	cpuColumn  = "server µs/op"
)

const (
	keyCount   = 1000
	warmBatch  = 20
	clientRoom = 16 << 10
)

var keys = func() (ks [keyCount]string) {
	for i := range ks {
		ks[i] = fmt.Sprintf("key:%012d", i)
	}
	return ks
}()

// client is one connection of a load.
type client struct {
	conn    net.Conn
	dialect dialect
	out, in []byte
	r, w    int // in[r:w] is unread
	next    int // index of the next key
	took    []int32
}

func dialClient(ctx context.Context, s *server) (*client, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn, dialect: s.newDialect(), in: make([]byte, clientRoom), next: rand.IntN(keyCount)}
	return c, c.dialect.open(conn)
}

// batch sends depth requests in one write, and reads their replies.
func (c *client) batch(op operation, depth int, value []byte) error {
	c.out = c.out[:0]
	for range depth {
		c.out = c.dialect.request(c.out, op, keys[c.next%keyCount], value)
		c.next++
	}
	if _, err := c.conn.Write(c.out); err != nil {
		return err
	}
	for depth > 0 {
		n, err := c.dialect.reply(c.in[c.r:c.w])
		switch {
		case err != nil:
			return err
		case n > 0:
			c.r += n
			depth--
			continue
		}
		if err := c.read(); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) read() error {
	c.w = copy(c.in, c.in[c.r:c.w])
	c.r = 0
	n, err := c.conn.Read(c.in[c.w:])
	c.w += n
	return err
}

// work runs batches until the given time.
func (c *client) work(op operation, depth int, value []byte, until time.Time) error {
	for now := time.Now(); now.Before(until); {
		if err := c.batch(op, depth, value); err != nil {
			return err
		}
		then := time.Now()
		c.took = append(c.took, int32(min(then.Sub(now), time.Second)))
		now = then
	}
	return nil
}

// fill sets every key.
func fill(ctx context.Context, s *server, value []byte) error {
	c, err := dialClient(ctx, s)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	for range keyCount {
		if err := c.batch(opSet, 1, value); err != nil {
			return err
		}
	}
	return nil
}

// measure puts a load on s for duration d. The latency is that of a batch: depth requests, which are
// written together, until the last reply.
func measure(ctx context.Context, s *server, sh shape, op operation, value []byte, d time.Duration) (figures, error) {
	cs := make([]*client, sh.conns)
	defer closeAll(cs)
	for i := range cs {
		c, err := dialClient(ctx, s)
		if cs[i] = c; err != nil {
			return nil, err
		}
		c.took = make([]int32, 0, int(d/(20*time.Microsecond))/sh.conns+1000)
	}
	defer context.AfterFunc(ctx, func() { closeAll(cs) })()
	if err := together(cs, func(c *client) error {
		for range warmBatch {
			if err := c.batch(op, sh.depth, value); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	cpu, own, began := cpuTime(s.Pid()), ownCPU(), time.Now()
	err := together(cs, func(c *client) error { return c.work(op, sh.depth, value, began.Add(d)) })
	took := time.Since(began)
	return summary(cs, sh.depth, took, cpuTime(s.Pid())-cpu, ownCPU()-own), err
}

func summary(cs []*client, depth int, took, serverCPU, clientCPU time.Duration) figures {
	var all []int32
	for _, c := range cs {
		all = append(all, c.took...)
	}
	slices.Sort(all)
	n := float64(len(all) * depth)
	return figures{
		rateColumn: n / took.Seconds(), p50Column: quantile(all, 0.5) / 1e3, p99Column: quantile(all, 0.99) / 1e3,
		cpuColumn: micros(serverCPU) / n, "client µs/op": micros(clientCPU) / n,
	}
}

// together runs f for each client concurrently, and returns the first error.
func together(cs []*client, f func(c *client) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(cs))
	for i, c := range cs {
		wg.Go(func() { errs[i] = f(c) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func closeAll(cs []*client) {
	for _, c := range cs {
		if c != nil && c.conn != nil {
			_ = c.conn.Close()
		}
	}
}

// ownCPU returns the CPU time of this process.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
