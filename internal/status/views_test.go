package status_test

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/flightrecorder"
	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/internal/tcpwire"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// TestViews checks the views of the jobs in testdata: what a store reports, and what it has of
// PyTorch. The lines below "view" are the job: see job.add. Its arguments are limits of Options;
// ranks, which shows the ranks of the groups; and below=, the part of the store that PyTorch uses, of
// which alone the view is with part. "go test -run TestViews -rewrite" writes the views, for review.
func TestViews(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) (text string) {
			synctest.Test(t, func(t *testing.T) { text = viewText(t, d) })
			return text
		})
	})
}

// viewText returns the view of the job in d.
func viewText(t *testing.T, d *datadriven.TestData) string {
	s := store.New(new(store.Memory))
	defer s.Close()
	below := ""
	d.MaybeScanArgs(t, "below", &below)
	j := &job{T: t, part: store.Prefix(s, below), recordings: map[int]*status.Recording{}}
	for line := range strings.Lines(d.Input) {
		verb, args, err := datadriven.ParseLine(line)
		require.NoError(t, err)
		var words []string // those that are no fields
		for _, a := range args {
			if a.Vals == nil {
				words = append(words, a.Key)
			}
		}
		j.add(verb, words, args[len(words):])
	}
	require.NoError(t, s.Set(t.Context(), tcpwire.PrefixesKey+"a", []byte(below), nil))
	if d.HasArg("part") {
		s = j.part
	}
	now, err := status.Fetch(t.Context(), s, status.TorchOptions{Recordings: j.recordings})
	require.NoError(t, err)
	now.Server, now.Keys, now.Groups = j.now.Server, append(now.Keys, j.now.Keys...), append(now.Groups, j.now.Groups...)
	var o status.Options
	d.MaybeScanArgs(t, "Groups", &o.Groups)
	d.MaybeScanArgs(t, "Ranks", &o.Ranks)
	p := printer{ranks: d.HasArg("ranks")}
	p.view(status.Of(now, o))
	return p.String()
}

// job is what a case is about.
type job struct {
	*testing.T
	now        store.Status
	part       *store.Store // that PyTorch uses
	servers    int          // that have published processes
	recordings map[int]*status.Recording
}

// add adds a line of the job: one of the types that a status consists of, with their fields. Each
// belongs to the group, the rank or the failure before it. A list is (a, b), and one of ranks may
// have spans, as 0-2.
func (j *job) add(verb string, words []string, fields []datadriven.CmdArg) {
	var g *store.GroupStatus
	if n := len(j.now.Groups); n > 0 {
		g = &j.now.Groups[n-1]
	}
	switch verb {
	case "server":
		j.now.Server = new(set(j, store.ServerStatus{}, fields))
	case "key":
		j.now.Keys = append(j.now.Keys, set(j, store.KeyStatus{Key: words[0]}, fields))
	case "group":
		j.now.Groups = append(j.now.Groups, set(j, store.GroupStatus{Name: words[0], Ended: -1}, fields))
	case "record":
		g.Records = append(g.Records, set(j, store.RecordStatus{Verb: words[0], Root: -1}, fields))
	case "rank":
		g.Ranks = append(g.Ranks, set(j, store.RankStatus{Rank: j.ranks(words)[0]}, fields))
	case "phase": // of the rank before
		p := set(j, wire.Phase{ID: 1, Name: strings.Join(words, " ")}, fields)
		g.Ranks[len(g.Ranks)-1].Progress = &p
	case "wait":
		r := &g.Ranks[len(g.Ranks)-1]
		r.Waits = append(r.Waits, set(j, store.WaitStatus{Verb: words[0]}, fields))
	case "failure":
		g.Failures = append(g.Failures, set(j, store.FailureStatus{Verb: words[0], Failure: wire.Failure{By: -1}}, fields))
	case "clash":
		f := &g.Failures[len(g.Failures)-1].Failure
		f.Clash = append(f.Clash, set(j, wire.Contribution{Verb: words[0]}, fields))
	case "revoked":
		g.Revoked = new(set(j, store.FailureStatus{Failure: wire.Failure{By: -1}}, fields))
	default:
		j.addTorch(verb, words, fields)
	}
}

// addTorch adds a line of a job of PyTorch: a key of its store, processes by their ranks, their calls
// of collectives, and why a rank has no recording. A call that ends with "!" has not completed, and
// "new" makes the process group again.
func (j *job) addTorch(verb string, words []string, fields []datadriven.CmdArg) {
	switch ranks := j.ranks(words[:1]); verb {
	case "set":
		require.NoError(j, j.part.Set(j.Context(), j.text(words[0]), []byte(strings.Join(words[1:], "")), nil))
	case "await": // a call that waits for a key
		go func() { _, _ = j.part.Wait(j.Context(), j.text(words[0])) }()
		synctest.Wait()
	case "process": // of one server
		var all tcpwire.Processes
		for _, rank := range ranks {
			p := tcpwire.Process{ID: strconv.Itoa(rank), Label: fmt.Sprintf("pid 4%d on b", rank), Rank: rank, Size: 4, For: 5 * time.Second}
			if words[1] != "unknown" {
				p.State = words[1]
			}
			p = set(j, p, fields)
			for i := range p.Members {
				p.Members[i].Rank = rank
			}
			all.Processes = append(all.Processes, p)
		}
		j.servers++
		value, err := all.Encode()
		require.NoError(j, err)
		require.NoError(j, j.part.Set(j.Context(), tcpwire.ProcessesKey+strconv.Itoa(j.servers), value, &store.SetOptions{TTL: tcpwire.ProcessesTTL}))
	case "calls":
		for _, rank := range ranks {
			j.recordings[rank] = j.recording(words[1:], fields)
		}
	case "error":
		j.recordings[ranks[0]] = &status.Recording{Err: errors.New(strings.Join(words[1:], " ")), Source: "http://b:1"}
	default:
		j.Fatalf("no line of a job: %s", verb)
	}
}

// recording is the recording of a rank that has been in its calls for a time.
func (j *job) recording(calls []string, fields []datadriven.CmdArg) *status.Recording {
	o := set(j, struct {
		Group   string
		For     time.Duration
		Live    bool
		Dropped bool
	}{Group: "0", For: 12 * time.Second, Live: true}, fields)
	r := &status.Recording{Dump: &flightrecorder.Dump{Dropped: o.Dropped}, At: time.Now(), Live: o.Live, Source: "recording"}
	seq := uint64(0)
	for _, call := range calls {
		if call == "new" {
			seq = 0
			continue
		}
		seq++
		name, open := strings.CutSuffix(call, "!")
		name, shape, _ := strings.Cut(name, "/")
		r.Dump.Calls = append(r.Dump.Calls, flightrecorder.Call{
			Group: o.Group, Backend: "gloo", Name: name, Inputs: shape, Seq: seq, Done: !open, P2P: name == "send", Created: r.At.Add(-o.For),
		})
	}
	return r
}

// set returns v with the fields that options name, as Failure.Code.
func set[T any](j *job, v T, options []datadriven.CmdArg) T {
	for _, o := range options {
		f := reflect.ValueOf(&v).Elem()
		for name := range strings.SplitSeq(o.Key, ".") {
			f = f.FieldByName(name)
		}
		switch p := f.Addr().Interface().(type) {
		case *string:
			*p = j.text(o.Vals[0])
		case *wire.Code:
			for *p = 0; p.String() != o.Vals[0]; *p++ {
				require.Less(j, *p, wire.Code(100), o.Vals[0])
			}
		case *[]int:
			*p = j.ranks(o.Vals)
		case *[]string:
			*p = o.Vals
		case *wire.Ranks:
			for _, rank := range j.ranks(o.Vals) {
				p.Add(rank)
			}
		case *[]tcpwire.ProcessWait: // of 48 seconds, or KEY@TIME
			for _, wait := range o.Vals {
				key, long, _ := strings.Cut(wait, "@")
				waited, err := time.ParseDuration(cmp.Or(long, "48s"))
				require.NoError(j, err)
				*p = append(*p, tcpwire.ProcessWait{Key: j.text(key), For: waited})
			}
		case *[]tcpwire.GroupRank:
			for _, group := range o.Vals {
				*p = append(*p, tcpwire.GroupRank{Group: group})
			}
		default:
			o.Scan(j, 0, p)
		}
	}
	return v
}

// text returns a text that is written as in Go, without the quotes.
func (j *job) text(s string) string {
	text, err := strconv.Unquote(`"` + s + `"`)
	require.NoError(j, err)
	return text
}

// ranks reads a list of ranks.
func (j *job) ranks(list []string) (ranks []int) {
	for span := range strings.SplitSeq(strings.Join(list, ","), ",") {
		first, last, _ := strings.Cut(span, "-")
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(cmp.Or(last, first))
		if err != nil || err2 != nil { // a key, and not ranks
			return ranks
		}
		for rank := from; rank <= to; rank++ {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// printer prints a view: each part of it that says something.
type printer struct {
	strings.Builder
	ranks bool
}

func (p *printer) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *printer) view(v *status.View) {
	if v.Server != nil {
		p.line("server %+v", *v.Server)
	}
	for _, w := range v.Waiting {
		p.wait(&w)
	}
	for _, b := range v.Blame {
		p.line("blame %s rank %d", jobText(b.Group, b.Run, b.Generation), b.Rank)
	}
	for _, g := range v.Groups {
		p.group(&g)
	}
	if v.More > 0 {
		p.line("%d more groups", v.More)
	}
	for _, f := range v.Failures {
		p.line("failure %s · %s: %s, %v s ago: %s", jobText(f.Group, f.Run, f.Generation), f.What, f.Code, f.Ago, f.Why)
	}
}

func jobText(group, run string, generation uint64) string {
	text := strings.TrimSuffix(group+" "+run, " ")
	if generation > 0 {
		text += fmt.Sprintf(" (generation %d)", generation)
	}
	return text
}

func sizeText(n, size int, atLeast bool) string {
	text := fmt.Sprintf("%d of %d ranks", n, size)
	if atLeast {
		text += ", or of more"
	}
	return text
}

func (p *printer) wait(w *status.Wait) {
	text := fmt.Sprintf("%s %s: %v s", w.Kind, strings.TrimPrefix(jobText(w.Group, w.Run, w.Generation)+" · "+w.What, " · "), w.For)
	if w.Remaining > 0 {
		text += fmt.Sprintf(" and %v s left", w.Remaining)
	}
	p.line("%s, %s: %v; %d missing", text, sizeText(w.Arrived, w.Size, w.AtLeast), w.Present, w.Missing)
	if len(w.Gone) > 0 {
		p.line("  gone: %v", w.Gone)
	}
	for _, by := range w.By {
		p.line("  by %s", by)
	}
	for _, r := range w.Ranks {
		text := fmt.Sprintf("rank %d", r.Rank)
		if r.Label != "" {
			text += " (" + r.Label + ")"
		}
		if r.LastSeen >= 0 {
			text += fmt.Sprintf(", seen %v s ago", r.LastSeen)
		}
		if r.Waits {
			text += ", which waits"
		}
		p.line("  for %s: %s", text, r.Doing)
	}
}

func (p *printer) group(g *status.Group) {
	p.line("group %s: %s, %s", jobText(g.Name, g.Run, g.Generation), sizeText(g.Present, g.Size, g.AtLeast), g.State)
	if g.Why != "" {
		p.line("  why: %s", g.Why)
	}
	if g.Phases != nil {
		p.line("  phases: %q, at least %.2f, %v s ago", g.Phases.Texts, g.Phases.Least, g.Phases.Ago)
	}
	for _, note := range g.Notes {
		p.line("  note: %s", note)
	}
	if p.ranks {
		p.line("  formed %v s ago, ended %v s ago", g.Age, g.Ended)
		for _, r := range g.Ranks {
			p.line("  rank %d %s: %s", r.Rank, r.State, r.Doing)
		}
	}
	if g.More > 0 {
		p.line("  %d more ranks", g.More)
	}
}
