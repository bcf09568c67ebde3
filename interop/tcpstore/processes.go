package tcpstore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/store"
)

// A server or a relay publishes the processes at the other ends of its connections as an entry of
// the store: who they are, and what they wait for. So any client can show all processes of a job,
// whatever servers and relays they use: status.Fetch reads the entries.

const (
	publishEvery = time.Second
	publishAnew  = tcpwire.ProcessesTTL / 3 // even if nothing has changed
	publishTime  = 5 * time.Second          // for one entry
	deleteTime   = time.Second              // for the entries, at the end
	// longWait is how long a wait takes before it is published: a shorter one is no hang, and would
	// change the entry all the time.
	longWait = time.Second
	// resumedWait is how soon a client that has given up a wait starts the same one again, if it is
	// one wait to its user: the barrier of an initialization waits for 10 seconds at a time.
	resumedWait = time.Second

	mostProcesses = 4096 // in the entry
	mostMembers   = 32   // process groups of a process
	mostWaits     = 8    // of a process
	mostText      = 1024 // bytes of a key or of a group's name
)

// processes publishes the client processes of a Protocol while it has connections.
type processes struct {
	mu    sync.Mutex                    // protects the fields below
	peers map[*peer][]tcpwire.GroupRank // the connections, with the ranks that they have shown
	run   *publication                  // nil: there are no connections
}

// publication is a goroutine that publishes, from the first connection to the end of the last one.
type publication struct {
	store *store.Store
	whole *store.Store // see store.ProtocolConn
	part  string       // the prefix of store in whole
	id    string       // of the entries
	stop  context.CancelFunc
	ended chan struct{} // closed when the goroutine has ended

	// The fields below belong to the goroutine; wrote also to the connection that waits for its end.
	of    map[*peer]*process
	known map[string]*process // by ID
	last  []byte              // what was published, without durations
	at    time.Time           // when it was
	wrote bool
}

// process is a client process, with any number of connections. If it has shown its rank, it is kept
// after the last one has ended, while other processes of the job are connected.
type process struct {
	tcpwire.Process
	run   string // of its job
	pid   int    // 0: it is not known to run on this host
	start string // when it was started, to distinguish it from a later process with its number
	conns int
	since time.Time // of State
	usage usage
}

// keyWait is the most recent wait of a connection that the server could not answer at once. It is
// not modified.
type keyWait struct {
	key       string
	since     time.Time
	cancelled time.Time // zero: it still waits
}

// enter notes a connection.
func (s *processes) enter(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		ctx, stop := context.WithCancel(context.Background())
		s.peers = map[*peer][]tcpwire.GroupRank{}
		s.run = &publication{
			store: p.Store, whole: p.Whole, part: p.Prefix, id: rand.Text(), stop: stop, ended: make(chan struct{}),
			of: map[*peer]*process{}, known: map[string]*process{},
		}
		go s.publish(ctx, s.run)
	}
	s.peers[p] = nil
}

// leave notes the end of a connection. After the last one nothing more is published: the entry
// is deleted, or expires if ctx has ended.
func (s *processes) leave(ctx context.Context, p *peer) {
	s.mu.Lock()
	delete(s.peers, p)
	run := s.run
	last := len(s.peers) == 0
	if last {
		s.run = nil
	}
	s.mu.Unlock()
	if !last {
		return
	}
	run.stop()
	<-run.ended
	if run.wrote && ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(ctx, deleteTime)
		defer cancel()
		_, _ = run.store.Delete(ctx, tcpwire.ProcessesKey+run.id)
		if run.whole != nil {
			_, _ = run.whole.Delete(ctx, tcpwire.PrefixesKey+run.id)
		}
	}
}

// arrive notes that the client sets a key, which may show its rank in a process group.
func (s *processes) arrive(p *peer, key string) {
	group, rank, ok := tcpwire.Arrive(key)
	if !ok || len(group) > mostText {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	members := s.peers[p]
	is := func(m tcpwire.GroupRank) bool { return m.Group == group }
	if len(members) < mostMembers && !slices.ContainsFunc(members, is) {
		s.peers[p] = append(slices.Clip(members), tcpwire.GroupRank{Group: strings.Clone(group), Rank: rank})
	}
}

// publish publishes the processes until ctx ends.
func (s *processes) publish(ctx context.Context, run *publication) {
	defer close(run.ended)
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		peers := maps.Clone(s.peers)
		s.mu.Unlock()
		now := time.Now()
		run.update(peers, now)
		run.write(ctx, now)
	}
}

// update brings the processes up to date.
func (r *publication) update(peers map[*peer][]tcpwire.GroupRank, now time.Time) {
	var fresh []*peer
	for p := range peers {
		if r.of[p] == nil && p.pid.Load() != 0 {
			fresh = append(fresh, p)
		}
	}
	inodes := inodesOf(fresh)
	for _, p := range fresh {
		x := identify(p, inodes)
		p.process.Store(x)
		if old := r.known[x.ID]; old != nil {
			x = old
		}
		r.known[x.ID], r.of[p] = x, x
		x.conns++
	}
	for p, x := range r.of {
		if _, ok := peers[p]; !ok {
			delete(r.of, p)
			x.conns--
			continue
		}
		for _, m := range peers[p] {
			if len(x.Members) < mostMembers && !slices.Contains(x.Members, m) {
				x.Members = append(x.Members, m)
			}
		}
	}
	for _, x := range r.known {
		state := tcpwire.Disconnected
		if x.conns > 0 {
			state = x.usage.state(x.pid, now)
		} else if x.pid != 0 && startOf(x.pid) == x.start {
			state = tcpwire.Exiting
		}
		if state != x.State {
			x.State, x.since = state, now
		}
	}
	r.forget()
}

// place is a rank of a process group, or of a job by the environment of its processes.
type place struct {
	group string
	size  int // 0: of a group
	rank  int
}

// places returns the ranks that x has shown.
func (x *process) places() (all []place) {
	if x.Rank >= 0 {
		all = append(all, place{x.run, x.Size, x.Rank})
	}
	for _, m := range x.Members {
		all = append(all, place{m.Group, 0, m.Rank})
	}
	return all
}

// forget removes a process that has disconnected, if all others of its job have ended, or if another
// process has taken its rank.
func (r *publication) forget() {
	taken, jobs := map[place]bool{}, map[place]bool{}
	for _, x := range r.known {
		for _, at := range x.places() {
			if x.conns > 0 {
				taken[at] = true
			}
			if x.conns > 0 || x.State == tcpwire.Exiting {
				jobs[place{at.group, at.size, 0}] = true
			}
		}
	}
	for id, x := range r.known {
		keep := x.conns > 0
		for _, at := range x.places() {
			keep = keep || jobs[place{at.group, at.size, 0}] && !taken[at]
		}
		if !keep {
			delete(r.known, id)
		}
	}
}

// write publishes the processes, if that is due.
func (r *publication) write(ctx context.Context, now time.Time) {
	all := tcpwire.Processes{Processes: []tcpwire.Process{}}
	for _, id := range slices.Sorted(maps.Keys(r.known)) {
		if len(all.Processes) == mostProcesses {
			all.More = len(r.known) - mostProcesses
			break
		}
		x := r.known[id].Process
		x.For = now.Sub(r.known[id].since)
		all.Processes = append(all.Processes, x)
	}
	at := make(map[string]*tcpwire.Process, len(all.Processes))
	for i := range all.Processes {
		at[all.Processes[i].ID] = &all.Processes[i]
	}
	for p, x := range r.of {
		if w, to := p.awaited.Load(), at[x.ID]; to != nil && w != nil && w.cancelled.IsZero() && now.Sub(w.since) >= longWait {
			to.Waits = append(to.Waits, tcpwire.ProcessWait{Key: w.key, For: now.Sub(w.since)})
		}
	}
	same := tcpwire.Processes{More: all.More, Processes: slices.Clone(all.Processes)} // without durations
	for i := range all.Processes {
		x := &all.Processes[i]
		slices.SortFunc(x.Waits, func(a, b tcpwire.ProcessWait) int {
			return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.Key, b.Key))
		})
		x.Waits = x.Waits[:min(len(x.Waits), mostWaits)]
		y := &same.Processes[i]
		y.For, y.Waits = 0, slices.Clone(x.Waits)
		for j := range y.Waits {
			y.Waits[j].For = 0
		}
	}
	timeless, err := same.Encode()
	if err != nil || bytes.Equal(timeless, r.last) && now.Sub(r.at) < publishAnew {
		return
	}
	value, err := all.Encode()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	r.wrote = true // or so it may be
	// a store that cannot be reached, or refuses changes, has no entry: the next turn tries again
	o := &store.SetOptions{TTL: tcpwire.ProcessesTTL}
	err = r.store.Set(ctx, tcpwire.ProcessesKey+r.id, value, o)
	if err == nil && r.whole != nil {
		// a relay may have no right to it: then only clients that know the prefix find the processes
		_ = r.whole.Set(ctx, tcpwire.PrefixesKey+r.id, []byte(r.part), o)
	}
	if err == nil {
		r.last, r.at = timeless, now
	}
}

// identify returns the process of a connection.
func identify(p *peer, inodes map[ports]uint64) *process {
	pid := int(p.pid.Load())
	host, _, _ := net.SplitHostPort(p.Conn.RemoteAddr().String())
	// Two containers may have the same address and number. So each connection from another host is
	// a process to this one.
	x := &process{Process: tcpwire.Process{ID: fmt.Sprintf("%s/%d", p.Conn.RemoteAddr(), pid), Label: fmt.Sprintf("pid %d at %s", pid, host), Rank: -1}}
	if inode, ok := inodes[portsOf(p)]; ok && owns(pid, inode) {
		x.describe(pid)
	}
	return x
}

// ports are the ports of a connection on this host: of the client, and of the server.
type ports struct{ client, server int }

// portsOf returns the ports of a connection whose client is on this host, or none.
func portsOf(p *peer) (none ports) {
	client, ok := p.Conn.RemoteAddr().(*net.TCPAddr)
	server, ok2 := p.Conn.LocalAddr().(*net.TCPAddr)
	if !ok || !ok2 || !client.IP.IsLoopback() && !client.IP.Equal(server.IP) {
		return none
	}
	return ports{client.Port, server.Port}
}

// startWait notes that the client waits for key.
func (p *peer) startWait(key string) {
	now := time.Now()
	w := &keyWait{key: strings.ToValidUTF8(key[:min(len(key), mostText)], "?"), since: now}
	if old := p.awaited.Load(); old != nil && old.key == w.key && now.Sub(old.cancelled) < resumedWait {
		w.since = old.since
	}
	p.awaited.Store(w)
}

// nextWait notes that the wait of the client continues with another key.
func (p *peer) nextWait(key string) {
	if w := p.awaited.Load(); w != nil && w.key != key {
		p.awaited.Store(&keyWait{key: strings.ToValidUTF8(key[:min(len(key), mostText)], "?"), since: w.since})
	}
}

// endWait notes the end of the wait.
func (p *peer) endWait(answered bool) {
	w := p.awaited.Load()
	switch {
	case w == nil:
	case answered:
		p.awaited.Store(nil)
	default:
		p.awaited.Store(&keyWait{w.key, w.since, time.Now()})
	}
}
