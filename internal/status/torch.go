package status

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Limits on the work that the published entries can cause.
const (
	mostPrefixes  = 256
	mostProcesses = 1 << 14
	mostArrivals  = 1 << 12 // keys that are listed to find the ranks that have arrived
	mostAbsent    = 256
	mostNotes     = 16
	mostBy        = 16
)

// torchJobs are PyTorch's processes, and their process groups.
type torchJobs struct {
	processes []tcpwire.Process
	groups    map[string]*torchGroup
	servers   map[*tcpwire.Process]string // addresses of debug servers
	noted     map[*tcpwire.Process]bool   // each process is noted in one group only
}

// torchGroup is a process group, or the processes that have the same number of ranks in their
// environment.
type torchGroup struct {
	name   string
	size   int // 0: unknown
	ranks  map[int]*tcpwire.Process
	waits  map[string]*torchWait // by operation
	others int                   // connected processes of unknown ranks, which may belong to it
	world  bool                  // its ranks are those of the environment

	// what its ranks have recorded: see addRecordings
	recordings map[int]*Recording
	recorded   []store.RecordStatus
	doing      map[int]string // by rank
	disagree   []string
	guesses    []string
}

// torchWait is an operation that ranks of a group wait in.
type torchWait struct {
	tcpwire.Awaited
	waited time.Duration // by the first
	ranks  map[int]bool  // that wait
	calls  int           // that wait, those of unknown ranks too
	keys   map[int]bool  // ranks whose keys are waited for
}

// add adds the processes of an entry. Its remaining TTL says how old it is.
func (t *torchJobs) add(e *store.Entry) {
	var all tcpwire.Processes
	if all.Decode(e.Value) != nil {
		return
	}
	age := max(tcpwire.ProcessesTTL-e.TTL, 0)
	for _, p := range all.Processes[:min(len(all.Processes), mostProcesses-len(t.processes))] {
		p.For += age
		for i := range p.Waits {
			p.Waits[i].For += age
		}
		t.processes = append(t.processes, p)
	}
}

func (t *torchJobs) group(name string) *torchGroup {
	g := t.groups[name]
	if g == nil {
		g = &torchGroup{name: name, ranks: map[int]*tcpwire.Process{}, waits: map[string]*torchWait{}}
		t.groups[name] = g
	}
	return g
}

// take makes p the rank of g, unless another process that is connected has it.
func (g *torchGroup) take(rank int, p *tcpwire.Process) {
	if old := g.ranks[rank]; old == nil || old.Ended() {
		g.ranks[rank] = p
	}
}

// assign finds the process groups, their ranks and what those wait for.
func (t *torchJobs) assign() {
	for i := range t.processes {
		p := &t.processes[i]
		for _, m := range p.Members {
			g := t.group(m.Group)
			if g.take(m.Rank, p); isWorld(m.Group) {
				g.world, g.size = true, max(g.size, p.Size)
			}
		}
		for _, w := range p.Waits {
			if a, ok := tcpwire.Await(w.Key); ok {
				g := t.group(a.Group)
				if a.World {
					g.world, g.size = true, max(g.size, p.Size)
				}
			}
		}
	}
	unknown := t.assignByEnvironment()
	for _, g := range t.groups {
		g.others = unknown
	}
	for i := range t.processes {
		p := &t.processes[i]
		for _, w := range p.Waits {
			if a, ok := tcpwire.Await(w.Key); ok && !p.Ended() {
				t.group(a.Group).wait(a, p, w.For)
			}
		}
	}
}

// isWorld reports whether the ranks of a process group are those of the environment.
func isWorld(name string) bool { return name == "default_pg" || strings.HasSuffix(name, "/default_pg") }

// assignByEnvironment finds the ranks of processes that have not set a key in the group of all ranks
// of their job, by their environment. If several connected processes have the same environment, they
// are of several jobs, and which of them belongs to which job is known only while they wait in it.
// It returns how many connected processes belong to an unknown job, or have no known rank.
func (t *torchJobs) assignByEnvironment() (unknown int) {
	type place struct{ rank, size int }
	same := map[place][]*tcpwire.Process{} // connected ones, or else disconnected ones
	for i := range t.processes {
		p := &t.processes[i]
		at := place{p.Rank, p.Size}
		switch others := same[at]; {
		case p.Rank < 0:
			if len(p.Members) == 0 && !p.Ended() {
				unknown++
			}
		case len(others) > 0 && p.Ended():
		case len(others) > 0 && others[0].Ended():
			same[at] = []*tcpwire.Process{p}
		default:
			same[at] = append(others, p)
		}
	}
	several := map[int]bool{} // sizes of several jobs
	for at, processes := range same {
		several[at.size] = several[at.size] || len(processes) > 1
	}
	inWorld := map[*tcpwire.Process]bool{}
	for _, g := range t.groups {
		otherwise := false
		for rank, p := range g.ranks {
			inWorld[p] = inWorld[p] || g.world
			otherwise = otherwise || p.Rank >= 0 && p.Rank != rank
		}
		g.world = g.world && !otherwise // the program has set its ranks in another way
	}
	for at, processes := range same {
		for _, p := range processes {
			found := inWorld[p]
			for _, g := range t.groups {
				if g.world && g.size == at.size && (!several[at.size] || g.isWaitedInBy(p)) {
					found = true
					g.take(at.rank, p)
				}
			}
			switch {
			case found:
			case several[at.size]:
				unknown++
			default:
				g := t.group(fmt.Sprintf("PyTorch job of %d ranks", at.size))
				g.size, g.world = at.size, true
				g.take(at.rank, p)
			}
		}
	}
	return unknown
}

// isWaitedInBy reports whether p waits in an operation of g.
func (g *torchGroup) isWaitedInBy(p *tcpwire.Process) bool {
	return slices.ContainsFunc(p.Waits, func(w tcpwire.ProcessWait) bool {
		a, ok := tcpwire.Await(w.Key)
		return ok && a.Group == g.name
	})
}

// wait adds a wait of p.
func (g *torchGroup) wait(a tcpwire.Awaited, p *tcpwire.Process, waited time.Duration) {
	w := g.waits[a.What]
	if w == nil {
		w = &torchWait{Awaited: a, ranks: map[int]bool{}, keys: map[int]bool{}}
		g.waits[a.What] = w
	}
	w.waited = max(w.waited, waited)
	w.calls++
	for rank, is := range g.ranks {
		if is == p {
			w.ranks[rank] = true
		}
	}
	if a.Rank >= 0 {
		w.keys[a.Rank] = true
	}
}

// status returns g as a group.
func (t *torchJobs) status(ctx context.Context, s *store.Store, g *torchGroup) store.GroupStatus {
	v := store.GroupStatus{Name: g.name, Protocol: "torch", Age: -1, Ended: -1, Size: g.size, AtLeast: g.size == 0}
	for rank := range g.ranks {
		v.Size = max(v.Size, rank+1)
	}
	for _, w := range g.waits {
		for rank := range w.keys {
			v.Size = max(v.Size, rank+1)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(g.waits)) {
		v.Records = append(v.Records, g.record(ctx, s, g.waits[what], v.Size))
	}
	v.Records = append(v.Records, g.recorded...)
	v.Open = len(v.Records)
	for _, rank := range slices.Sorted(maps.Keys(g.ranks)) {
		p := g.ranks[rank]
		r := store.RankStatus{Rank: rank, Label: p.Label, Session: sessionOf(p), Ago: -1, LastSeen: -1, Doing: g.doingText(rank, p), Server: t.servers[p]}
		if p.Ended() {
			r.Gone = wire.CodeLeft
		} else {
			v.Present++
		}
		v.Ranks = append(v.Ranks, r)
	}
	v.Notes = append(g.notes(v.Size, t.noted), g.guesses...)
	return v
}

// sessionOf returns a number that distinguishes processes: they have no session.
func sessionOf(p *tcpwire.Process) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(p.ID))
	return h.Sum64()
}

// record returns an operation with the ranks that wait in it and those that they wait for. size is
// the number of ranks, as far as it is known.
func (g *torchGroup) record(ctx context.Context, s *store.Store, w *torchWait, size int) store.RecordStatus {
	r := store.RecordStatus{Verb: w.What, Root: -1, Age: w.waited}
	for _, rank := range slices.Sorted(maps.Keys(w.ranks)) {
		r.Arrived.Add(rank)
	}
	r.Arrived.Count = max(r.Arrived.Count, w.calls)
	missing := w.keys
	switch {
	case w.Arrivals != "":
		arrived, all := arrivals(ctx, s, w.Arrivals)
		r.Arrived.Count = max(r.Arrived.Count, len(arrived))
		missing = map[int]bool{}
		for rank := range size {
			// that others wait for a key is not enough: it may have been set since
			if !arrived[rank] && all && (w.keys[rank] || g.size > 0) {
				missing[rank] = true
			}
		}
	case w.Counter != "":
		missing = map[int]bool{}
		value, err := s.Get(ctx, w.Counter)
		n, err2 := strconv.Atoi(string(value))
		if cmp.Or(err, err2) != nil {
			break
		}
		r.Arrived.Count = max(r.Arrived.Count, n)
		// of those that have arrived, one that does not wait is not distinguished from a missing one
		for rank := range size {
			if n == len(w.ranks) && g.size > 0 && !w.ranks[rank] {
				missing[rank] = true
			}
		}
	}
	for _, rank := range slices.Sorted(maps.Keys(missing)) {
		r.Missing.Add(rank)
	}
	r.Missing.Count = max(r.Missing.Count, g.size-r.Arrived.Count)
	return r
}

// arrivals returns the ranks that have set their keys below prefix; all is false if there are more
// keys than that.
func arrivals(ctx context.Context, s *store.Store, prefix string) (ranks map[int]bool, all bool) {
	ranks = map[int]bool{}
	for after := ""; ; {
		page, more, err := s.Names(ctx, prefix, after, mostArrivals)
		if err != nil {
			return ranks, false
		}
		for _, e := range page {
			if n, err := strconv.Atoi(strings.TrimPrefix(e.Key, prefix)); err == nil {
				ranks[n] = true
			}
		}
		if !more || len(page) == 0 {
			return ranks, !more
		}
		if after = page[len(page)-1].Key; len(ranks) >= mostArrivals {
			return ranks, false
		}
	}
}

// doingText describes what a rank does that waits in no operation.
func (g *torchGroup) doingText(rank int, p *tcpwire.Process) string {
	doing := g.doing[rank]
	switch {
	case doing == "" || p.State == tcpwire.Stopped || p.Ended():
		return doingText(p)
	case p.State == "":
		return doing
	}
	return doing + "; " + doingText(p)
}

// doingText describes what a process does that does not wait in the store.
func doingText(p *tcpwire.Process) string {
	switch p.State {
	case tcpwire.Stopped:
		return "stopped by a signal or a debugger" + words(" for %s", p.For)
	case tcpwire.Exiting:
		return "in teardown" + words(" for %s", p.For) + ": it has closed its connections to the store, and its process still runs"
	case tcpwire.Disconnected:
		return words("disconnected %s ago: it has exited or failed", p.For)
	case tcpwire.Computing:
		return "connected, waits for nothing in the store, and computes" + words(" for %s", p.For)
	case tcpwire.Sleeping:
		return "connected, waits for nothing in the store, and uses no processor" + words(" for %s", p.For)
	}
	return "connected, waits for nothing in the store"
}

// notes returns what a viewer should know of g besides its waits: facts, which need not be the cause
// of a wait.
func (g *torchGroup) notes(size int, noted map[*tcpwire.Process]bool) (notes []string) {
	notes = append(notes, g.disagree[:min(len(g.disagree), mostNotes)]...)
	for _, rank := range slices.Sorted(maps.Keys(g.recordings)) {
		if r := g.recordings[rank]; r.Err != nil && len(notes) < mostNotes && (g.ranks[rank] == nil || g.ranks[rank].State != tcpwire.Stopped && !g.ranks[rank].Ended()) {
			notes = append(notes, fmt.Sprintf("rank %d: nothing recorded: %v", rank, r.Err))
		}
	}
	var absent []int
	for rank := range min(size, mostRanks) {
		p := g.ranks[rank]
		switch {
		case p == nil && g.world && g.size > 0:
			absent = append(absent, rank)
		case p != nil && (p.State == tcpwire.Stopped || p.Ended()) && len(notes) < mostNotes && !noted[p]:
			noted[p] = true
			notes = append(notes, fmt.Sprintf("rank %d (%s): %s", rank, p.Label, doingText(p)))
		}
	}
	for _, rank := range g.remaining(size) {
		if p := g.ranks[rank]; len(notes) < mostNotes && !noted[p] {
			notes = append(notes, fmt.Sprintf("rank %d (%s): in teardown, or in work that the ranks that have ended do not have: %s", rank, p.Label, g.doingText(rank, p)))
		}
	}
	if len(absent) > 0 && g.others == 0 {
		notes = append(notes, "no connection from "+RankList(absent[:min(len(absent), mostAbsent)]))
	}
	return notes
}

// remaining returns the ranks that run on without a wait while most of the others have ended.
func (g *torchGroup) remaining(size int) (ranks []int) {
	if !g.world || g.size == 0 || len(g.waits)+len(g.recorded) > 0 {
		return nil
	}
	ended := 0
	for rank := range min(size, mostRanks) {
		switch p := g.ranks[rank]; {
		case p == nil:
			return nil
		case p.Ended():
			ended++
		default:
			ranks = append(ranks, rank)
		}
	}
	if len(ranks) >= ended {
		return nil
	}
	return ranks
}

// explainKeys returns the keys that calls wait for, without those of PyTorch's processes that are in
// groups, and with the processes that wait for the others. prefix is that of the processes' keys.
func (t *torchJobs) explainKeys(prefix string, keys []store.KeyStatus) (rest []store.KeyStatus) {
	grouped, by := map[string]int{}, map[string][]string{}
	queues := map[string]string{} // a PyTorch process that waits for a key also waits for a queue of that name
	for i := range t.processes {
		p := &t.processes[i]
		for _, w := range p.Waits {
			key := prefix + w.Key
			queues[store.QueueKey(key)] = key
			if _, ok := tcpwire.Await(w.Key); ok {
				grouped[key]++
				continue
			}
			label := p.Label
			if p.Rank >= 0 {
				label = fmt.Sprintf("rank %d (%s)", p.Rank, label)
			}
			by[key] = append(by[key], label+words(" for %s", w.For))
		}
	}
	for _, k := range keys {
		if key, is := queues[k.Key]; is && k.Calls <= grouped[key]+len(by[key]) || grouped[k.Key] >= k.Calls {
			continue
		}
		if names := by[k.Key]; len(names) > 0 {
			k.By = names[:min(len(names), mostBy)]
		}
		rest = append(rest, k)
	}
	return rest
}
