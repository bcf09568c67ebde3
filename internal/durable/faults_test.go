package durable_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/internal/journal"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/wire"
)

// The errors of a step that fails.
var (
	errFault   = errors.New("this step fails")
	errCrashed = errors.New("the process has crashed")
)

// faults injects failures between a process and its files. They are a function of the seed. Each
// process has its own.
type faults struct {
	mu      sync.Mutex // protects the fields below
	rng     *rand.Rand
	left    int   // steps until the next fault
	kind    fault // kind of the next fault
	crashed bool
}

type fault int

const (
	none        fault = iota
	before            // the step fails without effect
	after             // the step takes effect, and fails: an unknown outcome
	delay             // the step is slow: others overtake it
	crashBefore       // the process crashes before the step
	crashAfter        // the process crashes after the step
	kinds
)

// step runs a step on the files, a change or a read.
func (f *faults) step(do func() error) error {
	kind := f.next()
	switch kind {
	case before:
		return errFault
	case crashBefore:
		return errCrashed
	case delay:
		<-time.After(time.Millisecond)
	}
	err := do()
	switch {
	case kind == crashAfter:
		return errCrashed
	case kind == after && err == nil:
		return errFault
	}
	return err
}

// next returns the fault of the next step.
func (f *faults) next() (kind fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return crashBefore
	}
	if f.left--; f.left == 0 {
		kind = f.kind
		f.crashed = kind == crashBefore || kind == crashAfter
		f.arm()
	}
	return kind
}

// arm chooses the next fault. The caller holds mu.
func (f *faults) arm() {
	f.kind, f.left = fault(f.rng.IntN(int(kinds))), 1+f.rng.IntN(40)
	if f.rng.IntN(3) == 0 {
		f.left += f.rng.IntN(400)
	}
}

// crash makes all later steps fail.
func (f *faults) crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashed = true
}

// faultyFS is a file system whose steps go through faults.
type faultyFS struct {
	journal.FS
	f *faults
}

func (s faultyFS) Create(name string) (journal.File, error) { return s.file(s.FS.Create, name) }

func (s faultyFS) Open(name string) (journal.File, error) { return s.file(s.FS.Open, name) }

func (s faultyFS) file(open func(string) (journal.File, error), name string) (f journal.File, err error) {
	err = s.f.step(func() (err error) {
		f, err = open(name)
		return err
	})
	if err != nil {
		if f != nil {
			_ = f.Close()
		}
		return nil, err
	}
	return faultyFile{f, s.f}, nil
}

func (s faultyFS) Remove(name string) error {
	return s.f.step(func() error { return s.FS.Remove(name) })
}

func (s faultyFS) Rename(from, to string) error {
	return s.f.step(func() error { return s.FS.Rename(from, to) })
}

func (s faultyFS) SyncDir(dir string) error {
	return s.f.step(func() error { return s.FS.SyncDir(dir) })
}

func (s faultyFS) ReadDir(dir string) (names []string, err error) {
	err = s.f.step(func() (err error) {
		names, err = s.FS.ReadDir(dir)
		return err
	})
	return names, err
}

// faultyFile is a file of a faultyFS.
type faultyFile struct {
	journal.File
	f *faults
}

func (x faultyFile) ReadAt(b []byte, at int64) (n int, err error) {
	err = x.f.step(func() (err error) {
		n, err = x.File.ReadAt(b, at)
		return err
	})
	return n, err
}

func (x faultyFile) WriteAt(b []byte, at int64) (n int, err error) {
	err = x.f.step(func() (err error) {
		n, err = x.File.WriteAt(b, at)
		return err
	})
	return n, err
}

func (x faultyFile) Truncate(size int64) error {
	return x.f.step(func() error { return x.File.Truncate(size) })
}

func (x faultyFile) Sync() error { return x.f.step(x.File.Sync) }

// TestFaults checks that a store keeps its guarantees while steps on its files fail before or after
// they take effect, steps overtake each other, and processes crash between any two steps. Acknowledged
// changes are there, exactly once and in order. Of the others a prefix is there, each change completely
// or not at all. Each seed is a separate store.
func TestFaults(t *testing.T) {
	for seed := range testcluster.Form(8, 16) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := &lives{t: t, rng: rand.New(rand.NewPCG(uint64(seed), 17)), dir: t.TempDir() + "/d"}
			for life := range 5 {
				r.open(life)
				r.write(life)
				r.end()
			}
		})
	}
}

// lives is one store, through several processes.
type lives struct {
	t            *testing.T
	rng          *rand.Rand
	dir          string
	acknowledged []string // changes that were acknowledged or seen
	tried        []string // later changes, of the last process
	old          *process // a process that was not ended

	*process
}

// process is a process that has the store open.
type process struct {
	faults *faults
	disk   *durable.Disk

	mu      sync.Mutex // protects the fields below
	machine *core.Machine
	acked   int // number of changes in tried that were acknowledged
}

// changesKey is the entry that all changes append to.
const changesKey = "changes"

// open opens the store, with retries, and checks its content.
func (r *lives) open(life int) {
	r.t.Helper()
	for tries := 0; ; tries++ {
		f := &faults{rng: rand.New(rand.NewPCG(r.rng.Uint64(), 0))}
		if tries < 5 { // without faults after that
			f.arm()
		}
		d, m, err := durable.Open(r.dir, core.Limits{}, &durable.Options{FS: faultyFS{journal.OS, f}})
		if err == nil {
			r.process = &process{faults: f, disk: d, machine: m}
			break
		}
		if errors.Is(err, durable.ErrInUse) && r.old != nil { // which has the store as long as it runs
			r.kill(r.old)
			r.old = nil
			continue
		}
		require.Less(r.t, tries, 5, "%v", err)
	}
	var rep wire.Reply
	r.machine.Apply(r.machine.Now(), core.Local, &wire.Request{Op: wire.OpGet, Key: changesKey}, &rep)
	got := strings.Fields(string(rep.Value))
	r.t.Logf("life %d: %d changes, of %d that are to be and %d that may be", life, len(got), len(r.acknowledged), len(r.tried))
	require.GreaterOrEqual(r.t, len(got), len(r.acknowledged), "acknowledged changes are lost")
	require.LessOrEqual(r.t, len(got), len(r.acknowledged)+len(r.tried), "there are changes that no process has made")
	require.Equal(r.t, strings.Join(slices.Concat(r.acknowledged, r.tried)[:len(got)], " "), strings.Join(got, " "))
	r.acknowledged, r.tried = got, nil
}

// withMachine implements durable.WithMachine.
func (p *process) withMachine(f func(*core.Machine)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.machine)
	return nil
}

// write makes changes, syncs and checkpoints concurrently, until a step has failed or there are
// enough.
func (r *lives) write(life int) {
	var others sync.WaitGroup
	defer others.Wait()
	failed := make(chan struct{})
	var once sync.Once
	p := r.process
	sync := func(pos uint64, n int) {
		if p.disk.Sync(pos) != nil {
			once.Do(func() { close(failed) })
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.acked = max(p.acked, n)
	}
	for range 1 + r.rng.IntN(80) {
		name := fmt.Sprintf("%d.%d", life, len(r.tried)+1)
		r.tried = append(r.tried, name)
		p.apply(wire.Request{Op: wire.OpSet, Key: fmt.Sprint("large ", r.rng.IntN(3)), Value: bytes.Repeat([]byte{'x'}, r.rng.IntN(300))})
		pos, n := p.apply(wire.Request{Op: wire.OpAppend, Key: changesKey, Value: []byte(name + " ")}), len(r.tried)
		switch r.rng.IntN(8) {
		case 0:
			sync(pos, n)
		case 1, 2:
			others.Go(func() { sync(pos, n) })
		case 3:
			if r.rng.IntN(5) == 0 {
				// A failure loses nothing: the log has all events.
				others.Go(func() { _ = p.disk.Checkpoint(p.withMachine) })
			}
		}
		select {
		case <-failed:
			return
		default:
		}
	}
}

// apply changes the machine, and appends the event.
func (p *process) apply(req wire.Request) (pos uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.machine.Now() + time.Millisecond
	p.machine.Apply(now, core.Local, &req, new(wire.Reply))
	return p.disk.Apply(now, core.Local, &req)
}

// end closes the process, crashes it, or leaves it until another one wants the store.
func (r *lives) end() {
	p := r.process
	switch r.rng.IntN(3) {
	case 0:
		if p.disk.Close() == nil {
			p.acked = len(r.tried)
		}
	case 1:
		r.kill(p)
	case 2:
		r.old = p
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r.acknowledged, r.tried = slices.Concat(r.acknowledged, r.tried[:p.acked]), r.tried[p.acked:]
}

// kill crashes the process.
func (r *lives) kill(p *process) {
	p.faults.crash()
	_ = p.disk.Close()
}
