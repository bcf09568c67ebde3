package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/muster-pg/muster/cmd/muster/internal/tensorstats"
	"github.com/spf13/cobra"
)

// listing holds the options of tensors.
type listing struct {
	noStats, asJSON bool
	match           []string
	sort            string
}

func newTensors() *cobra.Command {
	o := &listing{}
	cmd := &cobra.Command{
		Use:   "tensors FILE…",
		Short: "List the tensors of safetensors files, and how their values are spread",
		Long: `List the tensors of safetensors files: name, dtype, shape, size, and how the values are spread.
FILE is a .safetensors file, the index of a model in several files, as
model.safetensors.index.json, or a directory with one of them.

MIN to STD, and the picture between MIN and MAX, are about the finite elements; NaN, infinities
and zeros are counted behind them. STD is of all elements, not of a sample: numpy has the same,
torch.std(unbiased=False) too. Complex tensors have none of this. Where the terminal is narrow,
columns are left out.

Files are mapped, and read in blocks, several tensors at a time: a model may be larger than
memory. With --no-stats only headers are read. In a GLOB, * is any text; quote it for the shell.`,
		Example: `  muster tensors model.safetensors
  muster tensors checkpoint/ --match '*.q_proj.weight' --match '*norm*'
  muster tensors model.safetensors.index.json --no-stats --sort size
  muster tensors model.safetensors --json | jq -r 'select(.nan > 0) | .name'   # one object a line`,
		Args: operands("FILE…"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	cmd.ValidArgsFunction = completeModels
	f := cmd.Flags()
	f.BoolVar(&o.noStats, "no-stats", false, "print the headers only, without reading the data")
	f.BoolVar(&o.asJSON, "json", false, "one JSON object a line, for each tensor")
	f.StringArrayVar(&o.match, "match", nil, "only tensors whose name a `GLOB` fits; may be repeated")
	f.StringVar(&o.sort, "sort", "file", "`order`: name, size (largest first), or file: as they lie there")
	return cmd
}

func (o *listing) run(cmd *cobra.Command, paths []string) error {
	if !slices.Contains([]string{"name", "size", "file"}, o.sort) {
		return usagef(cmd, "--sort %q: it is name, size or file", o.sort)
	}
	models, err := openModels(paths)
	if err != nil {
		return err
	}
	defer closeModels(models)
	lists, err := o.lists(models)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	workers := o.measure(ctx, slices.Concat(lists...))
	defer workers() // the workers read the models, which are closed next
	defer cancel()
	out := bufio.NewWriter(cmd.OutOrStdout())
	if o.asJSON {
		return o.printJSON(out, slices.Concat(lists...))
	}
	for i, m := range models {
		if len(models) > 1 {
			fmt.Fprintf(out, "%s%s\n", strings.Repeat("\n", min(i, 1)), inkOf(cmd.OutOrStdout()).bold(printable(m.path)))
		}
		if err := newTensorTable(cmd.OutOrStdout(), out, lists[i], o.noStats).print(m); err != nil {
			return err
		}
	}
	return nil
}

// lists returns the rows of each model, in the order in which they are printed.
func (o *listing) lists(models []*model) (lists [][]*tensorRow, err error) {
	used := map[string]bool{}
	for _, m := range models {
		rows := rowsOf(m, o.match, used)
		switch o.sort {
		case "name":
			slices.SortFunc(rows, func(a, b *tensorRow) int { return cmp.Compare(a.name, b.name) })
		case "size":
			slices.SortStableFunc(rows, func(a, b *tensorRow) int { return cmp.Compare(b.bytes(), a.bytes()) })
		}
		lists = append(lists, rows)
	}
	for _, p := range o.match {
		if !used[p] {
			return nil, &exit{code: exitFailed, text: fmt.Sprintf("--match %s: no tensor has a name that this fits; without --match, all are listed", printable(p))}
		}
	}
	return lists, nil
}

// measure starts to compute the statistics of the rows, in their order, on all cores. It returns a
// function that waits until this is done.
func (o *listing) measure(ctx context.Context, rows []*tensorRow) (wait func()) {
	todo, ended := make(chan *tensorRow), make(chan struct{})
	workers := runtime.GOMAXPROCS(0)
	for range workers {
		go func() {
			defer func() { ended <- struct{}{} }()
			e := new(tensorstats.Reader)
			for r := range todo {
				r.measure(ctx, e, o.noStats)
			}
		}()
	}
	go func() {
		defer close(todo)
		for _, r := range rows {
			todo <- r // a worker receives it soon, even after ctx has ended
		}
	}()
	return func() {
		for range workers {
			<-ended
		}
	}
}

func (r *tensorRow) measure(ctx context.Context, e *tensorstats.Reader, noStats bool) {
	defer close(r.done)
	if noStats || !tensorstats.Ordered(r.info.DType) {
		return
	}
	t, err := r.from.Tensor(r.name)
	if err == nil {
		r.stats, err = tensorstats.Of(ctx, e, t)
	}
	if err != nil {
		r.err = fmt.Errorf("%s: tensor %q: %w", r.file, r.name, err)
	}
}

// tensorJSON is the JSON form of a tensor.
type tensorJSON struct {
	File       string `json:"file"`
	Name       string `json:"name"`
	DType      string `json:"dtype"`
	Shape      []int  `json:"shape"`
	Parameters int64  `json:"parameters"`
	Bytes      int64  `json:"bytes"`
	*tensorstats.Stats
}

func (o *listing) printJSON(out *bufio.Writer, rows []*tensorRow) error {
	enc := json.NewEncoder(plainJSON{out})
	for _, r := range rows {
		<-r.done
		if r.err != nil {
			return flushed(out, r.err)
		}
		j := tensorJSON{r.file, r.name, r.info.DType.String(), r.info.Shape, r.elements, r.bytes(), r.stats}
		if j.Shape == nil {
			j.Shape = []int{}
		}
		if err := enc.Encode(j); err != nil {
			return err
		}
	}
	return out.Flush()
}

// flushed flushes out and returns err, or the error of the flush.
func flushed(out *bufio.Writer, err error) error {
	if e := out.Flush(); e != nil {
		return e
	}
	return err
}

// flushWhen flushes out if row r is not ready, before the caller waits for it.
func flushWhen(out *bufio.Writer, r *tensorRow) error {
	select {
	case <-r.done:
		return nil
	default:
	}
	err := out.Flush()
	<-r.done
	return err
}
