package nfsws_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/nfsws"
)

// small is as many elements as one part holds, so that there are fewer operations at which to try
// each fault.
const small = 50

// stage is a rank that publishes on a disk with faults, and one that reads.
type stage struct {
	t      *testing.T
	disk   *disk
	v      *disk
	writer *nfsws.Workspace
	reader *nfsws.Workspace
}

// newStage returns a stage on which state 1 is published.
func newStage(t *testing.T) *stage {
	d := newDisk(1)
	v := d.client()
	s := &stage{t: t, disk: d, v: v, writer: on(t, v, 0), reader: on(t, d, 1)}
	publish(t, s.writer, 1)
	v.old = must(d.ReadDir("gen-00000000000000000000"))
	return s
}

// faults are the possible faults of each kind of operation, by name.
var faults = map[string]map[string]*fault{
	"create":  {"full": {err: syscall.ENOSPC}, "answer lost": {err: syscall.EIO, done: true}},
	"write":   {"full": {err: syscall.ENOSPC}, "half": {err: syscall.ENOSPC, short: true}},
	"sync":    {"error": {err: syscall.EIO}, "full": {err: syscall.EDQUOT, done: true}},
	"close":   {"error": {err: syscall.EIO, done: true}},
	"release": {"error": {err: syscall.EIO, done: true}},
	"rename":  {"error": {err: syscall.EIO}, "answer lost": {err: syscall.ENOENT, done: true}},
	"syncdir": {"error": {err: syscall.EIO}, "answer lost": {err: syscall.EIO, done: true}},
	"readdir": {"error": {err: syscall.EIO}, "stale": {stale: true}, "ESTALE": {err: syscall.ESTALE}},
	"open":    {"error": {err: syscall.EIO}, "ESTALE": {err: syscall.ESTALE}, "cached no": {err: fs.ErrNotExist}, "stale": {stale: true}},
	"read":    {"error": {err: syscall.EIO}, "ESTALE": {err: syscall.ESTALE}, "torn": {short: true}, "changed": {change: true}},
	"remove":  {"error": {err: syscall.EIO}, "answer lost": {err: syscall.EIO, done: true}},
	"mkdir":   {"error": {err: syscall.EACCES}, "answer lost": {err: fs.ErrExist, done: true}},
}

// faultsOf returns the possible faults of an operation.
func faultsOf(op string) map[string]*fault {
	kind, _, _ := strings.Cut(op, " ")
	return faults[kind]
}

// everywhere tries every fault at every operation of act. The order of some operations is random,
// their number is not.
func everywhere(t *testing.T, act func(*stage) error, check func(s *stage, op string, err error)) {
	s := newStage(t)
	s.v.arm(func(string) *fault { return nil })
	require.NoError(t, act(s))
	ops := len(s.v.operations())
	tried := map[string]int{}
	for k := range ops {
		for _, name := range allFaults() {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				var f *fault
				count, at := 0, ""
				s.v.arm(func(op string) *fault {
					count++
					if count-1 != k {
						return nil
					}
					f, at = faultsOf(op)[name], op
					return f
				})
				err := act(s)
				s.v.arm(nil)
				if f == nil {
					require.NoError(t, err)
					return
				}
				tried[at+": "+name]++
				check(s, at+": "+name, err)
			})
		}
	}
	for _, what := range slices.Sorted(maps.Keys(tried)) {
		t.Logf("%s: %d", what, tried[what])
	}
}

// allFaults returns the names of all faults.
func allFaults() []string {
	all := map[string]bool{}
	for _, named := range faults {
		for name := range named {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// settled requires that readers see the new state if it was published, and otherwise the old one,
// and that nothing else is left after the rank has restarted.
func (s *stage) settled(op string, err error) {
	t := s.t
	if strings.HasPrefix(op, "sync") || strings.HasPrefix(op, "close") || strings.HasPrefix(op, "write") {
		require.Error(t, err, "%s: and yet it was acknowledged", op)
	}
	n, readErr := read(s.reader, 0, nfsws.Version{})
	require.NoError(t, readErr, op)
	switch {
	case err == nil:
		require.EqualValues(t, 2, n, "%s: acknowledged, and not to be seen", op)
	case strings.Contains(err.Error(), "may be published"):
		require.Contains(t, []uint32{1, 2}, n, op)
	default:
		require.EqualValues(t, 1, n, "%s: %v, and yet it is to be seen", op, err)
	}
	if err != nil {
		e, ok := errors.AsType[*nfsws.Error](err)
		require.True(t, ok)
		require.Zero(t, e.Rank)
	}
	if strings.HasPrefix(op, "sync ") || strings.HasPrefix(op, "write") {
		s.tidy(op + ", without another Open")
	}
	again := on(t, s.disk, 0)
	s.tidy(op)
	shows(t, again, 0, n, op)

	publish(t, again, 3)
	shows(t, s.reader, 0, 3, op)
	require.LessOrEqual(t, len(s.disk.files()), 4, op)
}

// tidy requires that there are no files except those of states.
func (s *stage) tidy(op string) {
	files := s.disk.files()
	all := slices.Sorted(maps.Keys(files))
	for _, name := range all {
		base, ext, _ := strings.Cut(strings.TrimPrefix(name, "gen-00000000000000000000/rank-0."), ".")
		other := map[string]string{"json": ".safetensors", "safetensors": ".json"}[ext]
		require.NotEmpty(s.t, other, "%s: %s is left", op, name)
		require.Contains(s.t, all, "gen-00000000000000000000/rank-0."+base+other, "%s: %s is half a state", op, name)
	}
}

// TestFaultsWhileReplacing tests a Write that also removes an older state.
func TestFaultsWhileReplacing(t *testing.T) {
	everywhere(t,
		func(s *stage) error {
			err := second(write(s.writer, 1, small))
			if err == nil {
				err = second(write(s.writer, 2, small))
			}
			return err
		},
		func(s *stage, op string, err error) { s.settled(op, err) })
}

func TestFaultsWhileOpening(t *testing.T) {
	everywhere(t,
		func(s *stage) error { return second(nfsws.Open(t.Context(), "/d", 0, nfsws.Options{}.On(s.v))) },
		func(s *stage, op string, err error) {
			require.True(s.t, err == nil || !strings.HasSuffix(op, "dir: stale"), "%s: %v", op, err)
			shows(s.t, s.reader, 0, 1, op)
			on(s.t, s.disk, 0)
			s.tidy(op)
		})
}

// TestFaultsWhileReading requires the newest state, or an error if the disk has returned one.
// Operations whose results may come from a stale cache are repeated.
func TestFaultsWhileReading(t *testing.T) {
	ctx := context.Background()
	for name, verb := range map[string]func(w *nfsws.Workspace, v nfsws.Version) (uint32, error){
		"read":    func(w *nfsws.Workspace, _ nfsws.Version) (uint32, error) { return read(w, 0, nfsws.Version{}) },
		"version": func(w *nfsws.Workspace, v nfsws.Version) (uint32, error) { return read(w, 0, v) },
		"wait": func(w *nfsws.Workspace, _ nfsws.Version) (uint32, error) {
			state, err := w.Wait(ctx, 0)
			if err != nil {
				return 0, err
			}
			return whole(state)
		},
		"view": func(w *nfsws.Workspace, _ nfsws.Version) (uint32, error) {
			v, err := w.View(ctx, 0, nfsws.Version{})
			if err != nil {
				return 0, err
			}
			v.Forget()
			var first [4]byte
			_, err = v.ReadAt(ctx, "w", first[:], 0)
			return binary.LittleEndian.Uint32(first[:]), errors.Join(err, v.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got uint32
			everywhere(t,
				func(s *stage) error {
					v := publish(t, on(t, s.disk, 0), 2)
					reader, err := nfsws.Open(t.Context(), "/d", 1, nfsws.Options{}.On(s.v))
					if err == nil {
						got, err = verb(reader, v)
					}
					return err
				},
				func(_ *stage, op string, err error) {
					switch {
					case err != nil:
						// What the disk has refused is an error, and so is every error during Open,
						// which has no context to wait with.
						require.True(t, strings.HasSuffix(op, ": error") || strings.Contains(err.Error(), "open rank"), "%s: %v", op, err)
					case strings.HasSuffix(op, "dir: stale"):
						require.Contains(t, []uint32{1, 2}, got, op)
					default:
						require.EqualValues(t, 2, got, op)
					}
				})
		})
	}
}

// TestStaleListing tests a state that cannot be listed yet: other ranks read the state before it, or find
// it by its version, and the rank itself knows of it.
func TestStaleListing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		v := s.disk.client()
		v.old = s.v.old
		reader := on(t, v, 1)
		version := publish(t, s.writer, 2)
		for _, v := range []*disk{v, s.v} {
			v.always("readdir dir", fault{stale: true})
		}
		shows(t, reader, 0, 1, "the old one, whole")
		showsVersion(t, reader, 0, version, 2, "it is looked up by name")
		shows(t, s.writer, 0, 2)
	})
}

// TestStaleForEver tests stale results, which are retried until the context ends.
func TestStaleForEver(t *testing.T) {
	for _, stale := range []error{syscall.ESTALE, fs.ErrNotExist} {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(t)
			s.v.always("open .json", fault{err: stale})
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			_, err := s.writer.Read(ctx, 0, nfsws.Version{})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, stale)
			require.NotErrorIs(t, err, nfsws.ErrNotPublished, "no reader may take it for a rank that has nothing to say")
		})
	}
}

func TestWaitGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		s.v.arm(func(string) *fault { return nil })
		_, err := s.writer.Wait(ctx, 7)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, nfsws.ErrNotPublished)
		require.EqualError(t, err, "nfsws: wait for rank 7 of generation 0: not published after 30s: context deadline exceeded: "+
			"see whether rank 7 runs, and has this directory and generation")
		require.InDelta(t, 33, len(s.v.operations()), 2, "it looks more seldom with time")
	})
}

// TestOpenWithAStaleListing tests a manifest that exists, and is not in the listing that a
// restarted rank gets: its weights are not removed as left over.
func TestOpenWithAStaleListing(t *testing.T) {
	s := newStage(t)
	s.v.old = slices.DeleteFunc(s.v.old, func(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), ".json") })
	require.Len(t, s.v.old, 1)
	s.v.always("readdir dir", fault{stale: true})
	on(t, s.v, 0)
	shows(t, s.reader, 0, 1)
}

// TestReplacedManifestStays tests a manifest that cannot be removed: its weights stay with it.
func TestReplacedManifestStays(t *testing.T) {
	s := newStage(t)
	first := must(s.reader.Read(t.Context(), 0, nfsws.Version{}))
	s.v.always("remove .json", fault{err: syscall.EACCES})
	for n := range uint32(3) {
		publish(t, s.writer, n)
	}
	showsVersion(t, s.reader, 0, first.Version, 1)
}

// TestListingWithoutAManifest tests a listing that has missed the manifests, as one may while a state
// is replaced: the state is found by another listing.
func TestListingWithoutAManifest(t *testing.T) {
	for name, old := range map[string]func(e fs.DirEntry) bool{
		"no file":     func(fs.DirEntry) bool { return true },
		"no manifest": func(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), ".json") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.v.old = slices.DeleteFunc(s.v.old, old)
			reader := on(t, s.v, 2)
			listings := 0
			s.v.arm(func(op string) *fault {
				if !strings.HasPrefix(op, "readdir") {
					return nil
				}
				listings++
				return &fault{stale: listings < 3}
			})
			shows(t, reader, 0, 1)
			_, err := read(reader, 5, nfsws.Version{})
			require.ErrorIs(t, err, nfsws.ErrNotPublished)
		})
	}
}
