package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/spf13/cobra"
)

// merging is what gather was told.
type merging struct {
	spec    gatherSpec
	dir     string
	timeout time.Duration
	page    pageFlags
	log     io.Writer
}

const gatherGrace = 5 * time.Second

func newGather() *cobra.Command {
	o := &merging{}
	cmd := &cobra.Command{
		Use:   "gather -o OUT [--axis NAME=AXIS …] SHARD…",
		Short: "Merge the shards of a model into one safetensors file",
		Long: `Merge the shards of a model into one safetensors file: tensor-parallel shards along axes, pipeline
stages by names, both at once. SHARD is a .safetensors file, the index of several, or a directory
with one of them. Each is opened by a process of its own; rank 0, whose shard is the first,
writes OUT as the others give. A block at a time is in memory.

A tensor that --axis names is joined along that axis, from all shards that have it, in the order
of the command line. In NAME, * is any text; an exact name wins over those, and of several the
first that fits counts. Any other tensor may be in one shard, or be the same in several, to the
last byte: a replica that has diverged is an error.

Metadata is kept where all files that have a key agree on its value. The other keys are left out,
with a note.

OUT appears when it is whole and on the disk, and nothing is left of it otherwise. One that is
there is not overwritten unless --force says so; never if it is a file of a shard.`,
		Example: `  muster gather -o model.safetensors --axis '*.q_proj.weight=0' --axis '*.o_proj.weight=1' rank-*.safetensors
  muster gather -o whole.safetensors stage-0/ stage-1/
  muster gather -o one.safetensors model.safetensors.index.json   # several files become one`,
		Args: operands("SHARD…"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.spec.Shards = args
			if err := o.check(cmd); err != nil {
				return err
			}
			o.log = cmd.ErrOrStderr()
			return o.run(cmd.OutOrStdout())
		},
	}
	cmd.DisableFlagsInUseLine = true
	cmd.ValidArgsFunction = completeModels
	f := cmd.Flags()
	f.StringVarP(&o.spec.Out, "output", "o", "", "`file` to write; required")
	f.Var(&o.spec.Axes, "axis", "join tensors of this name along this axis; may be repeated")
	f.StringVar(&o.dir, "dir", "", "let the tensors go through this `directory`, instead of from process to process")
	f.BoolVar(&o.spec.Verify, "verify", false, "with checksums")
	f.BoolVar(&o.spec.Force, "force", false, "overwrite OUT if it is there")
	f.DurationVar(&o.timeout, "timeout", 0, "for all of it; 0 is no limit")
	o.page.register(cmd, "")
	return cmd
}

func (o *merging) check(cmd *cobra.Command) error {
	switch {
	case o.spec.Out == "":
		return usagef(cmd, "where to write? Give -o OUT")
	case o.spec.Out == "-":
		return usagef(cmd, "-o -: OUT is a file, which appears when it is whole")
	case o.timeout < 0:
		return usagef(cmd, "--timeout must not be negative")
	case cmd.Flags().Changed("dir") && o.dir == "":
		return usagef(cmd, "--dir is empty")
	}
	return o.page.check(cmd, os.Getenv("MUSTER_SECRET_FILE") != "", false, false)
}

// run looks at everything that can be wrong before it starts processes.
func (o *merging) run(out io.Writer) error {
	start := time.Now()
	if err := o.look(); err != nil {
		return err
	}
	if o.dir != "" {
		dir, err := os.MkdirTemp(o.dir, "muster-gather-")
		if err != nil {
			return fmt.Errorf("--dir %s: %w", o.dir, cause(err))
		}
		defer os.RemoveAll(dir) // what a killed rank has left
		o.spec.Dir = dir
	}
	o.spec.Part = filepath.Join(filepath.Dir(o.spec.Out), ".muster-"+rand.Text()+".part")
	defer os.Remove(o.spec.Part) // it is there only if rank 0 was killed
	done, err := o.launch()
	if err != nil {
		return err
	}
	took := time.Since(start)
	_, err = fmt.Fprintf(out, "%s: %s, %s in %s, %s GB/s\n", printable(o.spec.Out), count(int64(done.Tensors), "tensor"), count(done.Total, "byte"),
		short(took), digits(float64(done.Total)/1e9/took.Seconds()))
	return err
}

// look opens all shards: this process can say what is wrong before there are any others.
func (o *merging) look() error {
	models, err := o.spec.open()
	if err != nil {
		return err
	}
	defer closeModels(models)
	if err := o.distinct(models); err != nil {
		return err
	}
	if _, err := o.spec.Axes.of(models); err != nil {
		return err
	}
	if _, differ := mergedMetadata(models); len(differ) > 0 {
		for i, k := range differ {
			differ[i] = preview([]byte(k))
		}
		_, _ = fmt.Fprintf(o.log, "metadata left out, since the shards differ: %s\n", strings.Join(differ, ", "))
	}
	return nil
}

// distinct refuses a file that is there twice, and an OUT that may not be written.
func (o *merging) distinct(models []*model) error {
	out, err := os.Stat(o.spec.Out)
	if err == nil && out.IsDir() {
		return &exit{code: exitFailed, text: o.spec.Out + " is a directory: name a file in it"}
	}
	for rank, m := range models {
		for file := range m.Files() {
			path := m.pathOf(file)
			st, err := os.Stat(path)
			if err != nil {
				return o.spec.of(rank, err)
			}
			if out != nil && os.SameFile(st, out) {
				return &exit{code: exitFailed, text: fmt.Sprintf("-o %s: that is a file of %s, to be read: name another one", o.spec.Out, o.spec.rank(rank))}
			}
		}
	}
	if _, err := os.Lstat(o.spec.Out); err == nil && !o.spec.Force {
		return &exit{code: exitFailed, text: o.spec.Out + " is there already: name another file, or add --force to overwrite it"}
	}
	return o.twice(models)
}

// twice refuses a file that two ranks have.
func (o *merging) twice(models []*model) error {
	type owner struct {
		os.FileInfo
		rank int
	}
	var all []owner
	for rank, m := range models {
		for file := range m.Files() {
			st, err := os.Stat(m.pathOf(file))
			if err != nil {
				return o.spec.of(rank, err)
			}
			for _, other := range all {
				if other.rank != rank && os.SameFile(st, other.FileInfo) {
					return fmt.Errorf("%s and %s are the same file: name it once", o.spec.rank(other.rank), o.spec.rank(rank))
				}
			}
			all = append(all, owner{st, rank})
		}
	}
	return nil
}

// launch starts the ranks and waits for their end.
func (o *merging) launch() (gatherReport, error) {
	none := gatherReport{}
	p := place{masterAddr: "127.0.0.1"}
	if err := p.open(); err != nil {
		return none, err
	}
	defer p.close()
	numbers := new(rankNumbers)
	shown, err := p.show(&o.page, o.log, numbers)
	if err != nil {
		return none, err
	}
	defer shown.close()
	self, err := os.Executable()
	if err != nil {
		return none, err
	}
	o.spec.Numbers = o.page.addr != ""
	spec, err := json.Marshal(o.spec)
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if o.timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	sigs := catch()
	defer sigs.stop()
	n := len(o.spec.Shards)
	said, wrong := newReports[gatherReport](context.Background()), new(complaints)
	job, err := launch.Start(ctx, launch.Spec{
		N: n, Path: self, Args: []string{"gather-rank", string(spec)}, Tether: true, Grace: gatherGrace,
		Env:    func(rank int) []string { return p.environ(rank, n) },
		Output: said, ErrOutput: wrong, Prefix: func(int) string { return "" },
	})
	if err != nil {
		return none, o.explain(err, nil, wrong)
	}
	heard := make(chan gatherReports)
	go func() { heard <- listen(job, said.values, numbers, newBar(o.log)) }()
	err = sigs.passOn(job, gatherGrace)
	all := <-heard
	if all.done != nil { // OUT is there, whatever came afterwards
		return *all.done, nil
	}
	return none, o.explain(err, all.failed, wrong)
}

// gatherReports is what the ranks said.
type gatherReports struct {
	done   *gatherReport // rank 0's, when OUT is there
	failed []gatherReport
}

// listen takes what ranks say until the job has ended.
func listen(job *launch.Job, said <-chan gatherReport, numbers *rankNumbers, b *bar) (all gatherReports) {
	take := func(r gatherReport) {
		switch {
		case r.Failure != nil:
			all.failed = append(all.failed, r)
		case r.Finished:
			all.done = &r
		case r.Numbers != "":
			numbers.take(r.Rank, r.Numbers)
		default:
			b.show(r.Done, r.Total)
		}
	}
	defer b.clear()
	for {
		select {
		case r := <-said:
			take(r)
		case <-job.Done():
			for len(said) > 0 {
				take(<-said)
			}
			return all
		}
	}
}

// explain says why there is no OUT, with the shards of the ranks that it names.
func (o *merging) explain(err error, failed []gatherReport, wrong *complaints) error {
	e, ok := errors.AsType[*launch.ExitError](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return &exit{code: exitTimeout, err: err, text: fmt.Sprintf("timed out after %v, and %s is not written; --timeout gives it more time", o.timeout, o.spec.Out)}
	case !ok && err != nil:
		return wrong.add(err)
	case !ok:
		return wrong.add(errors.New("all ranks ended, and rank 0 did not say that it is done"))
	case endedBy(e) != 0:
		sig := endedBy(e)
		return &exit{code: 128 + int(sig), err: err, text: fmt.Sprintf("ended by signal %d (%v): %s is not written", sig, sig, o.spec.Out)}
	}
	if e.Signal == 0 {
		if f := worst(failed); f != nil {
			return &exit{code: exitFailed, err: err, text: o.spec.annotate(f.text())}
		}
	}
	text := e.Error()
	if e.Signal != 0 {
		text += fmt.Sprintf(" (%v)", e.Signal)
	} else if said := wrong.first(); said != "" {
		text += ": " + said
	}
	return &exit{code: exitFailed, err: err, text: o.spec.annotate(text)}
}
