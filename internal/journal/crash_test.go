package journal_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/journal"
	"github.com/muster-pg/muster/internal/journal/disk"
)

// life is a log on a disk that loses power, with its expected content.
type life struct {
	t    *testing.T
	rng  *rand.Rand
	disk *disk.Disk
	j    *journal.Journal

	entries []string // all entries that may be in the log or the checkpoint, in order
	base    int      // number of entries when the journal was opened
	acked   int      // number of durable entries
	from    uint64   // segment that the checkpoint names
	before  int      // number of entries in the checkpoint
	failed  bool     // the journal has failed
	made    int
	created bool
}

// TestNothingAcknowledgedIsLost runs random sequences of operations and power failures on a log,
// one per seed.
func TestNothingAcknowledgedIsLost(t *testing.T) {
	for seed := range uint64(2000) {
		require.True(t, t.Run("", func(t *testing.T) { newLife(t, seed).run() }), "seed %d", seed)
	}
}

func newLife(t *testing.T, seed uint64) *life {
	rng := rand.New(rand.NewPCG(seed, 0))
	return &life{t: t, rng: rng, disk: disk.New(rng), from: 1}
}

func (l *life) run() {
	l.open()
	for range 40 {
		switch l.rng.IntN(14) {
		case 0, 1, 2, 3, 4:
			l.append()
		case 5, 6, 7, 8:
			l.sync()
		case 9:
			l.rotate()
		case 10:
			l.disk.CutPower(l.rng.IntN(6))
		case 11:
			l.fault()
		case 12:
			l.disk.Crash()
			l.open()
		case 13:
			l.restart()
		}
	}
	l.disk.Crash()
	l.open()
}

func (l *life) fault() {
	if l.rng.IntN(2) == 0 {
		l.disk.FailSync(l.rng.IntN(3))
	} else {
		l.disk.FailWrite(l.rng.IntN(4))
	}
}

func (l *life) append() {
	for range 1 + l.rng.IntN(3) {
		l.made++
		r := fmt.Sprint(l.made, "-") + strings.Repeat(string(rune(l.rng.IntN(4))), l.rng.IntN(2)*l.rng.IntN(1500))
		l.entries = append(l.entries, r)
		pos := add(l.j, r)
		require.Equal(l.t, len(l.entries), l.base+int(pos))
	}
}

// sync syncs a position, mostly the last.
func (l *life) sync() {
	pos := len(l.entries)
	if l.rng.IntN(4) == 0 {
		pos = l.base + l.rng.IntN(pos-l.base+1)
	}
	l.syncTo(pos)
}

func (l *life) syncTo(pos int) {
	err := l.j.Sync(uint64(pos - l.base))
	require.False(l.t, l.failed && err == nil, "failed, and is alive again")
	l.failed = err != nil
	if err == nil {
		require.GreaterOrEqual(l.t, l.base+int(l.j.Durable()), pos)
	}
	l.acked = max(l.acked, l.base+int(l.j.Durable()))
}

// rotate makes a checkpoint, which is durable at once, with all entries so far.
func (l *life) rotate() {
	from, before := l.j.Rotate(), len(l.entries)
	if l.rng.IntN(2) == 0 {
		l.append()
	}
	if l.rng.IntN(2) == 0 {
		l.syncTo(len(l.entries))
	}
	if l.failed || l.rng.IntN(4) == 0 {
		return
	}
	if l.failed = l.j.Begin(from) != nil; l.failed || l.rng.IntN(4) == 0 {
		return
	}
	l.from, l.before = from, before
	l.acked = max(l.acked, before)
	if l.rng.IntN(2) == 0 {
		_ = l.j.Remove(from) // without power it may fail, and the journal may not
		l.acked = max(l.acked, l.base+int(l.j.Durable()))
	}
}

// restart ends the process, with or without Close, but not the computer.
func (l *life) restart() {
	if l.rng.IntN(2) == 0 {
		if l.j.Close() == nil {
			l.acked = len(l.entries)
		}
		require.Error(l.t, l.j.Sync(0))
	}
	l.open()
}

// open opens the log, with retries, and checks its content.
func (l *life) open() {
	for {
		if l.rng.IntN(6) == 0 {
			l.disk.CutPower(l.rng.IntN(8))
		}
		j, entries, err := l.createAndOpen()
		switch {
		case errors.Is(err, disk.ErrPower):
			l.disk.Crash()
			continue
		case errors.Is(err, syscall.EIO), errors.Is(err, syscall.ENOSPC):
			continue
		}
		require.NoError(l.t, err)
		n := l.before + len(entries)
		require.GreaterOrEqual(l.t, n, l.acked, "lost")
		require.LessOrEqual(l.t, n, len(l.entries), "invented")
		require.True(l.t, slices.Equal(l.entries[l.before:n], entries), "changed")
		l.j, l.failed = j, false
		l.entries, l.acked, l.base = l.entries[:n], n, n // replayed entries are durable
		return
	}
}

// createAndOpen opens the log, and creates it first if it does not exist. It repeats a Create that
// was interrupted.
func (l *life) createAndOpen() (*journal.Journal, []string, error) {
	if !l.created {
		if err := journal.Create(dir, id+l.rng.Uint64N(2), 1, options(l.disk)); err != nil {
			return nil, nil, err
		}
		if err := journal.Create(dir, id, 1, options(l.disk)); err != nil {
			return nil, nil, err
		}
		l.created = true
	}
	return open(l.disk, l.from)
}

// TestCrashWhileManySync cuts the power while callers append and sync concurrently.
func TestCrashWhileManySync(t *testing.T) {
	for seed := range uint64(60) {
		d := disk.New(rand.New(rand.NewPCG(seed, 1)))
		j, _ := mustOpen(t, d, 1)
		d.CutPower(int(seed) * 2)
		var wg sync.WaitGroup
		acked := make([]int, 8)
		for caller := range acked {
			wg.Go(func() {
				for n := 1; ; n++ {
					pos := add(j, fmt.Sprintf("%d %d", caller, n))
					if caller == 0 && n%5 == 0 {
						j.Rotate()
					}
					if j.Sync(pos) != nil {
						return
					}
					acked[caller] = n
				}
			})
		}
		wg.Wait()
		d.Crash()
		_, entries := mustOpen(t, d, 1)
		seen := make([]int, len(acked))
		for _, r := range entries {
			var caller, n int
			_, err := fmt.Sscan(r, &caller, &n)
			require.NoError(t, err)
			seen[caller]++
			require.Equal(t, seen[caller], n)
		}
		for caller := range acked {
			require.GreaterOrEqual(t, seen[caller], acked[caller])
		}
	}
}
