package nfsws

import (
	"cmp"
	"context"
	"errors"
	"iter"

	"github.com/muster-pg/muster/internal/blocking"
)

// Entry is a state that is published.
type Entry struct {
	Rank        int
	Generation  uint64
	Version     Version
	ConfigSize  int64 // in bytes
	WeightsSize int64 // of the file with the weights
}

// List yields the newest state of each rank of this generation, in the order of ranks. Its manifest
// was read, its weights were not. What a rank's error is about, Entry.Rank says; the others are
// listed all the same. Directories are not read atomically: a rank that replaces its state at this
// moment may be missing, though Read finds it.
func (w *Workspace) List(ctx context.Context) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		ctx, done, err := w.begin(ctx)
		if err != nil {
			yield(Entry{}, w.wrap("list", w.rank, err))
			return
		}
		defer done()
		entries, err := blocking.Do(ctx, w.list)
		if err != nil {
			yield(Entry{}, w.wrap("list", w.rank, err))
			return
		}
		for i, last := range entries {
			if last.kind != kindManifest || follows(entries[i+1:], last.rank) {
				continue
			}
			e, err := blocking.Do(ctx, func() (Entry, error) { return w.describe(ctx, last.rank, last.version) })
			if errors.Is(err, ErrNotPublished) { // removed in this moment
				continue
			}
			e.Rank, e.Generation = last.rank, w.generation
			if !yield(e, w.wrap("list", last.rank, err)) || ended(ctx) != nil {
				return
			}
		}
	}
}

// follows reports whether entries, which are sorted, begin with those of rank, and a manifest is
// among these.
func follows(entries []entry, rank int) bool {
	for _, e := range entries {
		if e.rank != rank || e.kind == kindManifest {
			return e.rank == rank
		}
	}
	return false
}

// describe opens the state v of rank, or a newer one if that one was replaced.
func (w *Workspace) describe(ctx context.Context, rank int, v Version) (Entry, error) {
	e := Entry{}
	err := w.retryStale(ctx, func() error {
		src, err := w.open(rank, v)
		if err != nil {
			last, none := w.find(rank, listings)
			v = last
			return cmp.Or(none, err)
		}
		defer src.file.Close()
		e.Version, e.ConfigSize, e.WeightsSize = src.version, int64(len(src.manifest.config())), src.size()
		return nil
	})
	return e, err
}
