package status

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-pg/muster/store"
)

// View is a status prepared for display: the calls that wait and the ranks that they wait for, then
// everything else. Times are in seconds. A negative time, or a negative number of a Server, is
// unknown: not every store reports all of them.
type View struct {
	Address string `json:"address,omitempty"` // of the store, from Options
	Version string `json:"version,omitempty"` // of the program that shows it, from Options

	Server *Server `json:"server,omitempty"` // nil for a prefix
	// Replication is set for a replicated store, and nil for a prefix. A standby reports nothing
	// else.
	Replication *Replication `json:"replication,omitempty"`

	// the ranks that others wait for and that do not wait themselves; longest wait first
	Blame    []Blame   `json:"blame"`
	Waiting  []Wait    `json:"waiting"` // longest wait first
	Groups   []Group   `json:"groups"`
	Failures []Failure `json:"failures"` // latest first
	// Elastic are the jobs of package membership, at most 64. FetchElastic returns them.
	Elastic []ElasticJob `json:"elastic_jobs"`
	More    int          `json:"more,omitempty"` // groups omitted from Groups
	// MoreWaiting and MoreFailures are the numbers of elements omitted from the lists.
	MoreWaiting  int `json:"more_waiting,omitempty"`
	MoreFailures int `json:"more_failures,omitempty"`
}

// Server describes the store as a whole.
type Server struct {
	Up      float64 `json:"up_seconds"`
	Durable bool    `json:"durable"`
	// DiskStalled is how long the current write of the log has not been durable, or 0 if that is
	// less than 0.1 s. Meanwhile the store acknowledges no change.
	DiskStalled float64 `json:"disk_stalled_seconds,omitempty"`
	Sessions    int64   `json:"sessions"`
	Calls       int64   `json:"calls_waiting"`
	Groups      int64   `json:"groups"`
	Keys        int64   `json:"keys"`
	Bytes       int64   `json:"bytes"`
	// Loop is how the server reads its sockets: "io_uring", "epoll", or "" for neither.
	Loop string `json:"loop,omitempty"`
}

// Replication describes the processes of a replicated store, of which one at a time is the leader.
type Replication struct {
	Leads    bool      `json:"leads"`  // whether the process that answers is the leader
	Leader   string    `json:"leader"` // where the leader serves, host:port; "" if there is none
	Term     uint64    `json:"term"`   // 1 for the first leader of the store; each takeover adds 1
	Led      float64   `json:"led_seconds"`
	Standbys []Standby `json:"standbys"` // a standby reports itself
}

// Standby is a process that follows the leader's log.
type Standby struct {
	Addr string `json:"address"`
	// entries of the log that were committed, and that it had not applied
	Lag uint64 `json:"lag_entries"`
}

// Wait is a call that waits: an undecided verb, a send, a receive, or the calls for one key.
type Wait struct {
	Group string `json:"group,omitempty"`
	Run   string `json:"run,omitempty"`
	// 0: the group is forming, or there is no group
	Generation uint64  `json:"generation,omitempty"`
	Kind       string  `json:"kind"` // "verb", "message" or "key"
	What       string  `json:"what"`
	For        float64 `json:"for_seconds"`
	Remaining  float64 `json:"remaining_seconds,omitempty"` // until its deadline, if it has one
	Size       int     `json:"size,omitempty"`
	AtLeast    bool    `json:"size_at_least,omitempty"` // the group may have more ranks than Size
	Arrived    int     `json:"arrived"`
	Missing    int     `json:"missing"`
	Ranks      []Who   `json:"ranks"`   // the missing ranks: the first ones
	Present    []Span  `json:"present"` // the ranks that have arrived
	Gone       []Span  `json:"gone,omitempty"`
	// By are the processes that call, for keys, as far as they are known: the first ones.
	By []string `json:"by,omitempty"`
}

// Span is the range of ranks from Span[0] to Span[1], both included.
type Span [2]int

// Who is a rank that others wait for.
type Who struct {
	Rank     int     `json:"rank"`
	Label    string  `json:"label,omitempty"` // "": it has not joined
	Doing    string  `json:"doing,omitempty"`
	Waits    bool    `json:"waits"`             // whether it waits itself
	LastSeen float64 `json:"last_seen_seconds"` // since its process was last seen; -1: unknown
	// Progress is that of its phase; Doing has it in words. nil: it is in none.
	Progress *Progress `json:"progress,omitempty"`

	server string // address of its debug server, if it is a process of PyTorch that has one
}

// Blame is a rank that others wait for, and that does not wait itself.
type Blame struct {
	Who
	Group      string  `json:"group"`
	Run        string  `json:"run,omitempty"`
	Generation uint64  `json:"generation,omitempty"`
	What       string  `json:"what"` // the call that others wait in
	For        float64 `json:"for_seconds"`
	// Stacks are those of its process, or StacksError is why there are none. FetchStacks sets them.
	Stacks      string `json:"stacks,omitempty"`
	StacksError string `json:"stacks_error,omitempty"`
}

// Group is a group, active or closed.
type Group struct {
	Name       string  `json:"name"`
	Run        string  `json:"run,omitempty"`
	Generation uint64  `json:"generation,omitempty"` // 0: it is forming, or it failed to form
	Size       int     `json:"size"`
	AtLeast    bool    `json:"size_at_least,omitempty"` // it may have more ranks than Size
	Present    int     `json:"present"`
	Age        float64 `json:"age_seconds"`
	Ended      float64 `json:"ended_seconds_ago,omitempty"` // if it is closed
	// "forming", "idle", "waiting", "failed", "closed"
	State string `json:"state"`
	Why   string `json:"why,omitempty"`
	// Protocol is "torch" for a group of PyTorch's processes, which has no generation, and "" for a
	// group of muster. Notes are what else is known: of a group of muster, ranks that have stalled; of
	// PyTorch's, stopped and disconnected ranks, and what follows from that; those that begin with
	// "guess: " may be wrong.
	Protocol string   `json:"protocol,omitempty"`
	Notes    []string `json:"notes,omitempty"`
	Ranks    []Rank   `json:"ranks"`
	More     int      `json:"more_ranks,omitempty"`
	// Phases are those that its ranks are in; nil: they are in none.
	Phases *Phases `json:"phases,omitempty"`
	// States is the number of ranks in each state, including those omitted from Ranks.
	States map[string]int `json:"states"`
}

// Rank is a rank of a group.
type Rank struct {
	Rank  int    `json:"rank"`
	Label string `json:"label"`
	// "lost" (failed), "left", "stalled" (Progress.Stalled, also if it is awaited), "awaited", "waits",
	// or "idle": in no call
	State    string    `json:"state"`
	Doing    string    `json:"doing"`
	LastSeen float64   `json:"last_seen_seconds"`
	Progress *Progress `json:"progress,omitempty"` // as in Who

	of *store.RankStatus
}

// Failure is a call or a group that failed.
type Failure struct {
	Group      string  `json:"group"`
	Run        string  `json:"run,omitempty"`
	Generation uint64  `json:"generation,omitempty"`
	What       string  `json:"what"`
	Ago        float64 `json:"ago_seconds"`
	Code       string  `json:"code"`
	Why        string  `json:"why"`
}

// Options configures a view.
type Options struct {
	Address, Version string // of the store and of this program; shown unchanged

	Ranks    int // at most so many ranks of a group, awaited and failed ones first; default all
	Groups   int // at most so many groups, failed and waiting ones first; default all
	Waits    int // at most so many, the longest waits first; default all
	Failures int // at most so many, the latest first; default all
}

// someRanks is how many of the missing ranks of a call are described, and how many ranks, processes or
// kinds of a call a text names.
const someRanks = 16

// Of makes a view of the status now.
func Of(now *store.Status, o Options) *View {
	v := &View{Address: o.Address, Version: o.Version, Blame: []Blame{}, Waiting: []Wait{}, Groups: []Group{}, Failures: []Failure{}, Elastic: []ElasticJob{}}
	if now.Server != nil {
		v.Server = serverOf(now.Server)
	}
	if r := now.Replication; r != nil {
		v.Replication = &Replication{Leads: r.Leading, Leader: r.Leader, Term: r.Term, Led: seconds(r.LeadingFor), Standbys: []Standby{}}
		for _, x := range r.Standbys {
			v.Replication.Standbys = append(v.Replication.Standbys, Standby{x.Addr, x.Lag})
		}
	}
	for i := range now.Groups {
		name(&now.Groups[i])
	}
	b := newBuilder(now)
	for i := range now.Groups {
		g := &now.Groups[i]
		v.Waiting = append(v.Waiting, b.waits(g)...)
		v.Failures = append(v.Failures, failures(g)...)
		v.Groups = append(v.Groups, b.group(g, o.Ranks))
	}
	for _, k := range now.Keys {
		v.Waiting = append(v.Waiting, Wait{Kind: "key", What: "key " + k.Key, For: seconds(k.Waited), Arrived: k.Calls, Ranks: []Who{}, Present: []Span{}, By: k.By})
	}
	slices.SortStableFunc(v.Waiting, func(a, b Wait) int { return -cmp.Compare(a.For, b.For) })
	slices.SortStableFunc(v.Failures, func(a, b Failure) int { return cmp.Compare(a.Ago, b.Ago) })
	v.blame()
	v.trim(o)
	return v
}

// seconds converts d, or returns -1 if d is unknown.
func seconds(d time.Duration) float64 {
	if d < 0 {
		return -1
	}
	return d.Round(time.Millisecond).Seconds()
}

// blame lists the ranks that others wait for and that do not wait themselves. A rank that others
// wait for in several calls is listed once, with the longest wait.
func (v *View) blame() {
	type id struct {
		group, run string
		gen        uint64
		rank       int
	}
	seen := map[id]bool{}
	for _, w := range v.Waiting { // each has at most someRanks ranks
		for _, r := range w.Ranks {
			if at := (id{w.Group, w.Run, w.Generation, r.Rank}); !r.Waits && !seen[at] && len(v.Blame) < mostBlame {
				seen[at] = true
				v.Blame = append(v.Blame, Blame{Who: r, Group: w.Group, Run: w.Run, Generation: w.Generation, What: w.What, For: w.For})
			}
		}
	}
}

// mostBlame bounds Blame, over all jobs.
const mostBlame = 256

// trim shortens the lists to the limits in o.
func (v *View) trim(o Options) {
	if o.Groups > 0 && len(v.Groups) > o.Groups {
		slices.SortStableFunc(v.Groups, func(a, b Group) int { return cmp.Compare(groupUrgency(a.State), groupUrgency(b.State)) })
		v.Groups, v.More = first(v.Groups, o.Groups)
	}
	v.Waiting, v.MoreWaiting = first(v.Waiting, o.Waits)
	v.Failures, v.MoreFailures = first(v.Failures, o.Failures)
}

// first returns the first elements of list, at most so many or all if most is 0, and the number of
// the others.
func first[T any](list []T, most int) (some []T, more int) {
	if most <= 0 || len(list) <= most {
		return list, 0
	}
	return slices.Clone(list[:most]), len(list) - most // a clone, so that the others can be freed
}

// groupUrgency and rankUrgency order states by their importance to the user: the most important is 0.
func groupUrgency(state string) int {
	return slices.Index([]string{"failed", "forming", "waiting", "closed", "idle"}, state)
}

func rankUrgency(state string) int {
	return slices.Index([]string{"lost", "stalled", "awaited", "left", "waits", "idle"}, state)
}

// stalled is the age from which a pending write of the log is reported.
const stalled = 100 * time.Millisecond

func serverOf(s *store.ServerStatus) *Server {
	v := &Server{
		Up: seconds(s.Up), Durable: s.Durable, Sessions: s.Sessions, Calls: s.Calls, Groups: s.Groups, Keys: s.Keys, Bytes: s.Bytes, Loop: s.Loop,
	}
	if s.SyncPending >= stalled {
		v.DiskStalled = seconds(s.SyncPending)
	}
	return v
}

// failures returns the failures of g.
func failures(g *store.GroupStatus) (list []Failure) {
	all := g.Failures
	if g.Revoked != nil {
		all = append(slices.Clone(all), *g.Revoked)
	}
	for i := range all {
		f := &all[i]
		what := callText(&store.RecordStatus{Verb: f.Verb, Seq: f.Seq, Channel: f.Channel, Root: -1})
		list = append(list, Failure{
			Group: g.Name, Run: g.Run, Generation: g.Generation, What: cmp.Or(what, "the group"),
			Ago: seconds(f.Ago), Code: f.Failure.Code.String(), Why: why(f),
		})
	}
	return list
}
