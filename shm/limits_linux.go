package shm

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// host reads the limits of memory. The kernel kills a process that exceeds one, so they are checked
// before.
type host struct {
	root   fs.FS // that of the file system, with proc and sys
	mounts []hierarchy
}

func thisHost() host { return newHost(os.DirFS("/")) }

// newHost reads what does not change while a process runs.
func newHost(root fs.FS) host {
	h := host{root: root}
	h.mounts = h.hierarchies()
	return h
}

// bound is a limit of memory.
type bound struct {
	name      string
	max, left int64
}

// margin is what is left for other memory below a bound: page tables, the heap.
func (b bound) margin() int64 { return min(max(b.max/64, 1<<20), 256<<20) }

// check returns ErrFull unless n more bytes can be reserved. A limit that cannot be read is
// ignored.
func (h host) check(n int64) error {
	for _, b := range h.bounds(n) {
		if left := max(b.left-b.margin(), 0); n > left {
			return full(n, left, fmt.Sprintf("%s of %s", b.name, amount(b.max)))
		}
	}
	return nil
}

// CheckMemory returns ErrFull unless this host, and the control groups that this process is in,
// have memory for n more bytes. On systems without such figures it returns nil.
func CheckMemory(n int64) error { return thisHost().check(n) }

// full is ErrFull with its figures.
func full(wanted, left int64, limit string) error {
	return fmt.Errorf("%w: %s wanted, %s left: %s", ErrFull, amount(wanted), amount(left), limit)
}

// bounds returns the limits that apply to an allocation of n bytes.
func (h host) bounds(n int64) []bound {
	bs := h.cgroups(n)
	info := h.table("proc/meminfo")
	if left, ok := info["MemAvailable:"]; ok {
		bs = append(bs, bound{"the host's memory", info["MemTotal:"] << 10, left << 10})
	}
	return bs
}

// hierarchy is one of control groups, as mounted here.
type hierarchy struct {
	kind        string // its file system: "cgroup" for version 1, "cgroup2"
	root, mount string // root of the hierarchy is what is at mount
}

// files are the names of what a control group says about memory.
type files struct {
	max, usage, cache string
}

var versions = map[string]files{
	"cgroup2": {"memory.max", "memory.current", ""},
	"cgroup":  {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"},
}

// cgroups are the limits of the control groups that this process is in, and of those around them.
func (h host) cgroups(n int64) (bs []bound) {
	if len(h.mounts) == 0 {
		return nil
	}
	mine := h.membership()
	for _, m := range h.mounts {
		group, ok := mine[m.kind]
		if !ok {
			continue
		}
		rel, below := strings.CutPrefix(group, strings.TrimSuffix(m.root, "/"))
		if !below || strings.HasPrefix(group, "/..") { // seen from another namespace: what is mounted is what there is
			rel = ""
		}
		for dir := path.Join(m.mount, rel); ; dir = path.Dir(dir) {
			if b, ok := h.cgroup(dir, versions[m.kind], n); ok {
				bs = append(bs, b)
			}
			if len(dir) <= len(m.mount) {
				break
			}
		}
	}
	return bs
}

// membership is the group of this process in the hierarchy of version 2 and in that of version 1
// for memory.
func (h host) membership() map[string]string {
	groups := map[string]string{}
	for line := range h.lines("proc/self/cgroup") {
		f := strings.SplitN(line, ":", 3)
		switch {
		case len(f) < 3:
		case f[0] == "0" && f[1] == "":
			groups["cgroup2"] = f[2]
		case has(f[1], "memory"):
			groups["cgroup"] = f[2]
		}
	}
	return groups
}

// hierarchies are those that memory is limited in.
func (h host) hierarchies() (ms []hierarchy) {
	for line := range h.lines("proc/self/mountinfo") {
		before, after, ok := strings.Cut(line, " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(kind) < 3 {
			continue
		}
		if kind[0] == "cgroup2" || kind[0] == "cgroup" && has(kind[2], "memory") {
			ms = append(ms, hierarchy{kind[0], f[3], strings.TrimPrefix(f[4], "/")})
		}
	}
	return ms
}

func has(list, name string) bool { return slices.Contains(strings.Split(list, ","), name) }

// cgroup returns the limit of the group in dir, if it has one. Cached file pages do not count,
// because the kernel reclaims them first; to read how many there are takes time, and is done only
// if n bytes do not fit beside them.
func (h host) cgroup(dir string, f files, n int64) (bound, bool) {
	most, ok := h.number(path.Join(dir, f.max))
	if !ok || most > math.MaxInt64/2 { // "max", or what version 1 has for it
		return bound{}, false
	}
	usage, ok := h.number(path.Join(dir, f.usage))
	if !ok {
		return bound{}, false
	}
	b := bound{"the limit of control group /" + dir, most, most - usage}
	if n > b.left-b.margin() {
		stat := h.table(path.Join(dir, "memory.stat"))
		b.left = most - max(usage-stat[f.cache+"inactive_file"]-stat[f.cache+"active_file"], 0)
	}
	return b, true
}

func (h host) number(name string) (int64, bool) {
	b, err := fs.ReadFile(h.root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	return n, err == nil
}

// table is a file of lines with a name and a number.
func (h host) table(name string) map[string]int64 {
	t := map[string]int64{}
	for line := range h.lines(name) {
		if f := strings.Fields(line); len(f) > 1 {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				t[f[0]] = n
			}
		}
	}
	return t
}

func (h host) lines(name string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		b, err := fs.ReadFile(h.root, name)
		if err != nil {
			return
		}
		for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan() && yield(s.Text()); {
		}
	}
}

// amount is n bytes for people.
func amount(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
