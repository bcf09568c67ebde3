package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

type filesOptions struct {
	kib, rounds int
	slice       time.Duration
	asJSON      bool
	python, dir string
}

func runFiles(ctx context.Context, args []string, out io.Writer) (err error) {
	var o filesOptions
	f := flag.NewFlagSet("files", flag.ContinueOnError)
	f.IntVar(&o.kib, "kib", 65536, "size of a state, in KiB")
	f.IntVar(&o.rounds, "rounds", 15, "rounds; each way has one turn in each")
	f.DurationVar(&o.slice, "slice", 200*time.Millisecond, "length of a turn")
	f.StringVar(&o.python, "python", "python3", "measure torch too, if this interpreter has it; empty: do not")
	f.StringVar(&o.dir, "dir", os.TempDir(), "folder for files")
	f.BoolVar(&o.asJSON, "json", false, "print JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.kib < 1 || o.kib > 1<<20 || o.rounds < 1 {
		return fmt.Errorf("-kib: 1 to %d, and -rounds: one at least", 1<<20)
	}
	if o.dir, err = os.MkdirTemp(o.dir, "muster-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	rep := newReport("files", "p50 µs", "p90 µs", "÷ plain", "others %")
	rep.note("%s in 16 tensors; all is in the page cache when it is read; medians of the calmer half of %d rounds of %v; plain: the line before that has no ratio", bytesText(o.kib*kib), o.rounds, o.slice)
	g := &games{slice: o.slice, rounds: o.rounds}
	stop, err := o.invite(ctx, g, rep)
	defer stop()
	if err != nil {
		return err
	}
	if err := g.play(ctx); err != nil {
		return err
	}
	g.addRows(rep)
	return rep.write(out, o.asJSON)
}

func (o *filesOptions) invite(ctx context.Context, g *games, rep *report) (stop func(), err error) {
	stop = func() {}
	d, err := openDesk(ctx, o.dir, o.kib*kib)
	if err != nil {
		return stop, err
	}
	stop = func() { _ = d.space.Close() }
	add := func(who party, way, plain string) {
		g.events = append(g.events, &event{who: who, way: way, bytes: o.kib * kib, name: []string{way}, bases: map[string]string{"÷ plain": plain}})
	}
	plain := ""
	for _, w := range fileEvents {
		if w.plain {
			plain = w.name
		}
		add(d, w.name, plain)
	}
	if !hasTorch(ctx, o.python, rep) {
		return stop, nil
	}
	script, err := scriptIn(o.dir, filesScript)
	if err != nil {
		return stop, err
	}
	ctx, cancel := context.WithCancel(ctx)
	torch := &team{cancel: cancel}
	if err := torch.addPython(ctx, o.python, script, o.dir); err != nil {
		cancel()
		return stop, err
	}
	add(torch, "torch.save, fsync, rename", plainSync)
	add(torch, "torch.save", plainWrite)
	add(torch, "torch.load", plainRead)
	return func() { torch.stop(); _ = d.space.Close() }, nil
}

// desk is this process with a workspace and files.
type desk struct {
	dir     string
	space   *nfsws.Workspace
	weights map[string]*tensor.Tensor
	state   string // file of the latest state
	version nfsws.Version
	bytes   []byte // contents of that file
	room    []byte // a reusable read buffer
}

const manyTensors = 1000

func openDesk(ctx context.Context, dir string, n int) (d *desk, err error) {
	d = &desk{dir: dir, weights: map[string]*tensor.Tensor{}}
	for i := range 16 {
		t := tensor.New(tensor.BF16, n/16/2)
		for j := range t.Data {
			t.Data[j] = byte(i + j*j>>3)
		}
		d.weights[fmt.Sprintf("layer.%d.weight", i)] = t
	}
	if d.space, err = nfsws.Open(filepath.Join(dir, "states"), 0, &nfsws.Options{Generation: 1}); err != nil {
		return nil, err
	}
	if err := d.publish(ctx); err != nil {
		return nil, errors.Join(err, d.space.Close())
	}
	if d.bytes, err = os.ReadFile(d.state); err != nil {
		return nil, errors.Join(err, d.space.Close())
	}
	d.room = room(mib)
	small := map[string]*tensor.Tensor{}
	for i := range manyTensors {
		small[fmt.Sprintf("model.layers.%d.weight", i)] = tensor.New(tensor.F32, 64*(1+i%16))
	}
	err = errors.Join(safetensors.WriteFile(d.path("many"), small, nil), os.WriteFile(d.path("plain"), d.bytes, 0o600), safetensors.WriteFile(d.path("ours"), d.weights, nil))
	return d, err
}

func (d *desk) path(name string) string { return filepath.Join(d.dir, name+".safetensors") }

// pids returns nil: the party is this process.
func (d *desk) pids() []int { return nil }

func (d *desk) turn(ctx context.Context, name string, _, count int) ([]lap, time.Duration, error) {
	w := fileEvents[slices.IndexFunc(fileEvents, func(w fileEvent) bool { return w.name == name })]
	var l lap
	for range count {
		if err := d.prepare(name); err != nil {
			return nil, 0, err
		}
		began := time.Now()
		if err := w.call(d, ctx); err != nil {
			return nil, 0, err
		}
		l.Took = append(l.Took, micros(time.Since(began)))
	}
	return []lap{l}, 0, nil
}

// The ways that others are compared with. In all of them, a write that replaces a file frees the
// previous one.
const (
	plainWrite = "write, rename"
	plainSync  = "write, fsync, rename"
	plainRead  = "read, memory of its own"
	plainBlock = "read by the MiB"
	plainParse = "read of 1,000 tensors' file"
)

// fileEvent is an operation on files; if plain is set, the ones after it are compared with it.
type fileEvent struct {
	name  string
	plain bool
	call  func(d *desk, ctx context.Context) error
}

// prepare gives each call the same conditions: memory that was used before is free, and for the
// write without a sync there is no file to replace, since ext4 syncs a file that replaces another
// one.
func (d *desk) prepare(name string) error {
	runtime.GC()
	if name != plainWrite {
		return nil
	}
	return os.Remove(d.path("plain"))
}

var fileEvents = []fileEvent{
	{plainWrite, true, func(d *desk, _ context.Context) error { return d.write(false) }},
	{plainSync, true, func(d *desk, _ context.Context) error { return d.write(true) }},
	{"safetensors.WriteFile", false, func(d *desk, _ context.Context) error {
		return safetensors.WriteFile(d.path("ours"), d.weights, nil)
	}},
	{"nfsws: publish", false, (*desk).publish},
	{plainRead, true, func(d *desk, _ context.Context) error { _, err := os.ReadFile(d.state); return err }},
	{"safetensors.Load", false, func(d *desk, _ context.Context) error { return closed(safetensors.Load(d.state)) }},
	{"nfsws: read and verify", false, (*desk).read},
	{plainBlock, true, (*desk).blocks},
	{"nfsws: view and verify", false, (*desk).view},
	{"safetensors.Open, and touch", false, (*desk).touch},
	{"safetensors.Open", false, func(d *desk, _ context.Context) error { return closed(safetensors.Open(d.state)) }},
	{plainParse, true, func(d *desk, _ context.Context) error { _, err := os.ReadFile(d.path("many")); return err }},
	{"safetensors.Open of 1,000 tensors", false, func(d *desk, _ context.Context) error {
		return closed(safetensors.Open(d.path("many")))
	}},
}

func closed(f *safetensors.File, err error) error {
	if err != nil {
		return err
	}
	return f.Close()
}

// write writes a plain file of the same bytes.
func (d *desk) write(sync bool) error {
	name := d.path("plain")
	f, err := os.Create(name + ".tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(d.bytes)
	if sync {
		err = errors.Join(err, f.Sync())
	}
	return errors.Join(err, f.Close(), os.Rename(name+".tmp", name))
}

func (d *desk) publish(ctx context.Context) (err error) {
	if d.version, err = d.space.Write(ctx, []byte(`{"layers": 16}`), d.weights); err != nil {
		return err
	}
	names, err := filepath.Glob(filepath.Join(d.dir, "states", "*", fmt.Sprintf("rank-0.*%d-*.safetensors", d.version.Sequence)))
	if err != nil || len(names) != 1 {
		return fmt.Errorf("the state's file is not there: %v: %w", names, err)
	}
	d.state = names[0]
	return nil
}

func (d *desk) read(ctx context.Context) error {
	s, err := d.space.Read(ctx, 0)
	if err == nil && s.Weights.Size() != int64(len(d.bytes)) {
		err = errors.New("the state is not what was published")
	}
	return err
}

func (d *desk) blocks(context.Context) error {
	f, err := os.Open(d.state)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		switch _, err := io.ReadFull(f, d.room); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return err
		}
	}
}

func (d *desk) view(ctx context.Context) error {
	v, err := d.space.View(ctx, 0, d.version)
	if err != nil {
		return err
	}
	defer v.Close()
	for name, info := range v.Header.Infos() {
		size := info.End - info.Begin
		for off := int64(0); off < size; off += int64(len(d.room)) {
			if _, err := v.ReadAt(name, d.room[:min(size-off, int64(len(d.room)))], off); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
		}
	}
	return nil
}

func (d *desk) touch(context.Context) error {
	f, err := safetensors.Open(d.state)
	if err != nil {
		return err
	}
	for _, t := range f.All() {
		touched(t.Data, d.room)
	}
	return f.Close()
}
