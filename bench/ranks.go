package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

type ranksOptions struct {
	most, each, barriers int
	asJSON               bool
}

func runRanks(ctx context.Context, args []string, out io.Writer) error {
	var o ranksOptions
	f := flag.NewFlagSet("ranks", flag.ContinueOnError)
	f.IntVar(&o.most, "n", 5000, "ranks; 100 and 1000 are measured before")
	f.IntVar(&o.each, "each", 1000, "ranks in one client process, each with a connection")
	f.IntVar(&o.barriers, "barriers", 20, "barriers")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := checkFiles(o.most + o.each/10 + 100); err != nil {
		return err
	}
	rep := newReport("ranks", "connect s", "join s", "barrier ms", "worst ms", "server µs/rank", "RSS KiB/conn", "heap+stack KiB/conn", "in group: RSS", "heap+stack", "broken")
	rep.note("times until the last rank; a barrier is the median of %d; KiB of the server, after its connections have gone idle", o.barriers)
	for _, n := range []int{100, 1000, o.most} {
		if n > o.most || n == o.most && len(rep.Rows) > 0 && rep.Rows[len(rep.Rows)-1].Name[0] == strconv.Itoa(n) {
			continue
		}
		figures, err := o.measure(ctx, n)
		if err != nil {
			return fmt.Errorf("%d ranks: %w", n, err)
		}
		rep.add(figures, strconv.Itoa(n))
	}
	return rep.write(out, o.asJSON)
}

// checkFiles refuses to begin what the limit on open files would end. Go has raised it as far as it can.
func checkFiles(n int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Max < uint64(n) {
		return fmt.Errorf("the server needs %d file descriptors, and may have %d: raise ulimit -Hn, or use a smaller -n", n, limit.Max)
	}
	return nil
}

// crowds are the client processes of one measurement.
type crowds []*process

// ask tells all the same, and returns the longest time that one answers with.
func (cs crowds) ask(what string) (slowest time.Duration, err error) {
	answers := make([]time.Duration, len(cs))
	errs := make([]error, len(cs))
	var wg sync.WaitGroup
	for i, c := range cs {
		wg.Go(func() {
			var line string
			if line, errs[i] = c.ask(what); errs[i] == nil {
				answers[i], errs[i] = time.ParseDuration(line)
			}
		})
	}
	wg.Wait()
	for i, a := range answers {
		if errs[i] != nil {
			return 0, errs[i]
		}
		slowest = max(slowest, a)
	}
	return slowest, nil
}

func (o *ranksOptions) measure(ctx context.Context, n int) (map[string]float64, error) {
	s, err := spawnServer(ctx, "muster", "muster", newWireDialect)
	if err != nil {
		return nil, err
	}
	defer s.kill()
	var cs crowds
	defer func() {
		for _, c := range cs {
			c.stop()
		}
	}()
	for first := 0; first < n; first += o.each {
		c, err := spawn(ctx, "crowd", s.addr, strconv.Itoa(first), strconv.Itoa(min(first+o.each, n)), strconv.Itoa(n))
		if err != nil {
			return nil, err
		}
		cs = append(cs, c)
	}
	return o.steps(s, cs, n)
}

// steps connects, joins, and holds barriers, and looks at the server in between.
func (o *ranksOptions) steps(s *server, cs crowds, n int) (map[string]float64, error) {
	empty, err := s.askMemory()
	if err != nil {
		return nil, err
	}
	connect, err := cs.ask("connect")
	if err != nil {
		return nil, err
	}
	idle, err := s.askMemory()
	if err != nil {
		return nil, err
	}
	join, err := cs.ask("join")
	if err != nil {
		return nil, err
	}
	var took []float64
	cpu := cpuTime(s.cmd.Process.Pid)
	for range o.barriers {
		d, err := cs.ask("barrier")
		if err != nil {
			return nil, err
		}
		took = append(took, 1e3*d.Seconds())
	}
	cpu = cpuTime(s.cmd.Process.Pid) - cpu
	grouped, err := s.askMemory()
	if err != nil {
		return nil, err
	}
	broken, err := cs.ask("broken") // so many ns as connections
	if err != nil {
		return nil, err
	}
	rss, heap := idle.perConn(empty, n)
	rssGrouped, heapGrouped := grouped.perConn(empty, n)
	worst := 0.0
	for _, t := range took {
		worst = max(worst, t)
	}
	return map[string]float64{
		"connect s": connect.Seconds(), "join s": join.Seconds(), "barrier ms": median(took), "worst ms": worst,
		"server µs/rank": micros(cpu) / float64(o.barriers*n),
		"RSS KiB/conn":   rss / 1024, "heap+stack KiB/conn": heap / 1024, "in group: RSS": rssGrouped / 1024, "heap+stack": heapGrouped / 1024,
		"broken": float64(broken),
	}, nil
}

// crowd is the ranks of one process.
type crowd struct {
	addr        string
	first, size int
	stores      []*store.Store
	seats       []wire.Contribution
	broken      int
}

// beCrowd is the role of ranks FIRST to END (without it) of SIZE: crowd ADDR FIRST END SIZE. It answers each step with how long that took.
func beCrowd(args []string) error {
	first, err1 := strconv.Atoi(args[1])
	end, err2 := strconv.Atoi(args[2])
	size, err3 := strconv.Atoi(args[3])
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return err
		}
	}
	c := &crowd{addr: args[0], first: first, size: size, stores: make([]*store.Store, end-first), seats: make([]wire.Contribution, end-first)}
	steps := map[string]func(rank int) error{"connect": c.connect, "join": c.join, "barrier": c.barrier, "broken": c.ping}
	return listen(func(line string) error {
		took, err := c.each(steps[line])
		switch {
		case line == "broken":
			tell("%v", time.Duration(c.broken))
		case err != nil:
			return fmt.Errorf("%s: %w", line, err)
		default:
			tell("%v", took)
		}
		return nil
	})
}

// each runs step for all ranks at once.
func (c *crowd) each(step func(i int) error) (took time.Duration, err error) {
	began := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range c.stores {
		wg.Go(func() {
			if e := step(i); e != nil {
				mu.Lock()
				defer mu.Unlock()
				c.broken++
				err = fmt.Errorf("rank %d: %w", c.first+i, e)
			}
		})
	}
	wg.Wait()
	return time.Since(began), err
}

const stepTime = 60 * time.Second

func (c *crowd) connect(i int) error {
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	s, err := store.Dial(ctx, c.addr, nil) // no second try: a reset is an error
	c.stores[i] = s
	return err
}

func (c *crowd) join(i int) error {
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	rank := c.first + i
	roll, err := c.stores[i].Join(ctx, wire.Contribution{Group: "crowd", Rank: rank, Size: c.size, Label: "rank " + strconv.Itoa(rank)}, []byte(net.IPv4zero))
	c.seats[i] = wire.Contribution{Generation: roll.Generation, Rank: rank, Root: -1, Verb: "barrier", Want: wire.WantNothing}
	return err
}

func (c *crowd) barrier(i int) error {
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	c.seats[i].Seq++
	_, err := c.stores[i].Collect(ctx, c.seats[i], nil)
	return err
}

// ping finds out whether the connection still is one.
func (c *crowd) ping(i int) error {
	ctx, cancel := context.WithTimeout(context.Background(), stepTime)
	defer cancel()
	_, err := c.stores[i].Revision(ctx)
	return err
}
