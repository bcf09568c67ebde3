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

// life is a log on a disk that loses power, and what is known of it.
type life struct {
	t    *testing.T
	rng  *rand.Rand
	disk *disk.Disk
	j    *journal.Journal

	records []string // all that may be in the log or the checkpoint, in order
	base    int      // how many of them were there when the journal was opened
	acked   int      // how many of them are durable
	from    uint64   // the checkpoint's segment
	before  int      // how many of the records are in the checkpoint
	failed  bool     // the journal has failed
	made    int
	created bool
}

// TestNothingAcknowledgedIsLost runs lives of a log, each of them another with its seed.
func TestNothingAcknowledgedIsLost(t *testing.T) {
	for seed := range uint64(2000) {
		if !t.Run("", func(t *testing.T) { newLife(t, seed).run() }) {
			t.Fatalf("seed %d", seed)
		}
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
		l.records = append(l.records, r)
		pos := add(l.j, r)
		require.Equal(l.t, len(l.records), l.base+int(pos))
	}
}

// sync syncs a position, mostly the last.
func (l *life) sync() {
	pos := len(l.records)
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

// rotate makes a checkpoint: it is durable at once, and so is what is in it.
func (l *life) rotate() {
	from, before := l.j.Rotate(), len(l.records)
	if l.rng.IntN(2) == 0 {
		l.append()
	}
	if l.rng.IntN(2) == 0 {
		l.syncTo(len(l.records))
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
		_ = l.j.Remove(from) // without power it may fail, and the journal need not
		l.acked = max(l.acked, l.base+int(l.j.Durable()))
	}
}

// restart stops the process, with Close or without, but not the computer.
func (l *life) restart() {
	if l.rng.IntN(2) == 0 {
		if l.j.Close() == nil {
			l.acked = len(l.records)
		}
		require.Error(l.t, l.j.Sync(0))
	}
	l.open()
}

// open opens the log, as often as it takes, and looks what is in it.
func (l *life) open() {
	for {
		if l.rng.IntN(6) == 0 {
			l.disk.CutPower(l.rng.IntN(8))
		}
		j, records, err := l.createAndOpen()
		switch {
		case errors.Is(err, disk.ErrPower):
			l.disk.Crash()
			continue
		case errors.Is(err, syscall.EIO), errors.Is(err, syscall.ENOSPC):
			continue
		}
		require.NoError(l.t, err)
		n := l.before + len(records)
		require.GreaterOrEqual(l.t, n, l.acked, "lost")
		require.LessOrEqual(l.t, n, len(l.records), "invented")
		require.True(l.t, slices.Equal(l.records[l.before:n], records), "changed")
		l.j, l.failed = j, false
		l.records, l.acked, l.base = l.records[:n], n, n // what was replayed is durable
		return
	}
}

// createAndOpen opens the log; the first time it is created. A Create that was interrupted is repeated.
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

// TestCrashWhileManySync cuts the power while callers append and sync at once.
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
		_, records := mustOpen(t, d, 1)
		seen := make([]int, len(acked))
		for _, r := range records {
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

// TestReplayedIsDurable is the sync that has failed, and left what it should have written for all to see.
func TestReplayedIsDurable(t *testing.T) {
	for seed := range uint64(50) {
		d := disk.New(rand.New(rand.NewPCG(seed, 2)))
		j, _ := mustOpen(t, d, 1)
		record := strings.Repeat("x", 3000)
		d.FailSync(0)
		require.Error(t, j.Sync(add(j, record)))
		_, records := mustOpen(t, d, 1)
		require.Equal(t, []string{record}, records, "what readers see")
		d.Crash()
		_, records = mustOpen(t, d, 1)
		require.Equal(t, []string{record}, records)
	}
}
