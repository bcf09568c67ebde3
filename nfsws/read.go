package nfsws

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/muster-pg/muster/tensor/safetensors"
)

// State is what one rank published: complete, and as it was written. Its memory is the caller's.
type State struct {
	Rank       int
	Generation uint64
	Version    Version
	Config     []byte // JSON; nil if there was none
	Weights    *safetensors.File
}

// Read returns exactly the state v of rank, which is from its Write; a zero v is the newest, and ErrNotPublished
// at once if there is none. Since another v exists, Read waits for files that this client cannot see yet, until
// ctx ends; it returns ErrNotPublished if v was replaced, and its files are gone.
func (w *Workspace) Read(ctx context.Context, rank int, v Version) (*State, error) {
	return get(ctx, w, "read", rank, v, w.load)
}

// A getter gets a state, or a view of one, once: it does not wait for files.
type getter[T any] func(ctx context.Context, rank int, v Version) (T, error)

// get is a call that gets version v of rank, or the newest if v is zero.
func get[T any](ctx context.Context, w *Workspace, op string, rank int, v Version, once getter[T]) (T, error) {
	return call(ctx, w, op, rank, func(ctx context.Context) (T, error) {
		if v == (Version{}) {
			return getNewest(ctx, w, rank, listings, once)
		}
		return getExactly(ctx, w, rank, v, once)
	})
}

// getNewest gets the newest version of rank. It looks for that again whenever the one that it found
// may have been replaced, or has not arrived.
func getNewest[T any](ctx context.Context, w *Workspace, rank, n int, once getter[T]) (T, error) {
	return retryStale(ctx, func() (got T, err error) {
		v, err := w.find(rank, n)
		if err != nil {
			return got, err
		}
		return once(ctx, rank, v)
	})
}

// Wait is Read of the newest state that waits until rank has published something, or ctx ends.
func (w *Workspace) Wait(ctx context.Context, rank int) (*State, error) {
	return call(ctx, w, "wait for", rank, func(ctx context.Context) (*State, error) { return w.wait(ctx, rank) })
}

func (w *Workspace) wait(ctx context.Context, rank int) (*State, error) {
	begun := time.Now()
	for pace := (pace{pollTime, 10 * pollTime}); ; {
		s, err := getNewest(ctx, w, rank, 1, w.load)
		if !errors.Is(err, ErrNotPublished) {
			return s, err
		}
		if e := pace.wait(ctx); e != nil {
			return nil, fmt.Errorf("%w after %v: %w: see whether rank %d runs, and has this directory and generation",
				ErrNotPublished, time.Since(begun).Round(time.Millisecond), e, rank)
		}
	}
}

// listings is for find, where a rank that has published nothing is an answer.
const listings = 3

// find returns the newest version of rank, by its name only, or what this handle has published
// itself, even if this client cannot see it yet. It lists the directory at most n times.
//
// A directory is not read atomically (POSIX, readdir): while a manifest gets its name and an older one
// is removed, a listing may have neither, or no file at all. So a rank has published nothing only if
// several listings say so.
func (w *Workspace) find(rank, n int) (v Version, err error) {
	found := false
	for range n {
		entries, err := w.list()
		if err != nil {
			return Version{}, err
		}
		if v, found = newest(entries, rank); found {
			break
		}
	}
	if last := w.last.Load(); last != nil && rank == w.rank && (!found || compareVersions(v, *last) < 0) {
		return *last, nil
	}
	if !found {
		return Version{}, ErrNotPublished
	}
	return v, nil
}

// getExactly gets v, unless it is known to be gone. The name is looked up first, as it exists; if this
// client says that it does not, from a cache, a listing makes it ask the server.
func getExactly[T any](ctx context.Context, w *Workspace, rank int, v Version, once getter[T]) (T, error) {
	return retryStale(ctx, func() (T, error) {
		got, err := once(ctx, rank, v)
		if !errors.Is(err, fs.ErrNotExist) {
			return got, err
		}
		entries, e := w.list()
		if e != nil {
			return got, e
		}
		if last, ok := newest(entries, rank); ok && compareVersions(last, v) > 0 && !slices.Contains(entries, entry{rank, Version{Sequence: v.Sequence, ID: v.ID}, kindManifest}) {
			err = fmt.Errorf("%w: version %v was replaced by %v", ErrNotPublished, v, last)
		}
		return got, err
	})
}

// retryStale calls look again, until ctx ends, while its answer may come from a stale cache of this
// client. Data that stays wrong for a while is corrupt.
func retryStale[T any](ctx context.Context, look func() (T, error)) (T, error) {
	var since time.Time // of the first answer that was corrupt
	for pace := shortPace(); ; {
		got, err := look()
		switch {
		case !passing(err):
			return got, err
		case !errors.Is(err, ErrCorrupt):
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= staleTime:
			return got, err
		}
		if e := pace.wait(ctx); e != nil {
			return got, fmt.Errorf("%w: %w", err, e)
		}
	}
}

// pace is the wait between two looks, which grows.
type pace struct{ next, most time.Duration }

// shortPace is for what should end soon.
func shortPace() pace { return pace{5 * time.Millisecond, pollTime} }

func (p *pace) wait(ctx context.Context) error {
	t := time.NewTimer(p.next)
	defer t.Stop()
	p.next = min(2*p.next, p.most)
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// load reads a state, once.
func (w *Workspace) load(ctx context.Context, rank int, v Version) (*State, error) {
	src, err := w.open(rank, v)
	if err != nil {
		return nil, err
	}
	defer src.file.Close()
	data, err := src.all(ctx)
	if err != nil {
		return nil, err
	}
	weights, err := safetensors.Parse(data)
	if err != nil {
		return nil, corrupt(src.name, "%w", err)
	}
	return &State{rank, w.generation, src.version, src.manifest.config(), weights}, nil
}

// open opens a state: its manifest, which is read, and its weights. A Sum of 0 is not compared.
func (w *Workspace) open(rank int, v Version) (*source, error) {
	name := w.in(fileName(rank, v, kindManifest))
	raw, err := w.readManifest(name)
	if err != nil {
		return nil, err
	}
	m, sum, err := parseManifest(raw)
	if err == nil {
		err = m.check(w.generation, rank, v)
	}
	if err == nil && v.Sum != 0 && v.Sum != sum {
		err = fmt.Errorf("its checksum is %016x, not %016x as that of the version asked for", sum, v.Sum)
	}
	if err != nil {
		return nil, corrupt(name, "%w", err)
	}
	v.Sum = sum
	return w.openWeights(rank, v, m)
}

func (w *Workspace) openWeights(rank int, v Version, m *manifest) (*source, error) {
	src := &source{name: w.in(fileName(rank, v, kindWeights)), version: v, manifest: m}
	var n int64
	var err error
	switch src.file, n, err = w.volume.Open(src.name); {
	case errors.Is(err, fs.ErrNotExist):
		// Either it was replaced just now, which the next look shows, or it was removed by another
		// program.
		return nil, corrupt(src.name, "it is missing, and its manifest is there")
	case err != nil:
		return nil, at(src.name, err)
	case n != src.size():
		src.file.Close()
		return nil, corrupt(src.name, "it has %d bytes, not %d as its manifest says", n, src.size())
	}
	return src, nil
}

// readManifest reads a manifest's bytes.
func (w *Workspace) readManifest(name string) ([]byte, error) {
	f, n, err := w.volume.Open(name)
	if err != nil {
		return nil, at(name, err)
	}
	defer f.Close()
	if n > maxManifest {
		return nil, corrupt(name, "it has %d bytes, more than any manifest", n)
	}
	raw := make([]byte, n)
	if err := readFull(f, raw, 0); err != nil {
		return nil, at(name, err)
	}
	return raw, nil
}

// readFull fills p with what is at off. A file that ends before is corrupt.
func readFull(f file, p []byte, off int64) error {
	n, err := f.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return fmt.Errorf("%w: it ends at byte %d", ErrCorrupt, off+int64(n))
	}
	return err
}
