package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ttlOptions are the flags of bench ttl.
type ttlOptions struct {
	n, size, rounds       int
	slice                 time.Duration
	redis, sorted, asJSON bool
	shapes, part, profile string
	other                 string
}

func runTTL(ctx context.Context, args []string, out io.Writer) error {
	var o ttlOptions
	f := flag.NewFlagSet("ttl", flag.ContinueOnError)
	f.IntVar(&o.n, "n", 1_000_000, "entries with a time to live")
	f.IntVar(&o.size, "size", 16, "bytes of a value")
	f.BoolVar(&o.sorted, "sorted", false, "set them in the order of their keys, and not in any")
	f.StringVar(&o.part, "part", "", "measure memory or rate alone")
	f.IntVar(&o.rounds, "rounds", 9, "rate: rounds; each peer has one turn in each")
	f.DurationVar(&o.slice, "slice", 250*time.Millisecond, "rate: length of a turn")
	f.StringVar(&o.shapes, "shapes", "50x1,50x16", "rate: connections x requests under way on each")
	f.BoolVar(&o.redis, "redis", true, "measure redis-server too")
	f.StringVar(&o.profile, "profile", "", "folder for CPU profiles of muster's servers, without the first fill")
	f.StringVar(&o.other, "other", "", "measure the muster of another build of this program too: this file")
	f.BoolVar(&o.asJSON, "json", false, "print JSON: a report for each part")
	if err := f.Parse(args); err != nil {
		return err
	}
	if !slices.Contains([]string{"", "memory", "rate"}, o.part) {
		return fmt.Errorf("there is no part %q: memory or rate", o.part)
	}
	return o.live(ctx, out)
}

// spawn starts a muster server, one of another build, and a redis-server for each of the suffixes.
func (o *ttlOptions) spawn(ctx context.Context, suffixes ...string) (r *rivals, err error) {
	r = new(rivals)
	for _, suffix := range suffixes {
		if err := r.add(spawnServer(ctx, "muster"+suffix, "muster", newWireDialect)); err != nil {
			return r, err
		}
	}
	for _, suffix := range suffixes {
		if o.other == "" {
			break
		}
		if err := r.add(spawnOther(ctx, "other"+suffix, o.other)); err != nil {
			return r, err
		}
	}
	if !o.redis {
		return r, nil
	}
	for _, suffix := range suffixes {
		if err := r.add(spawnRedis(ctx, "redis"+suffix, "--appendonly", "no", "--dir", os.TempDir())); err != nil {
			return r, err
		}
	}
	return r, nil
}

// profileMuster makes the muster servers write profiles from now on.
func (o *ttlOptions) profileMuster(servers []*server) error {
	for _, s := range servers {
		if o.profile == "" || s.isRedis() {
			continue
		}
		if _, err := s.ask("profile " + filepath.Join(o.profile, s.name+".pprof")); err != nil {
			return err
		}
	}
	return nil
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
	r, err := o.spawn(ctx, "", withTTL)
	defer r.stop()
	if err != nil {
		return err
	}
	keys := ttlKeys(o.n)
	rep := newReport("ttl: memory", "B/entry", "RSS B/entry", "RSS B/entry as it ran", "sets/s", "server µs/set")
	rep.note("%d entries with keys of %d B and values of %d B, which are not counted, and a TTL of %v", o.n, len(keys[0]), o.size, longTTL)
	for _, s := range r.servers {
		if strings.HasSuffix(s.name, withTTL) {
			figures, err := o.weigh(ctx, s, keys)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			rep.add(figures, s.name)
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
	if err := o.profileMuster(r.servers); err != nil {
		return err
	}
	rep = newReport("ttl: rate", "ops/s", "p50 µs", "p99 µs", "server µs/op", "client µs/op", "rate ÷ empty", "p99 ÷ empty", "CPU ÷ empty", "others %")
	rep.note("%s: beside %d entries; %s: and the load is for those, not for %d others", withTTL, o.n, strings.TrimSpace(asksAll), keyCount)
	rep.note("medians of the calmer half of %d rounds of %v; µs/op is CPU time", o.rounds, o.slice)
	if err := o.rate(ctx, r.servers, shapes, keys, rep); err != nil {
		return err
	}
	return rep.write(out, o.asJSON)
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
func (o *ttlOptions) weigh(ctx context.Context, s *server, keys []string) (map[string]float64, error) {
	if !o.sorted {
		keys = shuffled(keys)
	}
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
	return map[string]float64{
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

// rate runs the turns of all servers, forwards and backwards in turn, so that none always follows
// the same one.
func (o *ttlOptions) rate(ctx context.Context, servers []*server, shapes []shape, keys []string, rep *report) error {
	value := o.value()
	for _, s := range servers {
		if err := fill(ctx, s, value); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	keys = shuffled(keys)
	for _, sh := range shapes {
		for _, op := range []operation{opGet, opSet, opTTL} {
			turns := loads(servers, keys, op)
			var rounds []kvRound
			for range o.rounds {
				r, err := takeTurns(ctx, turns, sh, op, value, o.slice)
				if err != nil {
					return err
				}
				rounds = append(rounds, r)
				slices.Reverse(turns)
			}
			rounds = calmest(rounds, func(r kvRound) float64 { return r.others })
			for _, s := range loads(servers, keys, op) {
				rep.add(ttlFigures(rounds, s.name), string(op), sh.String(), s.name)
			}
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

func ttlFigures(rounds []kvRound, name string) map[string]float64 {
	figures := kvFigures(rounds, "") // "others %"
	of := func(name string, f func(sample) float64) []float64 {
		return each(rounds, func(r kvRound) float64 { return f(r.of[name]) })
	}
	empty, _, has := strings.Cut(name, withTTL)
	for _, f := range []struct {
		figure, ratio string
		of            func(sample) float64
	}{
		{"ops/s", "rate ÷ empty", func(s sample) float64 { return s.rate }},
		{"p50 µs", "", func(s sample) float64 { return s.p50 }},
		{"p99 µs", "p99 ÷ empty", func(s sample) float64 { return s.p99 }},
		{"server µs/op", "CPU ÷ empty", func(s sample) float64 { return s.serverCPU }},
		{"client µs/op", "", func(s sample) float64 { return s.clientCPU }},
	} {
		figures[f.figure] = median(of(name, f.of))
		if has && f.ratio != "" {
			figures[f.ratio] = median(ratios(of(name, f.of), of(empty, f.of)))
		}
	}
	return figures
}
