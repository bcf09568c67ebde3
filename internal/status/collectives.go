package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/flightrecorder"
	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/store"
)

// Recording is what a rank of PyTorch has recorded of its collective operations.
type Recording struct {
	Dump   *flightrecorder.Dump // nil: there is none
	Err    error                // why there is none
	At     time.Time            // when it was made
	Live   bool                 // of a rank that runs: a call of less than a second is not shown
	Source string               // the rank's name if no process is known: a file, or its debug server
	server string               // address of the debug server that was asked
}

// shortCall is how long a call of a rank that runs takes at least to be shown: in a job without a
// fault, ranks are in calls all the time.
const shortCall = time.Second

// collectives are the calls that ranks have recorded of one process group and backend, which counts
// its calls by itself.
type collectives struct {
	world bool
	ranks map[int]*progress
}

// progress is how far a rank is in the calls of a process group.
type progress struct {
	of      *Recording
	last    *flightrecorder.Call            // its last call
	pending *flightrecorder.Call            // its first call that has not completed; nil: it is in none
	calls   map[uint64]*flightrecorder.Call // pending, and those before, by number
	at      position                        // of pending, or else of the call after last
}

// position is the place of a call in the order of calls. A process group that is made again has the
// same name, and its sequence numbers start again.
type position struct{ instance, seq uint64 }

func (p position) compare(o position) int {
	return cmp.Or(cmp.Compare(p.instance, o.instance), cmp.Compare(p.seq, o.seq))
}

// collectivesOf sorts the calls of all ranks by process group and backend. dropped is whether a rank
// has dropped calls.
func collectivesOf(recordings map[int]*Recording, dropped bool) map[string]*collectives {
	all := map[string]*collectives{}
	for rank, r := range recordings {
		if r.Dump == nil {
			continue
		}
		for i := range r.Dump.Calls {
			c := &r.Dump.Calls[i]
			if c.P2P {
				continue
			}
			id := c.Group + "\x00" + c.Backend
			if all[id] == nil {
				all[id] = &collectives{ranks: map[int]*progress{}}
			}
			g := all[id]
			g.world = g.world || c.World()
			if g.ranks[rank] == nil {
				g.ranks[rank] = &progress{of: r}
			}
			g.ranks[rank].add(c, dropped)
		}
	}
	return all
}

// add adds the next call of the rank. If a rank has dropped calls, it is unknown how often the group
// was made.
func (p *progress) add(c *flightrecorder.Call, dropped bool) {
	if p.last == nil || c.Seq <= p.last.Seq {
		p.pending, p.calls = nil, map[uint64]*flightrecorder.Call{}
		if p.last != nil && !dropped {
			p.at.instance++
		}
	}
	p.last = c
	if p.pending != nil {
		return
	}
	p.calls[c.Seq], p.at.seq = c, c.Seq+1
	if !c.Done {
		p.pending, p.at.seq = c, c.Seq
	}
}

// collectiveText is a call with its backend, as PyTorch names it.
func collectiveText(c *flightrecorder.Call) string { return c.Backend + ":" + c.String() }

// sameOnAllRanks are the operations whose inputs have the same dtypes and shapes on all ranks.
var sameOnAllRanks = map[string]bool{"all_reduce": true, "broadcast": true, "reduce": true, "_all_gather_base": true, "_reduce_scatter_base": true}

// kindOf returns what all ranks must agree on in a call.
func kindOf(c *flightrecorder.Call) string {
	if sameOnAllRanks[c.Name] {
		return c.String()
	}
	return c.Name
}

// addRecordings adds what ranks have recorded, as operations of their process groups.
func (t *torchJobs) addRecordings(recordings map[int]*Recording) {
	world := t.worldOf(recordings)
	world.recordings = recordings
	dropped := false
	for rank, r := range recordings {
		dropped = dropped || r.Dump != nil && r.Dump.Dropped
		if world.ranks[rank] == nil && r.Dump != nil { // otherwise nothing is known of its process
			world.ranks[rank] = &tcpwire.Process{ID: r.Source, Label: r.Source, Rank: rank}
			world.doing[rank] = "in no collective"
		}
		if p := world.ranks[rank]; p != nil {
			t.servers[p] = r.server
		}
	}
	for id, c := range inOrder(collectivesOf(recordings, dropped)) {
		g := world
		if !c.world {
			name, _, _ := strings.Cut(id, "\x00")
			// its ranks have their own numbers, which a recording does not have
			g = t.group(fmt.Sprintf("%s/%s, by rank of the job", world.name, name))
			for rank := range c.ranks {
				g.ranks[rank] = world.ranks[rank]
			}
		}
		c.addTo(g)
	}
}

// worldOf returns the group of all ranks of the job: the newest one that its ranks have made.
func (t *torchJobs) worldOf(recordings map[int]*Recording) *torchGroup {
	name, size := "default_pg", 0
	for rank := range recordings {
		size = max(size, rank+1)
	}
	for i := range t.processes {
		p := &t.processes[i]
		size = max(size, p.Size)
		if !p.Ended() {
			name = cmp.Or(newest(p), name)
		}
	}
	g := t.group(name)
	g.world, g.size = len(t.processes) > 0, max(g.size, size)
	for i := range t.processes {
		if p := &t.processes[i]; p.Rank >= 0 && p.Size == size {
			g.take(p.Rank, p)
		}
	}
	return g
}

// addTo adds the calls that have not completed to g: the ranks that are in them, and those that have
// not called them, or have called another operation under the same number.
func (c *collectives) addTo(g *torchGroup) {
	in := map[position][]*progress{}
	for rank, p := range c.ranks {
		if p.pending != nil {
			in[p.at] = append(in[p.at], p)
		} else {
			g.doing[rank] = fmt.Sprintf("in no collective; its last was %s, called%s", collectiveText(p.last), words(" %s ago", max(p.of.At.Sub(p.last.Created), 0)))
		}
	}
	for _, at := range slices.SortedFunc(maps.Keys(in), position.compare) {
		var age time.Duration
		live := false
		for _, p := range in[at] {
			age = max(age, p.of.At.Sub(p.pending.Created))
			live = live || p.of.Live
		}
		if !live || age >= shortCall {
			c.addCall(g, at, age)
		}
	}
}

// addCall adds one call, which some ranks are in.
func (c *collectives) addCall(g *torchGroup, at position, age time.Duration) {
	missing, kinds := c.missing(g, at), c.kinds(at)
	if len(kinds) > 1 {
		var parts []string
		for _, k := range kinds[:min(len(kinds), someRanks)] {
			parts = append(parts, RankList(k.ranks)+" in "+collectiveText(k.call))
		}
		g.note("ranks disagree: %s", strings.Join(parts, ", "))
		if len(kinds[0].ranks) > len(kinds[1].ranks) { // the others differ from most
			for _, k := range kinds[1:] {
				missing = append(missing, k.ranks...)
				for _, rank := range k.ranks {
					g.doing[rank] = fmt.Sprintf("in %s for %s, while most are in %s", collectiveText(k.call), Short(age), collectiveText(kinds[0].call))
				}
			}
			kinds = kinds[:1]
		}
	}
	slices.Sort(missing)
	for _, k := range kinds {
		r := store.RecordStatus{Verb: k.call.Backend + ":" + k.call.Name, Seq: at.seq, Root: -1, Age: age}
		for _, rank := range k.ranks {
			if c.ranks[rank].at == at {
				r.Arrived.Add(rank)
			}
		}
		for _, rank := range missing {
			r.Missing.Add(rank)
		}
		if r.Arrived.Count > 0 {
			g.recorded = append(g.recorded, r)
		}
	}
}

// missing returns the ranks of g that have not called what others are in.
func (c *collectives) missing(g *torchGroup, at position) (missing []int) {
	for rank := range g.knownSize() {
		p, process, recording := c.ranks[rank], g.ranks[rank], g.recordings[rank]
		is := false
		switch {
		case p != nil:
			is = p.at.compare(at) < 0 || p.at == at && p.pending == nil
		case !c.world: // it may not be a rank of g
		case recording != nil && recording.Dump != nil: // it has called nothing
			is, g.doing[rank] = true, "in no collective"
		default:
			is = process != nil && halted(process)
		}
		if is {
			missing = append(missing, rank)
		}
	}
	return missing
}

// kind is the ranks that have called the same operation at a position.
type kind struct {
	call  *flightrecorder.Call
	ranks []int
}

// kinds returns the operations that ranks have called at a position, that of most ranks first. A rank
// that has completed the call counts, too: with other shapes, some ranks may complete it.
func (c *collectives) kinds(at position) (kinds []*kind) {
	by := map[string]*kind{}
	for rank, p := range inOrder(c.ranks) {
		call := p.calls[at.seq]
		if call == nil || p.at.instance != at.instance {
			continue
		}
		k := by[kindOf(call)]
		if k == nil {
			k = new(kind)
			by[kindOf(call)] = k
			kinds = append(kinds, k)
		}
		k.call, k.ranks = call, append(k.ranks, rank)
	}
	slices.SortStableFunc(kinds, func(a, b *kind) int { return len(b.ranks) - len(a.ranks) })
	return kinds
}
