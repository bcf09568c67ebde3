package status

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/muster-pg/muster/store"
)

// View is a status as people read it: what waits, and for whom; then everything else. Times are in seconds; those below 0 are not
// known, nor are such numbers of a Server: not every store can tell.
type View struct {
	Address string `json:"address,omitempty"` // of the store; as Options has it
	Version string `json:"version,omitempty"` // of the program that shows it

	Server *Server `json:"server,omitempty"` // none below a prefix
	// Replication is of a replicated store, and not below a prefix. A standby has nothing else.
	Replication *Replication `json:"replication,omitempty"`

	Blame    []Blame   `json:"blame"`   // who keeps others waiting and waits in nothing, the longest first
	Waiting  []Wait    `json:"waiting"` // the longest first
	Groups   []Group   `json:"groups"`
	Failures []Failure `json:"failures"`       // the latest first
	More     int       `json:"more,omitempty"` // groups that are not among Groups
	// MoreWaiting and MoreFailures are those that are not in the lists.
	MoreWaiting  int `json:"more_waiting,omitempty"`
	MoreFailures int `json:"more_failures,omitempty"`
}

// Server is the store as a whole. Rates are over the time since the view before.
type Server struct {
	Up      float64 `json:"up_seconds"`
	Durable bool    `json:"durable"`
	// DiskStalled is for how long a write of the log has not been on the disk; 0 if that is less than a tenth of a second. Meanwhile no
	// change is acknowledged.
	DiskStalled float64 `json:"disk_stalled_seconds,omitempty"`
	Sessions    int64   `json:"sessions"`
	Calls       int64   `json:"calls_waiting"`
	Groups      int64   `json:"groups"`
	Keys        int64   `json:"keys"`
	Bytes       int64   `json:"bytes"`
	Rates       *Rates  `json:"rates,omitempty"` // none in the first view
}

// Replication is the processes that keep a replicated store, of which one at a time leads.
type Replication struct {
	Leads    bool      `json:"leads"`  // the process that answers is the leader
	Leader   string    `json:"leader"` // where the leader serves, host:port; "": there is none
	Term     uint64    `json:"term"`   // 1 for the first leader of the store; each takeover adds 1
	Led      float64   `json:"led_seconds"`
	Standbys []Standby `json:"standbys"` // of a standby: itself
}

// Standby is a process that follows the log of the leader.
type Standby struct {
	Addr string  `json:"address"`
	Lag  uint64  `json:"lag_entries"` // of the log that were committed, and that it had not applied
	Seen float64 `json:"seen_seconds"`
}

// Rates are what the store does, a second.
type Rates struct {
	Ops float64            `json:"ops_per_second"`
	In  float64            `json:"bytes_in_per_second"`
	Out float64            `json:"bytes_out_per_second"`
	P50 float64            `json:"p50_seconds"` // of answers that need nobody else, in the store; 0: there were none
	P99 float64            `json:"p99_seconds"`
	By  map[string]float64 `json:"ops"` // by operation
}

// Wait is something that waits: a verb that is not decided, a send, a receive, or calls for a key.
type Wait struct {
	Group      string  `json:"group,omitempty"`
	Run        string  `json:"run,omitempty"`
	Generation uint64  `json:"generation,omitempty"` // 0: it comes together, or is no group's
	Kind       string  `json:"kind"`                 // "verb", "message" or "key"
	What       string  `json:"what"`
	For        float64 `json:"for_seconds"`
	Left       float64 `json:"left_seconds,omitempty"` // until its deadline, if it has one
	Size       int     `json:"size,omitempty"`
	Came       int     `json:"came"`
	Missing    int     `json:"missing"`
	Ranks      []Who   `json:"ranks"` // who is missing: the first ones
	Here       []Span  `json:"here"`  // who has come
	Gone       []Span  `json:"gone,omitempty"`
}

// Span is ranks from the first to the second.
type Span [2]int

// Who is a rank that others wait for.
type Who struct {
	Rank  int     `json:"rank"`
	Label string  `json:"label,omitempty"` // "": it has not come
	Doing string  `json:"doing,omitempty"`
	Waits bool    `json:"waits"`         // it waits itself
	Heard float64 `json:"heard_seconds"` // since its process was heard of; -1: unknown
}

// Blame is a rank that others wait for, while it waits in nothing itself.
type Blame struct {
	Who
	Group      string  `json:"group"`
	Run        string  `json:"run,omitempty"`
	Generation uint64  `json:"generation,omitempty"`
	What       string  `json:"what"` // that others wait in
	For        float64 `json:"for_seconds"`
}

// Group is a group, or what is left of one.
type Group struct {
	Name       string  `json:"name"`
	Run        string  `json:"run,omitempty"`
	Generation uint64  `json:"generation,omitempty"` // 0: it comes together, or did not
	Size       int     `json:"size"`
	Present    int     `json:"present"`
	Age        float64 `json:"age_seconds"`
	Ended      float64 `json:"ended_seconds_ago,omitempty"` // if it is over
	State      string  `json:"state"`                       // "forming", "idle", "waiting", "revoked", "over"
	Why        string  `json:"why,omitempty"`
	Ranks      []Rank  `json:"ranks"`
	More       int     `json:"more_ranks,omitempty"`
	// States is how many ranks are in each state, also of those that are not among Ranks.
	States map[string]int `json:"states"`
}

// Rank is a rank of a group.
type Rank struct {
	Rank    int     `json:"rank"`
	Label   string  `json:"label"`
	State   string  `json:"state"` // "lost", "left", "awaited", "waits" or "idle": in no call
	Doing   string  `json:"doing"`
	Since   float64 `json:"since_seconds"` // its last call
	Heard   float64 `json:"heard_seconds"`
	Session uint64  `json:"session"`

	of *store.RankStatus
}

// Failure is a verdict that was no success.
type Failure struct {
	Group      string  `json:"group"`
	Run        string  `json:"run,omitempty"`
	Generation uint64  `json:"generation,omitempty"`
	What       string  `json:"what"`
	Ago        float64 `json:"ago_seconds"`
	Code       string  `json:"code"`
	Why        string  `json:"why"`
}

// Options has defaults for nil.
type Options struct {
	Address, Version string // of the store and of this program; shown as they are

	Ranks    int // of a group that are shown at most, those who are awaited or gone first; default all
	Groups   int // that are shown at most, those where something waits or failed first; default all
	Waits    int // that are shown at most, the longest; default all
	Failures int // that are shown at most, the latest; default all
}

// someRanks is how many of those who are missing are described.
const someRanks = 16

// Of makes a view of a status; before is an earlier one, for rates, or nil.
func Of(now, before *store.Status, o *Options) *View {
	if o == nil {
		o = new(Options)
	}
	v := &View{Address: o.Address, Version: o.Version, Blame: []Blame{}, Waiting: []Wait{}, Groups: []Group{}, Failures: []Failure{}}
	if now.Server != nil {
		v.Server = serverOf(now, before)
	}
	if r := now.Replication; r != nil {
		v.Replication = &Replication{Leads: r.Leading, Leader: r.Leader, Term: r.Term, Led: seconds(r.LeadingFor), Standbys: []Standby{}}
		for _, x := range r.Standbys {
			v.Replication.Standbys = append(v.Replication.Standbys, Standby{x.Addr, x.Lag, seconds(x.Seen)})
		}
	}
	b := newBuilder(now)
	for i := range now.Groups {
		g := &now.Groups[i]
		v.Waiting = append(v.Waiting, b.waits(g)...)
		v.Failures = append(v.Failures, failures(g)...)
		v.Groups = append(v.Groups, b.group(g, o.Ranks))
	}
	for _, k := range now.Keys {
		v.Waiting = append(v.Waiting, Wait{Kind: "key", What: "key " + k.Key, For: seconds(k.Waited), Came: k.Calls, Ranks: []Who{}, Here: []Span{}})
	}
	slices.SortStableFunc(v.Waiting, func(a, b Wait) int { return -cmp.Compare(a.For, b.For) })
	slices.SortStableFunc(v.Failures, func(a, b Failure) int { return cmp.Compare(a.Ago, b.Ago) })
	v.blame()
	v.trim(o)
	return v
}

// seconds is -1 for what is not known.
func seconds(d time.Duration) float64 {
	if d < 0 {
		return -1
	}
	return d.Round(time.Millisecond).Seconds()
}

// blame finds who keeps others waiting. Who waits in several ways is listed once, by the longest.
func (v *View) blame() {
	type id struct {
		group, run string
		gen        uint64
		rank       int
	}
	seen := map[id]bool{}
	for _, w := range v.Waiting { // each has at most someRanks
		for _, r := range w.Ranks {
			if at := (id{w.Group, w.Run, w.Generation, r.Rank}); !r.Waits && !seen[at] && len(v.Blame) < mostBlame {
				seen[at] = true
				v.Blame = append(v.Blame, Blame{Who: r, Group: w.Group, Run: w.Run, Generation: w.Generation, What: w.What, For: w.For})
			}
		}
	}
}

// mostBlame bounds Blame: so many ranks of all jobs together.
const mostBlame = 256

// trim takes out what there is no room for.
func (v *View) trim(o *Options) {
	if o.Groups > 0 && len(v.Groups) > o.Groups {
		slices.SortStableFunc(v.Groups, func(a, b Group) int { return cmp.Compare(dull(a.State), dull(b.State)) })
		v.More = len(v.Groups) - o.Groups
		v.Groups = v.Groups[:o.Groups]
	}
	if o.Waits > 0 && len(v.Waiting) > o.Waits {
		v.MoreWaiting = len(v.Waiting) - o.Waits
		v.Waiting = slices.Clone(v.Waiting[:o.Waits]) // the others are not kept
	}
	if o.Failures > 0 && len(v.Failures) > o.Failures {
		v.MoreFailures = len(v.Failures) - o.Failures
		v.Failures = slices.Clone(v.Failures[:o.Failures])
	}
}

// dull and calm are higher the less there is to see.
func dull(state string) int {
	return slices.Index([]string{"revoked", "forming", "waiting", "over", "idle"}, state)
}

func calm(state string) int {
	return slices.Index([]string{"lost", "awaited", "left", "waits", "idle"}, state)
}

// stalled is from when on a write of the log is worth telling.
const stalled = 100 * time.Millisecond

func serverOf(now, before *store.Status) *Server {
	s := now.Server
	v := &Server{
		Up: seconds(s.Up), Durable: s.Durable, Sessions: s.Sessions, Calls: s.Calls, Groups: s.Groups, Keys: s.Keys, Bytes: s.Bytes,
	}
	if s.SyncPending >= stalled {
		v.DiskStalled = seconds(s.SyncPending)
	}
	if before == nil || before.Server == nil {
		return v
	}
	old := before.Server
	took := (s.Up - old.Up).Seconds()
	if took <= 0 || s.In < old.In { // another store
		return v
	}
	r := &Rates{In: float64(s.In-old.In) / took, Out: float64(s.Out-old.Out) / took, By: map[string]float64{}}
	for op, n := range s.Ops {
		if op < len(old.Ops) {
			n -= old.Ops[op]
		}
		if name := store.OpName(op); n > 0 {
			r.By[name] += float64(n) / took
			r.Ops += float64(n) / took
		}
	}
	r.P50, r.P99 = quantile(s, old, 0.5), quantile(s, old, 0.99)
	v.Rates = r
	return v
}

// quantile is the time that a part q of the answers since old took at most.
func quantile(now, old *store.ServerStatus, q float64) float64 {
	before := map[time.Duration]int64{}
	for _, b := range old.Latency {
		before[b.UpTo] = b.Count
	}
	total := int64(0)
	for _, b := range now.Latency {
		total += b.Count - before[b.UpTo]
	}
	rest := int64(q * float64(total))
	for _, b := range now.Latency {
		if rest -= b.Count - before[b.UpTo]; rest < 0 {
			return b.UpTo.Seconds()
		}
	}
	return 0
}

// failures are those of g.
func failures(g *store.GroupStatus) (list []Failure) {
	add := func(f *store.FailureStatus) {
		what := f.Verb
		if f.Seq > 0 {
			what += fmt.Sprintf(" #%d", f.Seq)
		}
		if f.Channel != "" {
			what += " on " + quote(f.Channel)
		}
		list = append(list, Failure{
			Group: g.Name, Run: g.Run, Generation: g.Generation, What: cmp.Or(what, "the group"),
			Ago: seconds(f.Ago), Code: f.Failure.Code.String(), Why: why(f),
		})
	}
	for i := range g.Failures {
		add(&g.Failures[i])
	}
	if g.Revoked != nil {
		add(g.Revoked)
	}
	return list
}
