package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// kvOptions are the flags of bench kv.
type kvOptions struct {
	turns
	size              int
	redis             bool
	shapes, ops, data string
}

func runKV(ctx context.Context, args []string, out io.Writer) error {
	var o kvOptions
	f := flag.NewFlagSet("kv", flag.ContinueOnError)
	f.IntVar(&o.size, "size", 64, "bytes of a value")
	f.BoolVar(&o.redis, "redis", true, "measure redis-server too")
	f.StringVar(&o.shapes, "shapes", "1x1,50x1,1x16,50x16", "connections x requests under way on each")
	f.StringVar(&o.ops, "ops", "get,set", "operations")
	f.StringVar(&o.data, "data", "", "also measure a durable muster, and redis with appendfsync always, in folders below this one")
	o.flags(f, 9, 250*time.Millisecond)
	if err := f.Parse(args); err != nil {
		return err
	}
	shapes, err := parseShapes(o.shapes)
	if err != nil {
		return err
	}
	ops := strings.Split(o.ops, ",")
	if slices.ContainsFunc(ops, func(op string) bool { return operation(op) != opGet && operation(op) != opSet }) {
		return fmt.Errorf("-ops %s: get or set", o.ops)
	}
	r, err := o.spawn(ctx)
	defer r.stop()
	if err != nil {
		return err
	}
	rep := newReport("kv", rateColumn, p50Column, p99Column, cpuColumn, "client µs/op", "rate ÷ redis", "p99 ÷ redis", "CPU ÷ redis", othersColumn)
	rep.note("values of %d B; µs/op is CPU time", o.size)
	value := []byte(strings.Repeat("x", o.size))
	if err := r.fill(ctx, value); err != nil {
		return err
	}
	for _, sh := range shapes {
		for _, op := range ops {
			for _, s := range r.servers {
				o.addLoad(r, s, sh, operation(op), value).bases = kvBases(s.name, op, sh)
			}
		}
	}
	return o.run(ctx, rep, out)
}

// kvBases returns what a server is compared with.
func kvBases(name, op string, sh shape) map[string]ratio {
	bases := map[string]ratio{}
	base := func(column, figure, server string) { bases[column] = ratio{figure, loadKey(server, operation(op), sh)} }
	switch name {
	case "muster", "muster+disk":
		redis := strings.Replace(name, "muster", "redis", 1)
		base("rate ÷ redis", rateColumn, redis)
		base("p99 ÷ redis", p99Column, redis)
		base("CPU ÷ redis", cpuColumn, redis)
	}
	return bases
}

func loadKey(name string, op operation, sh shape) string { return fmt.Sprint(op, sh, name) }

// addLoad adds the event of a load on a server.
func (t *turns) addLoad(r *rivals, s *server, sh shape, op operation, value []byte) *event {
	t.pids = r.pids()
	e := &event{key: loadKey(s.name, op, sh), name: []string{string(op), sh.String(), s.name}, timed: true}
	e.turn = func(ctx context.Context, _ int) (figures, time.Duration, error) {
		f, err := measure(ctx, s, sh, op, value, t.slice)
		return f, 0, err
	}
	t.events = append(t.events, e)
	return e
}

func parseShapes(s string) (shapes []shape, err error) {
	for part := range strings.SplitSeq(s, ",") {
		var sh shape
		if n, _ := fmt.Sscanf(part, "%dx%d", &sh.conns, &sh.depth); n != 2 || sh.conns < 1 || sh.depth < 1 {
			return nil, fmt.Errorf("shape %q is not like 50x16", part)
		}
		shapes = append(shapes, sh)
	}
	return shapes, nil
}

// rivals are the servers of a run, and other resources to release when it ends.
type rivals struct {
	servers []*server
	dirs    []string // removed at the end
}

func (r *rivals) stop() {
	for _, s := range r.servers {
		s.kill()
	}
	for _, dir := range r.dirs {
		_ = os.RemoveAll(dir)
	}
}

func (r *rivals) pids() (pids []int) {
	for _, s := range r.servers {
		pids = append(pids, s.Pid())
	}
	return pids
}

func (r *rivals) add(s *server, err error) error {
	if err == nil {
		r.servers = append(r.servers, s)
	}
	return err
}

// fill sets every key on every server.
func (r *rivals) fill(ctx context.Context, value []byte) error {
	for _, s := range r.servers {
		if err := fill(ctx, s, value); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// spawn starts the servers. It returns the servers that were started with an error too.
func (o *kvOptions) spawn(ctx context.Context) (r *rivals, err error) {
	r = new(rivals)
	if err := r.add(spawnMuster(ctx, "muster")); err != nil {
		return r, err
	}
	if o.redis {
		if err := r.add(spawnRedis(ctx, "redis", "--appendonly", "no", "--dir", os.TempDir())); err != nil {
			return r, err
		}
	}
	if o.data != "" {
		if err := o.addDurable(ctx, r); err != nil {
			return r, err
		}
	}
	return r, nil
}

// addDurable starts servers that write each change to disk before they answer.
func (o *kvOptions) addDurable(ctx context.Context, r *rivals) error {
	dir, err := os.MkdirTemp(o.data, "durable-*")
	if err != nil {
		return err
	}
	r.dirs = append(r.dirs, dir)
	if err := r.add(spawnMuster(ctx, "muster+disk", filepath.Join(dir, "muster"))); err != nil {
		return err
	}
	if !o.redis {
		return nil
	}
	aof := filepath.Join(dir, "redis")
	if err := os.Mkdir(aof, 0o700); err != nil {
		return err
	}
	return r.add(spawnRedis(ctx, "redis+disk", "--appendonly", "yes", "--appendfsync", "always", "--dir", aof))
}
