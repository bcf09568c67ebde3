package durable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/journal/disk"
	"github.com/muster-pg/muster/wire"
)

// rig is a machine on a disk that can lose power, with the entries that it had after each event.
type rig struct {
	t       *testing.T
	rng     *rand.Rand
	disk    *powerDisk
	dir     string
	d       *Disk
	m       *core.Machine
	now     core.Time
	acked   uint64 // position of the last acknowledged event
	pos     uint64
	history map[uint64]map[string]string // the entries by position
}

func (r *rig) open() error {
	var err error
	r.d, r.m, err = Open(r.dir, core.Limits{}, &Options{FS: r.disk})
	return err
}

// entries returns the entries of m.
func entries(m *core.Machine) map[string]string {
	var rep wire.Reply
	m.Apply(m.Now(), core.Local, &wire.Request{Op: wire.OpList}, &rep)
	all := map[string]string{}
	for i, k := range rep.Keys {
		all[k] = string(rep.Values[i])
	}
	return all
}

// step makes a random change.
func (r *rig) step() {
	r.now = max(r.now, r.m.Now()) + core.Time(r.rng.IntN(int(time.Second)))
	if at, armed := r.m.Next(); armed && at <= r.now {
		r.m.Tick(r.now)
		r.note(r.d.Tick(r.now))
	}
	req := wire.Request{Op: wire.OpSet, Key: fmt.Sprint("key ", r.rng.IntN(20)), Value: fmt.Append(nil, r.rng.Uint32())}
	switch r.rng.IntN(4) {
	case 0:
		req.TTL = time.Duration(1 + r.rng.IntN(int(10*time.Second)))
	case 1:
		req = wire.Request{Op: wire.OpAdd, Key: fmt.Sprint("counter ", r.rng.IntN(3)), Add: 1}
	case 2:
		req = wire.Request{Op: wire.OpDelete, Keys: []string{req.Key}}
	}
	r.m.Apply(r.now, core.Local, &req, new(wire.Reply))
	require.True(r.t, r.m.Logs(req.Op))
	r.note(r.d.Apply(r.now, core.Local, &req))
}

func (r *rig) note(pos uint64) {
	r.pos = pos
	r.history[pos] = entries(r.m)
}

func (r *rig) sync() {
	require.NoError(r.t, r.d.Sync(r.pos))
	r.acked = r.pos
}

// trySync syncs, and accepts a power failure.
func (r *rig) trySync() {
	if err := r.d.Sync(r.pos); err != nil {
		require.ErrorIs(r.t, err, disk.ErrPower)
		return
	}
	r.acked = r.pos
}

func (r *rig) checkpoint() {
	err := r.d.Checkpoint(func(f func(*core.Machine)) error {
		f(r.m)
		if r.rng.IntN(2) == 0 { // requests are carried out meanwhile
			r.step()
		}
		if r.rng.IntN(4) == 0 {
			r.trySync()
		}
		return nil
	})
	if !errors.Is(err, disk.ErrPower) {
		require.NoError(r.t, err)
	}
}

// seeds returns how many seeds a test tries: n with MUSTER_SOAK, otherwise a third of them.
func seeds(n uint64) uint64 {
	if os.Getenv("MUSTER_SOAK") != "" {
		return n
	}
	return n / 3
}

// TestPowerLoss checks the store after a power failure, at any point, also during a checkpoint: it
// has all acknowledged changes, and its state is one that it had at some time.
func TestPowerLoss(t *testing.T) {
	for seed := range seeds(80) {
		rng := rand.New(rand.NewPCG(seed, 7))
		r := &rig{t: t, rng: rng, disk: newPowerDisk(t, rng), dir: t.TempDir()}
		for range 3 {
			r.start(seed)
			r.history = map[uint64]map[string]string{0: entries(r.m)}
			r.acked, r.pos = 0, 0
			for range rng.IntN(60) {
				switch n := rng.IntN(20); {
				case n < 15:
					r.step()
				case n < 19:
					r.trySync()
				default:
					if rng.IntN(2) == 0 {
						r.disk.CutPower(rng.IntN(40))
					}
					r.checkpoint()
				}
			}
			before := r.d
			r.disk.crash(r.dir)
			require.NoError(t, before.release())
			r.afterwards(seed)
		}
	}
}

// TestPowerLossInACheckpoint cuts the power at each step of a checkpoint, several times, since it
// is random which part of an unsynced change survives.
func TestPowerLossInACheckpoint(t *testing.T) {
	for step := 0; ; step++ {
		whole := false
		for seed := range seeds(6) {
			rng := rand.New(rand.NewPCG(seed, uint64(step)))
			r := &rig{t: t, rng: rng, disk: newPowerDisk(t, rng), dir: t.TempDir(), history: map[uint64]map[string]string{}}
			require.NoError(t, r.open())
			for range 10 {
				r.step()
			}
			r.sync()
			r.disk.CutPower(step)
			whole = r.d.Checkpoint(func(f func(*core.Machine)) error { f(r.m); return nil }) == nil
			r.disk.crash(r.dir)
			require.NoError(t, r.d.release())
			r.afterwards(seed)
		}
		if whole {
			require.Greater(t, step, 10)
			return
		}
	}
}

// start opens the store, while the power may fail again and again.
func (r *rig) start(seed uint64) {
	for {
		if r.rng.IntN(3) == 0 {
			r.disk.CutPower(r.rng.IntN(40))
		}
		err := r.open()
		if err == nil {
			return
		}
		require.ErrorIs(r.t, err, disk.ErrPower, "seed %d", seed)
		r.disk.crash(r.dir)
	}
}

// afterwards checks the state after a power failure.
func (r *rig) afterwards(seed uint64) {
	require.NoError(r.t, r.open(), "seed %d", seed)
	now := entries(r.m)
	for pos := range r.history {
		if pos >= r.acked && maps.Equal(r.history[pos], now) {
			require.NoError(r.t, r.d.Close())
			return
		}
	}
	r.t.Fatalf("seed %d: acknowledged up to %d of %v: there is %v, and was %v", seed, r.acked, slices.Sorted(maps.Keys(r.history)), now, r.history[r.acked])
}

// TestDiskFull checks that a store that cannot write ends permanently, and has all changes that it
// acknowledged.
func TestDiskFull(t *testing.T) {
	for _, fault := range []func(*powerDisk, int){(*powerDisk).FailWrite, (*powerDisk).FailSync} {
		rng := rand.New(rand.NewPCG(1, 1))
		r := &rig{t: t, rng: rng, disk: newPowerDisk(t, rng), dir: t.TempDir(), history: map[uint64]map[string]string{}}
		require.NoError(t, r.open())
		r.history[0] = entries(r.m)
		r.step()
		r.sync()
		fault(r.disk, 0)
		r.step()
		err := r.d.Sync(r.pos)
		require.Error(t, err)
		require.ErrorContains(t, err, "log-")
		r.step()
		require.Equal(t, err, r.d.Sync(r.pos), "it is not tried again")
		require.Error(t, r.d.Close())
		r.disk.crash(r.dir)
		r.afterwards(0)
	}
}

// TestACheckpointThatFailsIsTriedLessAndLess checks that failed checkpoints are repeated at growing
// intervals: each attempt writes until the disk is full, and leaves no space for the log meanwhile.
func TestACheckpointThatFailsIsTriedLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, m, err := Open(t.TempDir(), core.Limits{}, &Options{CheckpointBytes: 1})
		require.NoError(t, err)
		defer func() { require.NoError(t, d.Close()) }()
		req := wire.Request{Op: wire.OpSet, Key: "more than the checkpoint has", Value: make([]byte, 100<<10)}
		m.Apply(0, core.Local, &req, new(wire.Reply))
		require.NoError(t, d.Sync(d.Apply(0, core.Local, &req)))
		tries := 0
		d.MakeCheckpoints(func(func(*core.Machine)) error { tries++; return os.ErrInvalid })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.InDelta(t, 15, tries, 2)
	})
}

func TestNothingIsOverwritten(t *testing.T) {
	dir := t.TempDir()
	d, _, err := Open(dir, core.Limits{}, nil)
	require.NoError(t, err)
	_, _, err = Open(dir, core.Limits{}, nil)
	require.ErrorIs(t, err, ErrInUse)
	require.NoError(t, d.Close())

	name := filepath.Join(dir, checkpointName)
	whole, err := os.ReadFile(name)
	require.NoError(t, err)
	foreign := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "diary"), nil, 0o600))
	require.ErrorIs(t, Restore(name, dir), fs.ErrExist)
	err = Restore(name, foreign)
	require.ErrorIs(t, err, ErrForeign)
	require.NotErrorIs(t, err, fs.ErrExist, "it has no store")
	for what, broken := range map[string][]byte{"empty": {}, "cut": whole[:9000], "changed": changed(whole), "foreign": slices.Repeat([]byte("diary "), 5000)} {
		require.NoError(t, os.WriteFile(name, broken, 0o600))
		_, _, err := Open(dir, core.Limits{}, nil)
		require.Error(t, err, what)
		require.True(t, errors.Is(err, ErrForeign) || errors.Is(err, ErrDamaged), "%s: %v", what, err)
		require.ErrorContains(t, err, "nothing was changed: keep a copy of the directory", what)
		require.ErrorContains(t, Restore(name, t.TempDir()), ": use another backup", what)
		now, _ := os.ReadFile(name)
		require.Equal(t, broken, now, what)
	}
	for version, want := range map[uint32]error{sealVersion - 1: ErrOlder, sealVersion + 1: ErrNewer} {
		other := slices.Clone(whole)
		binary.LittleEndian.PutUint32(other[len(other)-sealLen+8:], version)
		require.NoError(t, os.WriteFile(name, other, 0o600))
		_, _, err := Open(dir, core.Limits{}, nil)
		require.ErrorIs(t, err, want)
		require.NotContains(t, err.Error(), "check the disk", "the disk is right")
		require.ErrorIs(t, Restore(name, t.TempDir()), want)
		now, _ := os.ReadFile(name)
		require.Equal(t, other, now)
	}
	require.NoError(t, os.WriteFile(name, whole, 0o600))
	d, _, err = Open(dir, core.Limits{}, nil)
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

// changed returns a file with one changed bit in its state.
func changed(whole []byte) []byte {
	own := slices.Clone(whole)
	own[bytes.Index(own, []byte("LastLease"))] ^= 1
	return own
}
