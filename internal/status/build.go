package status

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// builder determines which call each rank waits in.
type builder struct {
	walks int // the number of rank visits left, of mostWalks
	// in and awaited are, by group, the call that each rank waits in, and the ranks that other ranks of
	// the group wait for. If a rank waits in several calls, it is the one that has waited longest.
	in      map[*store.GroupStatus]map[int]call
	awaited map[*store.GroupStatus]map[int]bool
	// elsewhere is the call that each process waits in, in any group. If several of its ranks wait,
	// it is the one that has waited longest.
	elsewhere map[process]call
	// shared contains the processes that run several ranks of one group, as goroutines. For these
	// it is unknown which rank makes a call in another group.
	shared map[process]bool
	noted  map[process]bool // the processes that stalledNotes has named
}

// process identifies a process by its session and its label.
type process struct {
	session uint64
	label   string
}

// call is a call that a rank waits in.
type call struct {
	group *store.GroupStatus
	what  string
	time  time.Duration
}

func newBuilder(s *store.Status) *builder {
	b := &builder{walks: mostWalks, in: map[*store.GroupStatus]map[int]call{}, awaited: map[*store.GroupStatus]map[int]bool{}, elsewhere: map[process]call{}, shared: map[process]bool{}, noted: map[process]bool{}}
	for i := range s.Groups {
		g := &s.Groups[i]
		b.addCalls(g)
		first := make(map[process]int, len(g.Ranks))
		for j := range g.Ranks {
			r := &g.Ranks[j]
			p := process{r.Session, r.Label}
			if rank, ok := first[p]; ok && rank != r.Rank {
				b.shared[p] = true
			}
			first[p] = r.Rank
			if c, ok := b.in[g][r.Rank]; ok && c.time >= b.elsewhere[p].time {
				b.elsewhere[p] = c
			}
		}
	}
	return b
}

// addCalls adds the calls that ranks of g wait in, and the ranks that they wait for.
func (b *builder) addCalls(g *store.GroupStatus) {
	in, awaited := map[int]call{}, map[int]bool{}
	b.in[g], b.awaited[g] = in, awaited
	put := func(rank int, c call) {
		if old, ok := in[rank]; !ok || old.time < c.time {
			in[rank] = c
		}
	}
	for i := range g.Records {
		r := &g.Records[i]
		what := callText(r)
		b.walk(g, &r.Arrived, func(rank int) { put(rank, call{g, what, r.Age}) })
		b.walk(g, &r.Missing, func(rank int) { awaited[rank] = true })
	}
	for i := range g.Ranks {
		for _, w := range g.Ranks[i].Waits {
			put(g.Ranks[i].Rank, call{g, waitText(&w), w.Waited})
			awaited[w.Peer] = true
		}
	}
}

// walk calls f with those of the ranks that g has, up to the limits mostRanks and mostWalks.
func (b *builder) walk(g *store.GroupStatus, ranks *wire.Ranks, f func(rank int)) {
	for _, s := range ranks.Spans {
		for rank := max(s.First, 0); rank <= s.Last && rank < min(g.Size, mostRanks) && b.walks > 0; rank++ {
			b.walks--
			f(rank)
		}
	}
}

// Limits on the work that the answer of a malicious or broken store can cause.
const (
	mostRanks = 1 << 20 // ranks of a group
	mostWalks = 1 << 22 // ranks visited in lists of ranks, of all groups together
)

// callText returns the call of a record as its caller would write it.
func callText(r *store.RecordStatus) string {
	s := r.Verb
	if r.Root >= 0 {
		s += fmt.Sprintf("(root %d)", r.Root)
	}
	if r.Seq > 0 {
		s += fmt.Sprintf(" #%d", r.Seq)
	}
	if r.Channel != "" {
		s += " on " + quote(r.Channel)
	}
	return s
}

func waitText(w *store.WaitStatus) string {
	s := fmt.Sprintf("send to rank %d", w.Peer)
	if w.Verb == "recv" {
		s = fmt.Sprintf("recv from rank %d", w.Peer)
	}
	if w.Tag != "" {
		s += " with tag " + quote(w.Tag)
	}
	return s
}

// quote quotes s if it is not plain text: names of muster's internal channels begin with a zero
// byte.
func quote(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) || r == ' ' }) {
		return strconv.Quote(s)
	}
	return s
}

// waits returns the calls of g that wait.
func (b *builder) waits(g *store.GroupStatus) (list []Wait) {
	gone := goneIn(g)
	for i := range g.Records {
		r := &g.Records[i]
		w := Wait{
			Kind: "verb", Group: g.Name, Run: g.Run, Generation: g.Generation, What: callText(r), For: seconds(r.Age), Remaining: seconds(r.Remaining), Size: g.Size, AtLeast: g.AtLeast,
			Arrived: r.Arrived.Count, Missing: r.Missing.Count, Ranks: []Who{}, Present: spansOf(&r.Arrived), Gone: gone,
		}
		for _, rank := range r.Missing.First(someRanks) {
			w.Ranks = append(w.Ranks, b.who(g, rank))
		}
		list = append(list, w)
	}
	for i := range g.Ranks {
		for _, x := range g.Ranks[i].Waits {
			list = append(list, Wait{
				Kind: "message", Group: g.Name, Run: g.Run, Generation: g.Generation, What: fmt.Sprintf("rank %d: %s", g.Ranks[i].Rank, waitText(&x)),
				For: seconds(x.Waited), Size: g.Size, AtLeast: g.AtLeast, Arrived: 1, Missing: 1, Ranks: []Who{b.who(g, x.Peer)}, Present: []Span{{g.Ranks[i].Rank, g.Ranks[i].Rank}},
			})
		}
	}
	return list
}

// goneIn returns the ranks of g that have failed or left, as far as wire.Ranks has them. Each waiting
// verb of g shares the list.
func goneIn(g *store.GroupStatus) []Span {
	var gone wire.Ranks
	for i := range g.Ranks {
		if r := &g.Ranks[i]; r.Gone != 0 {
			gone.Add(r.Rank)
		}
	}
	return spansOf(&gone)
}

func spansOf(ranks *wire.Ranks) []Span {
	spans := make([]Span, len(ranks.Spans))
	for i, s := range ranks.Spans {
		spans[i] = Span{s.First, s.Last}
	}
	return spans
}

// rankOf returns the status of a rank of g, or nil if it has not joined.
func rankOf(g *store.GroupStatus, rank int) *store.RankStatus {
	i, ok := slices.BinarySearchFunc(g.Ranks, rank, func(r store.RankStatus, rank int) int { return r.Rank - rank })
	if !ok {
		return nil
	}
	return &g.Ranks[i]
}

// who describes a rank that other ranks wait for.
func (b *builder) who(g *store.GroupStatus, rank int) Who {
	r := rankOf(g, rank)
	if r == nil {
		return Who{Rank: rank, Doing: "has not joined", LastSeen: -1}
	}
	_, waits := b.waitsIn(g, r)
	return Who{Rank: rank, Label: r.Label, Doing: b.doing(g, r), Waits: waits, LastSeen: seconds(r.LastSeen), Progress: b.progress(g, r), server: r.Server}
}

// waitsIn returns the call that a rank of g waits in, in g or in another group, and whether there
// is one.
func (b *builder) waitsIn(g *store.GroupStatus, r *store.RankStatus) (c call, waits bool) {
	if r.Gone != 0 {
		return c, false
	}
	if c, waits = b.in[g][r.Rank]; waits {
		return c, true
	}
	p := process{r.Session, r.Label}
	c, waits = b.elsewhere[p]
	return c, waits && c.group != g && !b.shared[p]
}

// doing describes in words what a rank does.
func (b *builder) doing(g *store.GroupStatus, r *store.RankStatus) string {
	text := b.callOf(g, r)
	if p := b.progress(g, r); p != nil {
		return p.String() + "; " + text
	}
	return text
}

// callOf describes in words the call of a rank, or its last one.
func (b *builder) callOf(g *store.GroupStatus, r *store.RankStatus) string {
	c, waits := b.waitsIn(g, r)
	switch {
	case r.Gone != 0:
		return cmp.Or(r.Doing, r.Gone.String())
	case waits && c.group == g:
		return fmt.Sprintf("in %s%s", c.what, words(" for %s", c.time))
	case waits:
		return fmt.Sprintf("in %s of group %q%s", c.what, c.group.Name, words(" for %s", c.time))
	case g.Protocol != "":
		return r.Doing
	case r.Verb == "":
		return "no call since it joined" + words(" %s ago", r.Ago)
	}
	awaited := uint64(0)
	for i := range g.Records {
		if w := &g.Records[i]; w.Seq > awaited && w.Missing.Has(r.Rank) {
			awaited = w.Seq
		}
	}
	return fmt.Sprintf("in no call; %s%s", wire.LastCall(r.Verb, r.Seq, awaited), words(", %s ago", r.Ago))
}

// words formats d, or returns "" if d is unknown.
func words(format string, d time.Duration) string {
	if d < 0 {
		return ""
	}
	return fmt.Sprintf(format, Short(d))
}

// group returns g for display. If most is not 0, it includes at most that many ranks: those that
// failed or that others wait for come first.
func (b *builder) group(g *store.GroupStatus, most int) Group {
	v := Group{
		Name: g.Name, Run: g.Run, Generation: g.Generation, Size: g.Size, AtLeast: g.AtLeast, Present: g.Present, Age: seconds(g.Age), State: stateOf(g),
		Protocol: g.Protocol,
	}
	if g.Ended > 0 { // 0: closed at an unknown time
		v.Ended = max(seconds(g.Ended), 0.001)
	}
	if g.Revoked != nil {
		v.Why = why(g.Revoked)
	} else if n := len(g.Failures); n > 0 && g.Ended >= 0 {
		v.Why = why(&g.Failures[n-1])
	}
	v.Ranks, v.States = make([]Rank, len(g.Ranks)), map[string]int{}
	for i := range g.Ranks {
		r := &g.Ranks[i]
		v.Ranks[i] = Rank{Rank: r.Rank, Label: r.Label, State: b.state(g, r), LastSeen: seconds(r.LastSeen), Progress: b.progress(g, r), of: r}
		v.States[v.Ranks[i].State]++
	}
	v.Phases, v.Notes = phasesOf(v.Ranks), append(slices.Clip(g.Notes), b.stalledNotes(v.Ranks)...)
	if most > 0 && len(v.Ranks) > most {
		slices.SortStableFunc(v.Ranks, func(a, b Rank) int { return cmp.Compare(rankUrgency(a.State), rankUrgency(b.State)) })
		v.Ranks, v.More = first(v.Ranks, most)
		slices.SortFunc(v.Ranks, func(a, b Rank) int { return cmp.Compare(a.Rank, b.Rank) })
	}
	for i := range v.Ranks {
		v.Ranks[i].Doing = b.doing(g, v.Ranks[i].of)
	}
	return v
}

// state returns the value of Rank.State.
func (b *builder) state(g *store.GroupStatus, r *store.RankStatus) string {
	_, waits := b.waitsIn(g, r)
	switch {
	case r.Gone != 0:
		return r.Gone.String()
	case waits:
		return "waits"
	case b.progress(g, r).hasStalled():
		return "stalled"
	case b.awaited[g][r.Rank]:
		return "awaited"
	}
	return "idle"
}

func stateOf(g *store.GroupStatus) string {
	waits := g.Open > 0 || slices.ContainsFunc(g.Ranks, func(r store.RankStatus) bool { return len(r.Waits) > 0 })
	switch {
	case g.Ended >= 0:
		return "closed"
	case g.Generation == 0 && g.Protocol == "":
		return "forming"
	case g.Revoked != nil:
		return "failed"
	case waits:
		return "waiting"
	}
	return "idle"
}

// why describes a failure in words.
func why(f *store.FailureStatus) string {
	v := &f.Failure
	var parts []string
	say := func(what string, ranks []int) {
		if len(ranks) > 0 {
			parts = append(parts, what+" "+RankList(ranks))
		}
	}
	reason := v.Reason
	if v.By >= 0 {
		parts, reason = append(parts, strings.TrimSuffix(fmt.Sprintf("by rank %d: %s", v.By, reason), ": ")), ""
	}
	say("lost", v.Lost)
	say("left", v.Left)
	if v.Code == wire.CodeStalled && len(v.Doing) > 0 && len(v.Doing) <= len(v.Missing) {
		for i, doing := range v.Doing {
			parts = append(parts, fmt.Sprintf("rank %d: %s", v.Missing[i], doing))
		}
		say("also", v.Missing[len(v.Doing):])
	} else {
		say("missing", v.Missing)
	}
	if f.Unnamed > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", f.Unnamed))
	}
	if reason != "" {
		parts = append(parts, reason)
	}
	for i := range v.Clash {
		c := &v.Clash[i]
		parts = append(parts, fmt.Sprintf("rank %d called %s", c.Rank, strings.Join(strings.Fields(c.Verb+" "+c.Type+" "+c.Label), " ")))
	}
	if v.Waited > 0 {
		parts = append(parts, "after "+Short(v.Waited))
	}
	return strings.Join(parts, ", ")
}

// RankList formats a list of ranks in order, as "rank 3" or "ranks 0–2, 7".
func RankList(ranks []int) string {
	var parts []string
	for rest := ranks; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n] == rest[0]+n {
			n++
		}
		if n > 2 {
			parts = append(parts, fmt.Sprintf("%d–%d", rest[0], rest[n-1]))
		} else {
			n = 1
			parts = append(parts, strconv.Itoa(rest[0]))
		}
		rest = rest[n:]
	}
	if len(ranks) == 1 {
		return "rank " + parts[0]
	}
	return "ranks " + strings.Join(parts, ", ")
}

// Short formats a duration: "0.4 s", "41 s", "3 min 7 s", "2 h 5 min".
func Short(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
}

// viewGroup matches the name of the group of a view of package membership, or of a Sub or Split of it.
var viewGroup = regexp.MustCompile(`(?s)membership/([^/]+)/group/([^/]+) view (\d+)(?:/attempt-\d+)?(/.*)?$`)

// name names a group as users know it: the group of a view by its job, or by the job of "muster run"
// whose nodes are its ranks. The reason of a failure names the rank of the job then.
func name(g *store.GroupStatus) {
	m := viewGroup.FindStringSubmatch(g.Name)
	if m == nil {
		return
	}
	job, err := url.PathUnescape(m[1])
	if of, err2 := url.PathUnescape(m[2]); err != nil || err2 != nil || of != job {
		return
	}
	text := "job " + job + ", view " + m[3]
	if of, ok := strings.CutPrefix(job, "muster-run/"); ok {
		text = "nodes of job " + of
		if g.Revoked != nil && g.Revoked.Failure.Reason != "" {
			g.Revoked.Failure.By = -1
		}
	}
	g.Name = strings.TrimSuffix(g.Name, m[0]) + text + m[4]
}
