package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

type echoOptions struct {
	rounds, ops int
	asJSON      bool
}

// contender is one way to make a round trip.
type contender struct {
	name   string
	server *server
	trip   func(ctx context.Context) (time.Duration, error)
	stop   func()
}

const (
	bareEchoName = "bare echo"
	echoKey      = "key:000000000000"
	echoValue    = 64
)

func runEcho(ctx context.Context, args []string, out io.Writer) error {
	var o echoOptions
	f := flag.NewFlagSet("echo", flag.ContinueOnError)
	f.IntVar(&o.rounds, "rounds", 40, "rounds; each contender has one turn in each")
	f.IntVar(&o.ops, "ops", 1000, "round trips in a turn")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	s, err := spawnServer(ctx, "muster", "muster", newWireDialect)
	if err != nil {
		return err
	}
	defer s.kill()
	if err := fill(ctx, s, make([]byte, echoValue)); err != nil {
		return err
	}
	all, err := contenders(ctx, s)
	defer func() {
		for _, c := range all {
			c.stop()
		}
	}()
	if err != nil {
		return err
	}
	rep := newReport("echo", "p50 µs", "p99 µs", "mean µs", "client µs/op", "p50 ÷ echo", "p99 ÷ echo", "mean ÷ echo", "others %")
	rep.note("one connection, one deep, %d B; medians of the calmer half of %d rounds of %d", echoValue, o.rounds, o.ops)
	trips, err := waitTrips(ctx, s.addr, 100)
	if err != nil {
		return err
	}
	rep.note("Wait for a key that is there: %.2f round trips", trips)
	if err := o.measure(ctx, all, rep); err != nil {
		return err
	}
	return rep.write(out, o.asJSON)
}

func (o *echoOptions) measure(ctx context.Context, all []contender, rep *report) error {
	var rounds []echoRound
	for range o.rounds {
		r := echoRound{of: map[string]turn{}}
		w, before := startWatch(), o.ours(all)
		for _, c := range all {
			t, err := o.turn(ctx, c)
			if err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			r.of[c.name] = t
		}
		r.others = w.others(o.ours(all) - before)
		rounds = append(rounds, r)
	}
	rounds = calmest(rounds, func(r echoRound) float64 { return r.others })
	for _, c := range all {
		rep.add(echoFigures(rounds, c.name), c.name)
	}
	return nil
}

// echoRound is a turn of each contender.
type echoRound struct {
	others float64
	of     map[string]turn
}

// ours is the CPU time of this process and its servers.
func (o *echoOptions) ours(all []contender) time.Duration {
	sum := ownCPU()
	pids := map[int]bool{}
	for _, c := range all {
		if pid := c.server.cmd.Process.Pid; !pids[pid] {
			pids[pid] = true
			sum += cpuTime(pid)
		}
	}
	return sum
}

// turn is what a contender's turn found, in µs.
type turn struct{ p50, p99, mean, cpu float64 }

func (o *echoOptions) turn(ctx context.Context, c contender) (t turn, err error) {
	took := make([]float64, o.ops)
	cpu := ownCPU()
	for i := range took {
		d, err := c.trip(ctx)
		if err != nil {
			return t, err
		}
		took[i] = micros(d)
	}
	t.cpu = micros(ownCPU()-cpu) / float64(o.ops)
	t.mean = mean(took)
	slices.Sort(took)
	t.p50, t.p99 = quantile(took, 0.5), quantile(took, 0.99)
	return t, nil
}

func echoFigures(rounds []echoRound, name string) map[string]float64 {
	of := func(name string, f func(turn) float64) []float64 {
		return each(rounds, func(r echoRound) float64 { return f(r.of[name]) })
	}
	figures := map[string]float64{
		"client µs/op": median(of(name, func(t turn) float64 { return t.cpu })),
		"others %":     100 * medianOf(rounds, func(r echoRound) float64 { return r.others }),
	}
	for what, f := range map[string]func(turn) float64{
		"p50":  func(t turn) float64 { return t.p50 },
		"p99":  func(t turn) float64 { return t.p99 },
		"mean": func(t turn) float64 { return t.mean },
	} {
		figures[what+" µs"] = median(of(name, f))
		if name != bareEchoName {
			figures[what+" ÷ echo"] = median(ratios(of(name, f), of(bareEchoName, f)))
		}
	}
	return figures
}

// contenders are the bare echo of a get's sizes, and muster's get in several ways. Those that were made are returned with an error too.
func contenders(ctx context.Context, s *server) (all []contender, err error) {
	for _, make := range []func(context.Context, *server) (contender, error){bareEcho, rawGet, clientGet, clientWait, wakeUp} {
		c, err := make(ctx, s)
		if err != nil {
			return all, err
		}
		all = append(all, c)
	}
	return all, nil
}

func bareEcho(ctx context.Context, _ *server) (contender, error) {
	request := len(new(wireDialect).request(nil, opGet, echoKey, nil))
	reply := len(wire.AppendReply(nil, wire.OpGet, 1, &wire.Reply{Rev: 1, Value: make([]byte, echoValue)}))
	s, err := spawnServer(ctx, "echo", "echo", newBareDialect, strconv.Itoa(request), strconv.Itoa(reply))
	if err != nil {
		return contender{}, err
	}
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		return contender{}, err
	}
	out, in := make([]byte, request), make([]byte, reply)
	return contender{bareEchoName, s, func(context.Context) (time.Duration, error) {
		began := time.Now()
		if _, err := c.Write(out); err != nil {
			return 0, err
		}
		_, err := io.ReadFull(c, in)
		return time.Since(began), err
	}, func() { _ = c.Close(); s.kill() }}, nil
}

func rawGet(ctx context.Context, s *server) (contender, error) {
	c, err := dialClient(ctx, s)
	if err != nil {
		return contender{}, err
	}
	return contender{"muster get, wire", s, func(context.Context) (time.Duration, error) {
		began := time.Now()
		err := c.batch(opGet, 1, nil)
		return time.Since(began), err
	}, func() { _ = c.conn.Close() }}, nil
}

// overClient is a contender that calls muster's client.
func overClient(ctx context.Context, s *server, name string, call func(ctx context.Context, c *store.Store) error) (contender, error) {
	c, err := store.Dial(ctx, s.addr, nil)
	if err != nil {
		return contender{}, err
	}
	return contender{name, s, func(ctx context.Context) (time.Duration, error) {
		began := time.Now()
		err := call(ctx, c)
		return time.Since(began), err
	}, func() { _ = c.Close() }}, nil
}

func clientGet(ctx context.Context, s *server) (contender, error) {
	return overClient(ctx, s, "muster get, client", func(ctx context.Context, c *store.Store) error {
		_, err := c.Get(ctx, echoKey)
		return err
	})
}

func clientWait(ctx context.Context, s *server) (contender, error) {
	return overClient(ctx, s, "muster wait, client", func(ctx context.Context, c *store.Store) error {
		_, err := c.Wait(ctx, echoKey)
		return err
	})
}

// wakeUp is the time from a set on one connection until another, which waits for the key, has its value.
func wakeUp(ctx context.Context, s *server) (contender, error) {
	setter, err := dialClient(ctx, s)
	if err != nil {
		return contender{}, err
	}
	waiter, err := dialClient(ctx, s)
	if err != nil {
		return contender{}, err
	}
	value, n := make([]byte, echoValue), 0
	return contender{"muster wake-up, wire", s, func(context.Context) (time.Duration, error) {
		n++
		return wakeOnce(setter, waiter, "wake:"+strconv.Itoa(n), value)
	}, func() { _ = setter.conn.Close(); _ = waiter.conn.Close() }}, nil
}

// wakeOnce has the waiter ask for a ping too: its answer says that the wait is known.
func wakeOnce(setter, waiter *client, key string, value []byte) (time.Duration, error) {
	b := wire.AppendRequest(nil, &wire.Request{Op: wire.OpWait, ID: 1, Keys: []string{key}})
	b = wire.AppendRequest(b, &wire.Request{Op: wire.OpPing, ID: 2})
	if _, err := waiter.conn.Write(b); err != nil {
		return 0, err
	}
	if err := waiter.skip(); err != nil {
		return 0, err
	}
	b = wire.AppendRequest(nil, &wire.Request{Op: wire.OpSet, ID: 1, Key: key, Value: value})
	type woken struct {
		at  time.Time
		err error
	}
	done := make(chan woken, 1)
	go func() {
		err := waiter.skip()
		done <- woken{time.Now(), err}
	}()
	began := time.Now()
	if _, err := setter.conn.Write(b); err != nil {
		return 0, err
	}
	if err := setter.skip(); err != nil {
		return 0, err
	}
	w := <-done
	if _, err := setter.conn.Write(wire.AppendRequest(nil, &wire.Request{Op: wire.OpDelete, ID: 2, Keys: []string{key}})); err != nil {
		return 0, err
	}
	return w.at.Sub(began), cmp.Or(w.err, setter.skip())
}

// skip reads one reply.
func (c *client) skip() error {
	for {
		n, err := c.dialect.reply(c.in[c.r:c.w])
		if err != nil {
			return err
		}
		if c.r += n; n > 0 {
			return nil
		}
		if err := c.read(); err != nil {
			return err
		}
	}
}

// tripCounter counts how often something was read after something was written.
type tripCounter struct {
	net.Conn
	wrote atomic.Bool
	trips atomic.Int64
}

func (c *tripCounter) Write(b []byte) (int, error) {
	c.wrote.Store(true)
	return c.Conn.Write(b)
}

func (c *tripCounter) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.wrote.Swap(false) {
		c.trips.Add(1)
	}
	return n, err
}

// waitTrips is how many round trips a blocking get of a key that is there takes.
func waitTrips(ctx context.Context, addr string, n int) (float64, error) {
	var counted *tripCounter
	c, err := store.Dial(ctx, addr, &store.DialOptions{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		counted = &tripCounter{Conn: conn}
		return counted, err
	}})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	before := counted.trips.Load()
	for range n {
		if _, err := c.Wait(ctx, echoKey); err != nil {
			return 0, err
		}
	}
	return float64(counted.trips.Load()-before) / float64(n), nil
}
