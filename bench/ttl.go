package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ttlOptions are the flags of bench ttl.
type ttlOptions struct {
	turns
	n, size      int
	redis        bool
	shapes, part string
}

func runTTL(ctx context.Context, args []string, out io.Writer) error {
	var o ttlOptions
	f := flag.NewFlagSet("ttl", flag.ContinueOnError)
	f.IntVar(&o.n, "n", 1_000_000, "entries with a time to live")
	f.IntVar(&o.size, "size", 16, "bytes of a value")
	f.StringVar(&o.part, "part", "", "measure memory or rate alone")
	f.StringVar(&o.shapes, "shapes", "50x1,50x16", "rate: connections x requests under way on each")
	f.BoolVar(&o.redis, "redis", true, "measure redis-server too")
	o.flags(f, 9, 250*time.Millisecond)
	if err := f.Parse(args); err != nil {
		return err
	}
	if !slices.Contains([]string{"", "memory", "rate"}, o.part) {
		return fmt.Errorf("there is no part %q: memory or rate", o.part)
	}
	return o.live(ctx, out)
}

// spawn starts two muster servers and two redis-servers: one is to have the entries.
func (o *ttlOptions) spawn(ctx context.Context) (r *rivals, err error) {
	r = new(rivals)
	for _, suffix := range []string{"", withTTL} {
		if err := r.addMuster(ctx, "muster"+suffix); err != nil {
			return r, err
		}
		if !o.redis {
			continue
		}
		if err := r.add(spawnRedis(ctx, "redis"+suffix, "--appendonly", "no", "--dir", os.TempDir())); err != nil {
			return r, err
		}
	}
	return r, nil
}

// The suffixes of the names of a server that has the entries, and of a load on all of them.
const (
	withTTL = "+TTL"
	asksAll = ", all"
)

// live measures the cost of entries while they live.
func (o *ttlOptions) live(ctx context.Context, out io.Writer) error {
	shapes, err := parseShapes(o.shapes)
	if err != nil {
		return err
	}
	r, err := o.spawn(ctx)
	defer r.stop()
	if err != nil {
		return err
	}
	keys := ttlKeys(o.n)
	rep := newReport("ttl: memory", "B/entry", "RSS B/entry", "RSS B/entry as it ran", "sets/s", "server µs/set")
	rep.note("%d entries with keys of %d B and values of %d B, which are not counted, and a TTL of %v", o.n, len(keys[0]), o.size, longTTL)
	for _, s := range r.servers {
		if strings.HasSuffix(s.name, withTTL) {
			f, err := o.weigh(ctx, s, keys)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			rep.add(f, s.name)
		}
	}
	if o.part != "rate" {
		if err := rep.write(out, o.asJSON); err != nil {
			return err
		}
	}
	if o.part == "memory" {
		return nil
	}
	rep = newReport("ttl: rate", rateColumn, p50Column, p99Column, cpuColumn, "client µs/op", "rate ÷ empty", "p99 ÷ empty", "CPU ÷ empty", othersColumn)
	rep.note("%s: beside %d entries; %s: and the load is for those, not for %d others; µs/op is CPU time", withTTL, o.n, strings.TrimSpace(asksAll), keyCount)
	if err := r.fill(ctx, o.value()); err != nil {
		return err
	}
	keys = shuffled(keys)
	for _, sh := range shapes {
		for _, op := range []operation{opGet, opSet, opTTL} {
			for _, s := range loads(r.servers, keys, op) {
				e := o.addLoad(r, s, sh, op, o.value())
				if empty, _, has := strings.Cut(s.name, withTTL); has {
					key := loadKey(empty, op, sh)
					e.bases = map[string]ratio{"rate ÷ empty": {rateColumn, key}, "p99 ÷ empty": {p99Column, key}, "CPU ÷ empty": {cpuColumn, key}}
				}
			}
		}
	}
	return o.run(ctx, rep, out)
}

// ttlKeys returns n keys in sorted order.
func ttlKeys(n int) []string {
	const width = 16
	all := make([]byte, 0, n*width)
	ks := make([]string, n)
	for i := range n {
		all = fmt.Appendf(all, "ttl:%0*d", width-len("ttl:"), i)
	}
	s := string(all)
	for i := range n {
		ks[i] = s[i*width : (i+1)*width]
	}
	return ks
}

// value returns the value of the entries.
func (o *ttlOptions) value() []byte { return []byte(strings.Repeat("x", o.size)) }

// weigh fills s, and determines the memory of an entry beyond its key and value.
func (o *ttlOptions) weigh(ctx context.Context, s *server, keys []string) (figures, error) {
	keys = shuffled(keys)
	before, err := weight(ctx, s)
	if err != nil {
		return nil, err
	}
	began, cpu := time.Now(), cpuTime(s.cmd.Process.Pid)
	if err := fillTTL(ctx, s, keys, o.value()); err != nil {
		return nil, err
	}
	took, cpu := time.Since(began), cpuTime(s.cmd.Process.Pid)-cpu
	ran := residentBytes(s.cmd.Process.Pid)
	after, err := weight(ctx, s)
	if err != nil {
		return nil, err
	}
	n := float64(len(keys))
	beyond := func(bytes int64) float64 { return float64(bytes)/n - float64(len(keys[0])+o.size) }
	return figures{
		"B/entry": beyond(after.used - before.used), "RSS B/entry": beyond(after.resident - before.resident),
		"RSS B/entry as it ran": beyond(ran - before.resident), "sets/s": n / took.Seconds(), "server µs/set": micros(cpu) / n,
	}, nil
}

func shuffled(keys []string) []string {
	keys = slices.Clone(keys)
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys
}

// taken is the memory of a server: what it has allocated, and what it has from the system.
type taken struct{ used, resident int64 }

func weight(ctx context.Context, s *server) (t taken, err error) {
	if !s.isRedis() {
		m, err := s.askMemory()
		return taken{int64(m.heap), m.resident}, err
	}
	c, err := dialClient(ctx, s)
	if err != nil {
		return t, err
	}
	defer c.conn.Close()
	c.out = append(c.out, "*2\r\n$4\r\nINFO\r\n$6\r\nmemory\r\n"...)
	err = c.exchange(1, func(reply []byte) (err error) {
		t.used, err = infoField(string(reply), "used_memory")
		return err
	})
	t.resident = residentBytes(s.cmd.Process.Pid)
	return t, err
}

// infoField returns a number of redis's INFO.
func infoField(info, name string) (int64, error) {
	lines := bufio.NewScanner(strings.NewReader(info))
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), name+":"); ok {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, fmt.Errorf("redis: no %s in INFO", name)
}

// fillDepth is the number of sets of a fill that are under way.
const fillDepth = 256

// fillTTL sets keys that expire.
func fillTTL(ctx context.Context, s *server, keys []string, value []byte) error {
	c, err := dialClient(ctx, s)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	defer context.AfterFunc(ctx, func() { _ = c.conn.Close() })()
	for some := range slices.Chunk(keys, fillDepth) {
		c.out = c.out[:0]
		for _, key := range some {
			c.out = c.dialect.request(c.out, opTTL, key, value)
		}
		if err := c.exchange(len(some), nil); err != nil {
			return err
		}
	}
	return nil
}

// loads returns the servers, and once more those that have the entries, as loads on these entries.
// Sets are left out there, since they would remove the times to live.
func loads(servers []*server, keys []string, op operation) (turns []*server) {
	for _, s := range servers {
		turns = append(turns, s)
		if strings.HasSuffix(s.name, withTTL) && op != opSet {
			all := *s
			all.name, all.keys = s.name+asksAll, keys
			turns = append(turns, &all)
		}
	}
	return turns
}
