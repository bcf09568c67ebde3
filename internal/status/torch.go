package status

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"iter"
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
	mostAbsent    = 256     // ranks without a connection that are named
	mostNotes     = 16      // of a group
)

// torchJobs are PyTorch's processes, and their process groups.
type torchJobs struct {
	processes []tcpwire.Process
	groups    map[string]*torchGroup
	servers   map[*tcpwire.Process]string // addresses of debug servers
	noted     map[*tcpwire.Process]bool   // each process is noted in one group only
	unknown   int                         // connected processes of unknown ranks or jobs
}

// torchGroup is a process group, or the processes that have the same number of ranks in their
// environment.
type torchGroup struct {
	name  string
	size  int // 0: unknown
	ranks map[int]*tcpwire.Process
	waits map[string]*torchWait // by operation
	world bool                  // its ranks are those of the environment

	// what its ranks have recorded: see addRecordings
	recordings map[int]*Recording
	recorded   []store.RecordStatus
	doing      map[int]string // by rank

	// notes are what a viewer should know of it besides its waits: facts, which need not be the cause of
	// a wait.
	notes []string
}

// torchWait is an operation that ranks of a group wait in.
type torchWait struct {
	tcpwire.Awaited
	waited    time.Duration             // by the first
	processes map[*tcpwire.Process]bool // that wait
	calls     int                       // of these processes
	keys      map[int]bool              // ranks whose keys are waited for
}

// inOrder yields m in the order of its keys.
func inOrder[K cmp.Ordered, V any](m map[K]V) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// add adds the processes of an entry. Its remaining TTL says how old it is. All ranks and sizes are
// at most mostRanks from here on.
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
		if max(p.Rank, p.Size) > mostRanks {
			p.Rank, p.Size = -1, 0
		}
		p.Members = slices.DeleteFunc(p.Members, func(m tcpwire.GroupRank) bool { return m.Rank < 0 || m.Rank >= mostRanks })
		t.processes = append(t.processes, p)
	}
}

// group returns the process group of a name. If that is "default_pg", its ranks are those of the
// environment.
func (t *torchJobs) group(name string) *torchGroup {
	g := t.groups[name]
	if g == nil {
		g = &torchGroup{name: name, world: isWorld(name), ranks: map[int]*tcpwire.Process{}, waits: map[string]*torchWait{}, doing: map[int]string{}}
		t.groups[name] = g
	}
	return g
}

func isWorld(name string) bool { return name == "default_pg" || strings.HasSuffix(name, "/default_pg") }

// groupOf returns the process group of a name, of which p is a rank. Of the group of all ranks p has
// the size in its environment.
func (t *torchJobs) groupOf(name string, p *tcpwire.Process) *torchGroup {
	g := t.group(name)
	if g.world {
		g.size = max(g.size, p.Size)
	}
	return g
}

// newest returns the name of the last group of all ranks that p has joined, or "".
func newest(p *tcpwire.Process) (name string) {
	for _, m := range p.Members {
		if isWorld(m.Group) {
			name = m.Group
		}
	}
	return name
}

// halted reports whether p does nothing: it is stopped, or its connections have ended.
func halted(p *tcpwire.Process) bool { return p.State == tcpwire.Stopped || p.Ended() }

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
			t.groupOf(m.Group, p).take(m.Rank, p)
		}
		for _, w := range p.Waits {
			if a, ok := tcpwire.Await(w.Key); ok && !p.Ended() {
				t.groupOf(a.Group, p).wait(a, p, w.For)
			}
		}
	}
	t.assignByEnvironment()
}

// assignByEnvironment finds the ranks of processes that have not set a key in the group of all ranks
// of their job, by their environment. If several connected processes have the same environment, they
// are of several jobs, and which of them belongs to which job is known only while they wait in it.
func (t *torchJobs) assignByEnvironment() {
	type place struct{ rank, size int }
	same := map[place][]*tcpwire.Process{} // connected ones, or else disconnected ones
	several := map[int]bool{}              // sizes of several jobs
	for i := range t.processes {
		p := &t.processes[i]
		at := place{p.Rank, p.Size}
		switch others := same[at]; {
		case p.Rank < 0:
			if len(p.Members) == 0 && !p.Ended() {
				t.unknown++
			}
		case len(others) > 0 && p.Ended():
		case len(others) > 0 && others[0].Ended():
			same[at] = []*tcpwire.Process{p}
		default:
			same[at] = append(others, p)
			several[at.size] = several[at.size] || len(others) > 0
		}
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
				t.unknown++
			default:
				g := t.group(fmt.Sprintf("PyTorch job of %d ranks", at.size))
				g.size, g.world = at.size, true
				g.take(at.rank, p)
			}
		}
	}
}

// isWaitedInBy reports whether p waits in an operation of g.
func (g *torchGroup) isWaitedInBy(p *tcpwire.Process) bool {
	for _, w := range g.waits {
		if w.processes[p] {
			return true
		}
	}
	return false
}

// wait adds a wait of p.
func (g *torchGroup) wait(a tcpwire.Awaited, p *tcpwire.Process, waited time.Duration) {
	w := g.waits[a.What]
	if w == nil {
		w = &torchWait{Awaited: a, processes: map[*tcpwire.Process]bool{}, keys: map[int]bool{}}
		g.waits[a.What] = w
	}
	w.waited = max(w.waited, waited)
	w.processes[p] = true
	w.calls++
	if a.Rank >= 0 {
		w.keys[a.Rank] = true
	}
}

// knownSize returns the number of ranks, as far as it is known.
func (g *torchGroup) knownSize() int {
	size := g.size
	for rank := range g.ranks {
		size = max(size, rank+1)
	}
	for _, w := range g.waits {
		for rank := range w.keys {
			size = max(size, rank+1)
		}
	}
	return size
}

// status returns g as a group.
func (t *torchJobs) status(ctx context.Context, s *store.Store, g *torchGroup) store.GroupStatus {
	v := store.GroupStatus{Name: g.name, Protocol: "torch", Age: -1, Ended: -1, Size: g.knownSize(), AtLeast: g.size == 0}
	for _, w := range inOrder(g.waits) {
		v.Records = append(v.Records, g.record(ctx, s, w, v.Size))
	}
	v.Records = append(v.Records, g.recorded...)
	v.Open = len(v.Records)
	for rank, p := range inOrder(g.ranks) {
		r := store.RankStatus{Rank: rank, Label: p.Label, Session: maphash.String(seed, p.ID), Ago: -1, LastSeen: -1, Doing: g.doingText(rank, p), Server: t.servers[p]}
		if p.Ended() {
			r.Gone = wire.CodeLeft
		} else {
			v.Present++
		}
		v.Ranks = append(v.Ranks, r)
	}
	t.addNotes(g, v.Size)
	v.Notes = append(g.notes, t.guesses(g)...)
	return v
}

// seed is that of the numbers that distinguish processes: they have no session.
var seed = maphash.MakeSeed()

// record returns an operation with the ranks that wait in it and those that they wait for. size is
// the number of ranks, as far as it is known.
func (g *torchGroup) record(ctx context.Context, s *store.Store, w *torchWait, size int) store.RecordStatus {
	r := store.RecordStatus{Verb: w.What, Root: -1, Age: w.waited}
	for rank := range size {
		if w.processes[g.ranks[rank]] {
			r.Arrived.Add(rank)
		}
	}
	waiting := r.Arrived.Count
	missing := func(rank int) bool { return w.keys[rank] }
	switch {
	case w.Arrivals != "":
		arrived, all := arrivals(ctx, s, w.Arrivals)
		r.Arrived.Count = max(waiting, len(arrived))
		// that others wait for a key is not enough: it may have been set since
		missing = func(rank int) bool { return all && !arrived[rank] && (w.keys[rank] || g.size > 0) }
	case w.Counter != "":
		value, _ := s.Get(ctx, w.Counter) // nil: it is unknown how many have arrived
		n, err := strconv.Atoi(string(value))
		r.Arrived.Count = max(waiting, n)
		// of those that have arrived, one that does not wait is not distinguished from a missing one
		missing = func(rank int) bool { return err == nil && n == waiting && g.size > 0 && !w.processes[g.ranks[rank]] }
	}
	for rank := range size {
		if missing(rank) {
			r.Missing.Add(rank)
		}
	}
	r.Arrived.Count = max(r.Arrived.Count, w.calls)
	r.Missing.Count = max(r.Missing.Count, g.size-r.Arrived.Count)
	return r
}

// arrivals returns the ranks that have set their keys below prefix; all is false if there are more
// keys than that.
func arrivals(ctx context.Context, s *store.Store, prefix string) (ranks map[int]bool, all bool) {
	ranks = map[int]bool{}
	for key, err := range s.Keys(ctx, prefix) {
		if err != nil || len(ranks) == mostArrivals {
			return ranks, false
		}
		if n, err := strconv.Atoi(strings.TrimPrefix(key, prefix)); err == nil {
			ranks[n] = true
		}
	}
	return ranks, true
}

// doingText describes what a rank does that waits in no operation.
func (g *torchGroup) doingText(rank int, p *tcpwire.Process) string {
	doing := g.doing[rank]
	switch {
	case doing == "" || halted(p):
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

// note adds a note, unless there are mostNotes.
func (g *torchGroup) note(format string, args ...any) {
	if len(g.notes) < mostNotes {
		g.notes = append(g.notes, fmt.Sprintf(format, args...))
	}
}

// noteProcess adds a note about a process, unless another group has one.
func (t *torchJobs) noteProcess(g *torchGroup, rank int, text string) {
	if p := g.ranks[rank]; !t.noted[p] && len(g.notes) < mostNotes {
		t.noted[p] = true
		g.note("%s: %s", processText(rank, p), text)
	}
}

// addNotes adds notes about the processes of g.
func (t *torchJobs) addNotes(g *torchGroup, size int) {
	for rank, r := range inOrder(g.recordings) {
		if p := g.ranks[rank]; r.Err != nil && (p == nil || !halted(p)) {
			g.note("rank %d: nothing recorded: %v", rank, r.Err)
		}
	}
	var absent, running []int
	for rank := range size {
		p := g.ranks[rank]
		switch {
		case p == nil:
			absent = append(absent, rank)
		case halted(p):
			t.noteProcess(g, rank, doingText(p))
		}
		if p != nil && !p.Ended() {
			running = append(running, rank)
		}
	}
	sized := g.world && g.size > 0
	if sized && len(absent) == 0 && len(running) < size-len(running) && len(g.waits)+len(g.recorded) == 0 {
		for _, rank := range running {
			t.noteProcess(g, rank, "in teardown, or in work that the ranks that have ended do not have: "+g.doingText(rank, g.ranks[rank]))
		}
	}
	if sized && len(absent) > 0 && t.unknown == 0 {
		g.notes = append(g.notes, "no connection from "+RankList(absent[:min(len(absent), mostAbsent)]))
	}
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
			by[key] = append(by[key], processText(p.Rank, p)+words(" for %s", w.For))
		}
	}
	for _, k := range keys {
		if key, is := queues[k.Key]; is && k.Calls <= grouped[key]+len(by[key]) || grouped[k.Key] >= k.Calls {
			continue
		}
		if names := by[k.Key]; len(names) > 0 {
			k.By = names[:min(len(names), someRanks)]
		}
		rest = append(rest, k)
	}
	return rest
}
