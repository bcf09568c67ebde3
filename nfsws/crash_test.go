package nfsws_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/nfsws"
)

var errPower = errors.New("no power")

// TestPowerLoss cuts the power, or kills the process, before each operation of a publish that replaces
// a state, and of a removal, and checks what is then on the disk: the old state or the new one, and
// always the new one if it was acknowledged.
func TestPowerLoss(t *testing.T) {
	acts := map[string]struct {
		do   func(*nfsws.Workspace) error
		want []uint32 // the possible states after an error; the last one, after none
	}{
		"write":  {func(w *nfsws.Workspace) error { return second(write(w, 2, small)) }, []uint32{1, 2}},
		"remove": {func(w *nfsws.Workspace) error { return w.Remove(context.Background()) }, []uint32{1, 0}},
	}
	for name, act := range acts {
		t.Run(name, func(t *testing.T) {
			for k, done := 0, false; !done; k++ {
				for seed := range uint64(40) {
					synctest.Test(t, func(t *testing.T) {
						d := newDisk(seed)
						v := d.client()
						w := on(t, v, 0)
						for range 2 { // one that is replaced is there as well
							publish(t, w, 1)
						}
						v.arm(after(k))
						err := act.do(w)
						if seed > 0 { // otherwise only the process is killed
							d.crash()
						}
						done = done || err == nil
						want := act.want
						if err == nil {
							want = want[1:]
						}
						require.Contains(t, want, survived(t, d), "power lost before operation %d, seed %d: %v", k, seed, err)
					})
				}
			}
		})
	}
}

// after fails everything from operation k on.
func after(k int) func(string) *fault {
	return func(string) *fault {
		k--
		if k < 0 {
			return &fault{err: errPower}
		}
		return nil
	}
}

// survived returns the state on a disk, as its rank sees it after a restart; 0 is none.
func survived(t *testing.T, d *disk) uint32 {
	w := on(t, d, 0)
	(&stage{t: t, disk: d}).tidy("after a restart")
	return seen(t, w)
}

// seen returns the state of rank 0; 0 is none.
func seen(t *testing.T, w *nfsws.Workspace) uint32 {
	n, err := read(w, 0, nfsws.Version{})
	if !errors.Is(err, nfsws.ErrNotPublished) {
		require.NoError(t, err)
	}
	return n
}

// TestPowerLossAfterTakingBack checks a state that was withdrawn because the sync of its directory
// reported an error, once or repeatedly, though it may have been done. The rank may restart before the
// power fails.
func TestPowerLossAfterTakingBack(t *testing.T) {
	for seed := range uint64(400) {
		d := newDisk(seed)
		v := d.client()
		w := on(t, v, 0)
		publish(t, w, 1)
		syncs := 0
		v.arm(func(op string) *fault {
			if op == "syncdir dir" {
				syncs++
			}
			if op == "syncdir dir" && syncs >= 2 && syncs <= 2+int(seed%2) {
				return &fault{err: syscall.EIO, done: seed%8 > 3}
			}
			return nil
		})
		require.ErrorIs(t, second(write(w, 2, small)), syscall.EIO)
		if seed%4 > 1 {
			on(t, d, 0)
		}
		d.crash()
		require.Contains(t, []uint32{1, 2}, survived(t, d), "seed %d", seed)
	}
}

// TestLives runs many lives of a rank, with random faults and losses of power.
func TestLives(t *testing.T) {
	for seed := range uint64(300) {
		require.True(t, t.Run("", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newLife(t, seed).run() })
		}), "seed %d", seed)
	}
}

// life is one rank on a disk, and the known facts about its states.
type life struct {
	t     *testing.T
	rng   *rand.Rand
	disk  *disk
	v     *disk
	w     *nfsws.Workspace
	n     uint32   // the last that was written, successfully or not
	acked uint32   // the last that was acknowledged; 0: none
	maybe []uint32 // the other possible states
}

func newLife(t *testing.T, seed uint64) *life {
	l := &life{t: t, rng: rand.New(rand.NewPCG(seed, 4)), disk: newDisk(seed)}
	l.open()
	return l
}

func (l *life) run() {
	for range 30 {
		switch l.rng.IntN(6) {
		case 0, 1:
			l.write(nil)
		case 2, 3:
			l.write(l.chance())
		case 4:
			l.disk.crash()
			l.open()
		case 5:
			l.open()
		}
		l.look()
	}
}

// chance returns a fault at one of the next operations, or a loss of power from there on.
func (l *life) chance() func(string) *fault {
	k, all := l.rng.IntN(20), l.rng.IntN(3) == 0
	faults := allFaults()
	name := faults[l.rng.IntN(len(faults))]
	return func(op string) *fault {
		k--
		switch {
		case k == -1 && !all && faultsOf(op)[name] != nil && !faultsOf(op)[name].stale:
			return faultsOf(op)[name]
		case k < 0 && all:
			return &fault{err: errPower}
		}
		return nil
	}
}

func (l *life) open() {
	survived(l.t, l.disk)
	l.v = l.disk.client()
	l.w = on(l.t, l.v, 0)
}

func (l *life) write(on func(string) *fault) {
	l.n++
	l.v.arm(on)
	_, err := write(l.w, l.n, small)
	l.v.arm(nil)
	if err == nil {
		l.acked, l.maybe = l.n, nil
	} else {
		l.maybe = append(l.maybe, l.n)
	}
}

// look checks that the state is the acknowledged one, or one that an error has left possible.
func (l *life) look() {
	require.Contains(l.t, append(l.maybe, l.acked), seen(l.t, on(l.t, l.disk, 1)))
}
