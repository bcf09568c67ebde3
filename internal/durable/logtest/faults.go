package logtest

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
	"github.com/muster-pg/muster/wire"
)

// What a step fails with.
var (
	ErrFault   = errors.New("logtest: this step fails")
	ErrCrashed = errors.New("logtest: the process has crashed")
)

// Faults is what goes wrong between a process and the medium that has its log, a disk or an etcd. It is seeded: one that has failed
// is tried again. Each process has Faults of its own.
type Faults struct {
	mu      sync.Mutex // protects the fields below
	rng     *rand.Rand
	left    int   // steps until the fault
	kind    fault // of the next one
	crashed bool
}

type fault int

const (
	none        fault = iota
	before            // the step fails, and has not taken effect
	after             // it fails, and has taken effect: its outcome is unknown
	delay             // it is slow, so that others overtake it
	crashBefore       // the process crashes
	crashAfter        // it crashes when the step has taken effect
	faults
)

// Step takes a step on the medium: one that changes it, or a read.
func (f *Faults) Step(step func() error) error {
	kind := f.next()
	switch kind {
	case before:
		return ErrFault
	case crashBefore:
		return ErrCrashed
	case delay:
		<-time.After(time.Millisecond)
	}
	err := step()
	switch {
	case kind == crashAfter:
		return ErrCrashed
	case kind == after && err == nil:
		return ErrFault
	}
	return err
}

// next is what happens to the next step.
func (f *Faults) next() (kind fault) {
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

// arm chooses a fault, and when it happens. Called with mu.
func (f *Faults) arm() {
	f.kind, f.left = fault(f.rng.IntN(int(faults))), 1+f.rng.IntN(40)
	if f.rng.IntN(3) == 0 {
		f.left += f.rng.IntN(400)
	}
}

// crash has all steps fail from now on.
func (f *Faults) crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashed = true
}

// Store is a medium with the log and the checkpoints of one machine.
type Store interface {
	// Open opens what is there as a process of its own does, which takes all steps on the medium through f. It takes the store over from
	// a process that has it, or fails with durable.ErrInUse.
	Open(t *testing.T, f *Faults) (*durable.Disk, *core.Machine, error)
}

// RunFaults shows that a store keeps what it has to while steps fail, before they take effect or after it, are overtaken, and
// processes crash between any two of them: what was acknowledged is there, once and in order; of what was not there is a part without gaps, each
// change whole or not at all; and a process that was replaced changes nothing any more. Each seed is a store of its own.
func RunFaults(t *testing.T, seeds int, home func(t *testing.T) Store) {
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := &run{t: t, rng: rand.New(rand.NewPCG(uint64(seed), 17)), store: home(t)}
			for life := range 5 {
				r.open(life)
				r.write(life)
				r.end()
			}
		})
	}
}

// run is one store, through the lives of its processes.
type run struct {
	t     *testing.T
	rng   *rand.Rand
	store Store
	sure  []string // changes that are there, or are to be
	tried []string // behind those: made by the last process
	old   *process // that was not ended

	*process
}

// process is one that has the store.
type process struct {
	faults *Faults
	disk   *durable.Disk

	mu      sync.Mutex // protects the fields below
	machine *core.Machine
	acked   int // so many of tried
}

// changesKey is the entry that all changes are appended to.
const changesKey = "changes"

// open opens the store, as often as it takes, and looks at what is there.
func (r *run) open(life int) {
	r.t.Helper()
	for tries := 0; ; tries++ {
		f := &Faults{rng: rand.New(rand.NewPCG(r.rng.Uint64(), 0))}
		if tries < 5 { // later nothing goes wrong
			f.arm()
		}
		d, m, err := r.store.Open(r.t, f)
		if err == nil {
			r.process = &process{faults: f, disk: d, machine: m}
			break
		}
		if errors.Is(err, durable.ErrInUse) && r.old != nil { // by a process that is there: it cannot be replaced
			r.kill(r.old)
			r.old = nil
			continue
		}
		require.Less(r.t, tries, 5, "%v", err)
	}
	var rep wire.Reply
	r.machine.Apply(r.machine.Now(), core.Local, &wire.Request{Op: wire.OpGet, Key: changesKey}, &rep)
	got := strings.Fields(string(rep.Value))
	r.t.Logf("life %d: %d changes, of %d that are to be and %d that may be", life, len(got), len(r.sure), len(r.tried))
	require.GreaterOrEqual(r.t, len(got), len(r.sure), "acknowledged changes are lost")
	require.LessOrEqual(r.t, len(got), len(r.sure)+len(r.tried), "there are changes that no process has made")
	require.Equal(r.t, strings.Join(slices.Concat(r.sure, r.tried)[:len(got)], " "), strings.Join(got, " "))
	r.sure, r.tried = got, nil
	if r.old != nil {
		r.replaced()
	}
}

// replaced shows that the process before, which does not know yet that it was replaced, changes nothing.
func (r *run) replaced() {
	pos := r.old.disk.Apply(r.old.machine.Now(), core.Local, &wire.Request{Op: wire.OpAppend, Key: changesKey, Value: []byte("replaced ")})
	require.Error(r.t, r.old.disk.Sync(pos), "a process that was replaced")
	require.Error(r.t, r.old.disk.Checkpoint(r.old.hold), "a process that was replaced")
	r.kill(r.old)
	r.old = nil
}

// hold implements durable.Hold.
func (p *process) hold(f func(*core.Machine)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p.machine)
	return nil
}

// write makes changes, syncs and makes checkpoints, at the same time, until something has failed or there are enough.
func (r *run) write(life int) {
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
				others.Go(func() { _ = p.disk.Checkpoint(p.hold) }) // the log has it all
			}
		}
		select {
		case <-failed:
			return
		default:
		}
	}
}

// apply changes the machine, and appends that to the log.
func (p *process) apply(req wire.Request) (pos uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.machine.Now() + time.Millisecond
	p.machine.Apply(now, core.Local, &req, new(wire.Reply))
	return p.disk.Apply(now, core.Local, &req)
}

// end ends the process: in order, by a crash, or not before another one has the store.
func (r *run) end() {
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
	r.sure, r.tried = slices.Concat(r.sure, r.tried[:p.acked]), r.tried[p.acked:]
}

// kill is kill -9.
func (r *run) kill(p *process) {
	p.faults.crash()
	_ = p.disk.Close()
}
