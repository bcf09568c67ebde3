package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/pgroup"
	"github.com/spf13/cobra"
)

// gatherSpec is what ranks are told.
type gatherSpec struct {
	Out    string    `json:"out"`
	Part   string    `json:"part"` // its name until it is whole, if it needs one
	Force  bool      `json:"force"`
	Shards []string  `json:"shards"` // by rank
	Axes   axisRules `json:"axes"`
	Dir    string    `json:"dir"`
	Verify bool      `json:"verify"`

	Numbers bool `json:"numbers"` // are to be reported
}

// gatherReport is what a rank says.
type gatherReport struct {
	Rank     int            `json:"rank"`
	Done     int64          `json:"done,omitempty"` // bytes of Total that are written
	Total    int64          `json:"total,omitempty"`
	Tensors  int            `json:"tensors,omitempty"`
	Finished bool           `json:"finished,omitempty"`
	Numbers  string         `json:"numbers,omitempty"` // of what it does
	Failure  *gatherFailure `json:"failure,omitempty"`
}

// gatherFailure is why a rank could not do its part.
type gatherFailure struct {
	Text   string `json:"text"`
	By     int    `json:"by"`     // the rank at fault; -1: none in particular
	Second bool   `json:"second"` // it was ended because of something else
}

// open opens all shards.
func (s *gatherSpec) open() (models []*model, err error) {
	for rank, path := range s.Shards {
		m, err := openModel(path)
		if err != nil {
			closeModels(models)
			return nil, s.of(rank, err)
		}
		models = append(models, m)
	}
	return models, nil
}

// rank names a rank and its shard.
func (s *gatherSpec) rank(rank int) string { return s.annotate("rank " + strconv.Itoa(rank)) }

// of is err, of a rank.
func (s *gatherSpec) of(rank int, err error) error {
	return &exit{code: exitFailed, err: err, text: fmt.Sprintf("rank %d: %s", rank, strings.TrimPrefix(err.Error(), "safetensors: "))}
}

var ranksInText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\brank (\d+)\b`)

// annotate puts its shard behind the first mention of each rank, unless the text has it anyway.
func (s *gatherSpec) annotate(text string) string {
	seen := map[int]bool{}
	return ranksInText.ReplaceAllStringFunc(text, func(found string) string {
		number, ok := strings.CutPrefix(found, "rank ")
		rank, err := strconv.Atoi(number)
		if !ok || err != nil || rank >= len(s.Shards) || seen[rank] {
			return found
		}
		seen[rank] = true
		return fmt.Sprintf("%s (%s)", found, s.Shards[rank])
	})
}

func newGatherRank() *cobra.Command {
	return &cobra.Command{
		Use: "gather-rank SPEC", Hidden: true, Short: "One of the processes of gather", Args: operands("SPEC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			launch.ExitWithParent()
			var spec gatherSpec
			if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
				return usagef(cmd, "SPEC: %v", err)
			}
			cfg, err := pgroup.FromEnv()
			if err != nil {
				return err
			}
			if cfg.Rank >= len(spec.Shards) {
				return usagef(cmd, "SPEC: rank %d has no shard", cfg.Rank)
			}
			p := &gatherProcess{spec: spec, cfg: cfg, out: cmd.OutOrStdout()}
			return p.run()
		},
	}
}

// gatherProcess is one rank of gather.
type gatherProcess struct {
	spec gatherSpec
	cfg  pgroup.Config
	out  io.Writer
}

// noDeadline is a deadline all the same: verbs without one would take the group's timeout.
const noDeadline = 365 * 24 * time.Hour

// signalled is a signal that asked this process to end.
type signalled struct{ syscall.Signal }

func (s signalled) Error() string { return fmt.Sprintf("ended by signal %d", s.Signal) }

// politely are the signals that ask a process to end.
var politely = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

func (p *gatherProcess) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), noDeadline)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	signal.Ignore(syscall.SIGXFSZ) // what is too large for a limit is an error of the write
	got := make(chan os.Signal, 1)
	signal.Notify(got, politely...)
	defer signal.Stop(got)
	go func() {
		select {
		case s := <-got:
			end(signalled{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	err := p.part(ctx)
	if err == nil {
		return nil
	}
	if s, ok := errors.AsType[signalled](context.Cause(ctx)); ok && cancelled(err) {
		return &exit{code: 128 + int(s.Signal), err: err}
	}
	f := failureOf(err)
	if e := report(p.out, gatherReport{Rank: p.cfg.Rank, Failure: &f}); e != nil {
		return e
	}
	return &exit{code: exitFailed, err: err} // it has been said
}

// cancelled reports whether err is that this process was to end. One that came before is to be told all the same: the launcher
// ends the other ranks when it sees the first one fail, which need not be the one at fault.
func cancelled(err error) bool {
	if _, ok := errors.AsType[*cutOffError](err); ok {
		return false
	}
	_, ok := errors.AsType[signalled](err)
	return ok || errors.Is(err, context.Canceled)
}

// part is this rank's part.
func (p *gatherProcess) part(ctx context.Context) error {
	m, err := openModel(p.spec.Shards[p.cfg.Rank])
	if err != nil {
		return p.spec.of(p.cfg.Rank, err)
	}
	defer m.Close()
	if err := p.give(ctx, m); err != nil {
		return errors.Join(m.cutOff(p.cfg.Rank), err)
	}
	return nil
}

// give forms the group, and gives what this rank has.
func (p *gatherProcess) give(ctx context.Context, m *model) error {
	if p.spec.Numbers {
		sink, stop, err := countHere(2*reportEvery, func(text string) error { return report(p.out, gatherReport{Rank: p.cfg.Rank, Numbers: text}) })
		if err != nil {
			return err
		}
		defer stop()
		p.cfg.Trace = sink
	}
	g, err := pgroup.Create(ctx, p.cfg)
	if err != nil {
		return err
	}
	defer g.Close()
	ga, err := gather.Open(ctx, g, &gather.Options{Dir: p.spec.Dir, Verify: p.spec.Verify})
	if err != nil {
		return err
	}
	defer ga.Close()
	ranks := make([]int, g.Size())
	for i := range ranks {
		ranks[i] = i
	}
	ts := maps.Collect(m.All())
	if p.cfg.Rank == 0 {
		return p.write(ctx, func(w io.Writer, how gather.Merge) error { return ga.ConcatTo(ctx, w, ranks, how, ts) })
	}
	return ga.ConcatTo(ctx, nil, ranks, gather.Merge{}, ts)
}

// write is what rank 0 does more.
func (p *gatherProcess) write(ctx context.Context, concat func(w io.Writer, how gather.Merge) error) error {
	axes, metadata, err := p.plan()
	if err != nil {
		return err
	}
	out, err := createOutput(p.spec.Out, p.spec.Part, p.spec.Force)
	if err != nil {
		return err
	}
	defer out.discard() // unless it is committed
	meter := &writeMeter{report: func(r gatherReport) { _ = report(p.out, r) }}
	m := &merged{ctx: ctx, w: out, meter: meter}
	const small = 1 << 20 // runs along an inner axis are short
	buffer := bufio.NewWriterSize(m, small)
	err = concat(buffer, gather.Merge{Axis: axes, Metadata: metadata, Begin: m.begin})
	if err == nil {
		err = buffer.Flush()
	}
	if m.err != nil { // the others' errors follow from it
		return m.err
	}
	if err == nil {
		err = out.commit()
	}
	if err != nil {
		return err
	}
	return report(p.out, gatherReport{Finished: true, Tensors: m.tensors, Total: m.total})
}

// plan is what the launcher has looked at, made again: it may be more than fits in an argument.
func (p *gatherProcess) plan() (axes map[string]int, metadata map[string]string, err error) {
	models, err := p.spec.open()
	if err != nil {
		return nil, nil, err
	}
	defer closeModels(models)
	metadata, _ = mergedMetadata(models)
	axes, err = p.spec.Axes.of(models)
	return axes, metadata, err
}

// writeMeter reports how much has been written, a few times a second.
type writeMeter struct {
	report      func(gatherReport)
	done, total int64
	last        time.Time
}

const reportEvery = 100 * time.Millisecond

func (w *writeMeter) begin(total int64) {
	w.total = total
	w.report(gatherReport{Total: total})
}

func (w *writeMeter) add(n int) {
	w.done += int64(n)
	if now := time.Now(); now.Sub(w.last) >= reportEvery || w.done == w.total {
		w.last = now
		w.report(gatherReport{Done: w.done, Total: w.total})
	}
}

// failureOf is err for the launcher, which knows this rank's part in it.
func failureOf(err error) gatherFailure {
	if e, ok := errors.AsType[*cutOffError](err); ok {
		return gatherFailure{Text: e.Error(), By: e.rank}
	}
	re, ok := errors.AsType[*pgroup.RankError](err)
	if !ok || re.Failure == nil {
		return gatherFailure{Text: err.Error(), By: -1}
	}
	f := gatherFailure{Text: re.Reason, By: re.By, Second: errors.Is(err, context.Canceled)}
	if len(re.Lost) > 0 {
		f.By = re.Lost[0]
	}
	if f.Text == "" || len(re.Lost)+len(re.Left)+len(re.Missing) > 0 {
		_, f.Text, _ = strings.Cut(re.Error(), fmt.Sprintf(" on rank %d of %d: ", re.Rank, re.Size))
	}
	return f
}

// worst is the failure to tell: that of the rank at fault, or else of the lowest rank.
func worst(failed []gatherReport) *gatherReport {
	var best *gatherReport
	rate := func(r *gatherReport) int {
		switch {
		case r.Failure.Second:
			return 0
		case r.Failure.By == r.Rank:
			return 3
		case r.Rank == 0:
			return 2
		}
		return 1
	}
	for i := range failed {
		if r := &failed[i]; best == nil || rate(r) > rate(best) {
			best = r
		}
	}
	return best
}

// text is a failure with the rank at fault.
func (r *gatherReport) text() string {
	f := r.Failure
	if f.By < 0 || strings.Contains(f.Text, "rank "+strconv.Itoa(f.By)) {
		return f.Text
	}
	return fmt.Sprintf("rank %d: %s", f.By, f.Text)
}

// endedBy is the signal that asked a rank to end; 0 if there was none.
func endedBy(e *launch.ExitError) syscall.Signal {
	for _, s := range politely {
		if s := s.(syscall.Signal); e.Signal == s || e.Code == 128+int(s) {
			return s
		}
	}
	return 0
}
