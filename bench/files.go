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
	turns
	kib         int
	python, dir string
}

func runFiles(ctx context.Context, args []string, out io.Writer) (err error) {
	var o filesOptions
	f := flag.NewFlagSet("files", flag.ContinueOnError)
	f.IntVar(&o.kib, "kib", 65536, "size of a state, in KiB")
	f.StringVar(&o.python, "python", "python3", "measure torch too, if this interpreter has it; empty: do not")
	f.StringVar(&o.dir, "dir", os.TempDir(), "folder for files")
	o.flags(f, 15, 200*time.Millisecond)
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
	rep := newReport("files", p50Column, "p90 µs", "÷ plain", othersColumn)
	rep.note("%s in 16 tensors; all is in the page cache when it is read; plain: the line before that has no ratio", bytesText(o.kib*kib))
	d, err := openDesk(ctx, o.dir, o.kib*kib)
	if err != nil {
		return err
	}
	defer d.space.Close()
	plain := ""
	for _, w := range fileEvents {
		if w.plain {
			plain = w.name
		}
		o.add(d, w.name, plain)
	}
	if hasTorch(ctx, o.python, rep) {
		ctx, cancel := context.WithCancel(ctx)
		torch := &team{cancel: cancel}
		defer torch.stop()
		if err := torch.addPython(ctx, o.python, filesScript, o.dir); err != nil {
			return err
		}
		o.pids = torch.pids()
		o.add(torch, "torch.save, fsync, rename", plainSync)
		o.add(torch, "torch.load", plainRead)
	}
	return o.run(ctx, rep, out)
}

func (o *filesOptions) add(who party, way, plain string) {
	e := partyEvent(who, way, o.kib*kib, false, way)
	e.bases = map[string]ratio{"÷ plain": {p50Column, wayKey(plain, o.kib*kib)}}
	o.events = append(o.events, e)
}

// desk is this process with a workspace and files.
type desk struct {
	dir     string
	space   *nfsws.Workspace
	weights map[string]*tensor.Tensor
	state   string // file of the latest state
	version nfsws.Version
	bytes   []byte // contents of that file
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
	small := map[string]*tensor.Tensor{}
	for i := range manyTensors {
		small[fmt.Sprintf("model.layers.%d.weight", i)] = tensor.New(tensor.F32, 64*(1+i%16))
	}
	err = errors.Join(safetensors.WriteFile(d.path("many"), small, nil), os.WriteFile(d.path("plain"), d.bytes, 0o600), safetensors.WriteFile(d.path("ours"), d.weights, nil))
	return d, err
}

func (d *desk) path(name string) string { return filepath.Join(d.dir, name+".safetensors") }

func (d *desk) turn(ctx context.Context, name string, _, count int) ([]lap, time.Duration, error) {
	w := fileEvents[slices.IndexFunc(fileEvents, func(w fileEvent) bool { return w.name == name })]
	var l lap
	for range count {
		runtime.GC() // so that memory that was used before is free
		began := time.Now()
		if err := w.call(d, ctx); err != nil {
			return nil, 0, err
		}
		l.Took = append(l.Took, micros(time.Since(began)))
	}
	return []lap{l}, 0, nil
}

// The ways that others are compared with. A write that replaces a file frees the previous one.
const (
	plainSync  = "write, fsync, rename"
	plainRead  = "read, memory of its own"
	plainParse = "read of 1,000 tensors' file"
)

// fileEvent is an operation on files; if plain is set, the ones after it are compared with it.
type fileEvent struct {
	name  string
	plain bool
	call  func(d *desk, ctx context.Context) error
}

var fileEvents = []fileEvent{
	{plainSync, true, (*desk).write},
	{"safetensors.WriteFile", false, func(d *desk, _ context.Context) error {
		return safetensors.WriteFile(d.path("ours"), d.weights, nil)
	}},
	{"nfsws: publish", false, (*desk).publish},
	{plainRead, true, func(d *desk, _ context.Context) error { _, err := os.ReadFile(d.state); return err }},
	{"safetensors.Load", false, func(d *desk, _ context.Context) error { return closed(safetensors.Load(d.state)) }},
	{"nfsws: read and verify", false, (*desk).read},
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
func (d *desk) write(context.Context) error {
	name := d.path("plain")
	f, err := os.Create(name + ".tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(d.bytes)
	return errors.Join(err, f.Sync(), f.Close(), os.Rename(name+".tmp", name))
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
