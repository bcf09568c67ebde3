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

// The errors of a step that fails.
var (
	ErrFault   = errors.New("logtest: this step fails")
	ErrCrashed = errors.New("logtest: the process has crashed")
)

// Faults injects failures between a process and the medium of its log, such as a disk. They are
// a function of the seed. Each process has its own Faults.
type Faults struct {
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
	faults
)

// Step runs a step on the medium, a change or a read.
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

// next returns the fault of the next step.
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

// arm chooses the next fault. The caller holds mu.
func (f *Faults) arm() {
	f.kind, f.left = fault(f.rng.IntN(int(faults))), 1+f.rng.IntN(40)
	if f.rng.IntN(3) == 0 {
		f.left += f.rng.IntN(400)
	}
}

// crash makes all later steps fail.
func (f *Faults) crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashed = true
}

// Store is a medium with the log and the checkpoints of one machine.
type Store interface {
	// Open opens the store as a new process does, whose steps on the medium go through f. It takes
	// the store over from a process that has it, or fails with durable.ErrInUse.
	Open(t *testing.T, f *Faults) (*durable.Disk, *core.Machine, error)
}

// RunFaults checks that a store keeps its guarantees while steps fail before or after they take
// effect, steps overtake each other, and processes crash between any two steps. Acknowledged
// changes are there, exactly once and in order. Of the others a prefix is there, each change
// completely or not at all. A process that was replaced changes nothing more. Each seed is a
// separate store.
func RunFaults(t *testing.T, seeds int, home func(t *testing.T) Store) {
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r := &scenario{t: t, rng: rand.New(rand.NewPCG(uint64(seed), 17)), store: home(t)}
			for life := range 5 {
				r.open(life)
				r.write(life)
				r.end()
			}
		})
	}
}

// scenario is one store, through several processes.
type scenario struct {
	t            *testing.T
	rng          *rand.Rand
	store        Store
	acknowledged []string // changes that were acknowledged or seen
	tried        []string // later changes, of the last process
	old          *process // a process that was not ended

	*process
}

// process is a process that has the store open.
type process struct {
	faults *Faults
	disk   *durable.Disk

	mu      sync.Mutex // protects the fields below
	machine *core.Machine
	acked   int // number of changes in tried that were acknowledged
}

// changesKey is the entry that all changes append to.
const changesKey = "changes"

// open opens the store, with retries, and checks its content.
func (r *scenario) open(life int) {
	r.t.Helper()
	for tries := 0; ; tries++ {
		f := &Faults{rng: rand.New(rand.NewPCG(r.rng.Uint64(), 0))}
		if tries < 5 { // without faults after that
			f.arm()
		}
		d, m, err := r.store.Open(r.t, f)
		if err == nil {
			r.process = &process{faults: f, disk: d, machine: m}
			break
		}
		// A running process that cannot be replaced has the store.
		if errors.Is(err, durable.ErrInUse) && r.old != nil {
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
	if r.old != nil {
		r.replaced()
	}
}

// replaced checks that the previous process, which does not know that it was replaced, can change
// nothing.
func (r *scenario) replaced() {
	pos := r.old.disk.Apply(r.old.machine.Now(), core.Local, &wire.Request{Op: wire.OpAppend, Key: changesKey, Value: []byte("replaced ")})
	require.Error(r.t, r.old.disk.Sync(pos), "a process that was replaced")
	require.Error(r.t, r.old.disk.Checkpoint(r.old.withMachine), "a process that was replaced")
	r.kill(r.old)
	r.old = nil
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
func (r *scenario) write(life int) {
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

// end closes the process, crashes it, or leaves it until another one has the store.
func (r *scenario) end() {
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
func (r *scenario) kill(p *process) {
	p.faults.crash()
	_ = p.disk.Close()
}
