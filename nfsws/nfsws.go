package nfsws

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/blocking"
)

// Options has defaults for its zero value.
type Options struct {
	// Generation of the job, as pgroup.Group.Generation or a count of restarts. States of another
	// one do not exist.
	Generation uint64
	// Accumulate makes Write leave this rank's earlier states, which stay until Discard. The newest
	// is still what Read gives.
	Accumulate bool
	// Logger gets a record of each file that could not be removed; nil: none.
	Logger *slog.Logger

	volume volume // nil: the operating system's
}

const (
	// staleTime is for how long an impossible answer is attributed to a stale cache.
	staleTime = time.Second
	// pollTime is how long Wait waits before it looks again, at first; then longer, up to ten times
	// as long.
	pollTime = 100 * time.Millisecond
)

// Workspace is a rank's handle on a directory that it shares with others. It is safe for concurrent
// use.
type Workspace struct {
	volume     volume
	dir        string // as passed to Open
	rank       int
	generation uint64
	accumulate bool
	logger     *slog.Logger

	turn     chan struct{}           // has one value; the call that receives it may publish or remove
	sequence uint64                  // the highest that was seen or used for this rank; of the call that has the turn
	last     atomic.Pointer[Version] // what this handle has published last, unless it was removed

	mu    sync.Mutex // held while life ends and while calls begin
	calls sync.WaitGroup
	life  context.Context // ends with Close
	end   context.CancelCauseFunc
}

// Open opens the workspace in dir, as rank. The directory is made if its parent exists. It must not
// be a link, and must belong to this user, who runs all ranks, or to root; those of generations, to
// this user. Open removes unfinished files of this rank in this generation, and older generations.
// It returns ErrSuperseded if there is a newer one.
func Open(ctx context.Context, dir string, rank int, o *Options) (*Workspace, error) {
	if o == nil {
		o = new(Options)
	}
	switch {
	case dir == "":
		return nil, fmt.Errorf("nfsws: open: %w", errNoDir)
	case rank < 0:
		return nil, fmt.Errorf("nfsws: open %s: rank %d is negative", dir, rank)
	}
	w := &Workspace{
		volume: o.volume, dir: dir, rank: rank, generation: o.Generation,
		accumulate: o.Accumulate, logger: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), turn: make(chan struct{}, 1),
	}
	w.life, w.end = context.WithCancelCause(context.Background())
	w.turn <- struct{}{}
	_, err := blocking.Do(ctx, func() (struct{}, error) { return struct{}{}, w.enter() })
	if err != nil {
		return nil, w.wrap("open", rank, err)
	}
	return w, nil
}

// enter opens the directory, makes the generation's, and removes what is not needed.
func (w *Workspace) enter() (err error) {
	if w.volume == nil {
		v, err := openVolume(w.dir)
		if err != nil {
			return fmt.Errorf("%w: is the file system mounted, and may this user write there?", err)
		}
		w.volume = v
	}
	defer func() {
		if err != nil {
			w.volume.Close()
		}
	}()
	older, err := w.current()
	if err != nil {
		return err
	}
	if err := w.makeGeneration(); err != nil {
		return err
	}
	own, err := w.own()
	if err != nil {
		return err
	}
	w.sweepUnfinished(own)
	w.collect(older)
	return nil
}

func (w *Workspace) makeGeneration() error {
	name := generationName(w.generation)
	switch err := w.volume.Mkdir(name); {
	case errors.Is(err, fs.ErrExist):
	case err != nil:
		return at(name, err)
	}
	// Also if another rank made it: that one may not have come to this yet.
	return at(".", w.volume.SyncDir("."))
}

// current returns the older generations, the oldest first, or ErrSuperseded.
func (w *Workspace) current() (older []uint64, err error) {
	all, err := w.volume.ReadDir(".")
	if err != nil {
		return nil, at(".", err)
	}
	for _, d := range all {
		g, ours := parseGeneration(d.Name())
		switch {
		case !ours || !d.IsDir():
		case g > w.generation:
			return nil, at(d.Name(), fmt.Errorf("%w: end this process, or begin a generation that is higher", ErrSuperseded))
		case g < w.generation:
			older = append(older, g)
		}
	}
	slices.Sort(older)
	return older, nil
}

// list returns the files of the generation, sorted. Only a listing is reliable: the answer to a
// lookup of a name that does not exist yet may stay in a cache.
func (w *Workspace) list() ([]entry, error) {
	name := generationName(w.generation)
	all, err := w.volume.ReadDir(name)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := w.current(); errors.Is(err, ErrSuperseded) {
			return nil, err
		}
		return nil, at(name, errors.New("it was removed while it was in use: open the workspace again"))
	}
	if err != nil {
		return nil, at(name, err)
	}
	entries := make([]entry, 0, len(all))
	for _, d := range all {
		if e, ok := parseEntry(d.Name()); ok {
			entries = append(entries, e)
		}
	}
	slices.SortFunc(entries, compareEntries)
	return entries, nil
}

// own lists this rank's files, and notes the highest sequence.
func (w *Workspace) own() ([]entry, error) {
	all, err := w.list()
	if err != nil {
		return nil, err
	}
	own := slices.DeleteFunc(all, func(e entry) bool { return e.rank != w.rank })
	if len(own) > 0 {
		w.sequence = max(w.sequence, own[len(own)-1].version.Sequence)
	}
	return own, nil
}

// Close ends the calls in progress, with ErrClosed, and waits for them. What is published stays.
// Views stay open. It may be called twice.
func (w *Workspace) Close() error {
	w.mu.Lock()
	first := w.life.Err() == nil
	w.end(ErrClosed)
	w.mu.Unlock()
	w.calls.Wait()
	if !first {
		return nil
	}
	return w.wrap("close", w.rank, w.volume.Close())
}

// call makes a call, which ends with ctx even if the file system does not answer.
func call[T any](ctx context.Context, w *Workspace, op string, rank int, f func(ctx context.Context) (T, error)) (v T, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := w.begin(ctx); err != nil {
		return v, w.wrap(op, rank, err)
	}
	defer w.calls.Done()
	defer context.AfterFunc(w.life, func() { cancel(ErrClosed) })()
	v, err = blocking.Do(ctx, func() (T, error) { return f(ctx) })
	return v, w.wrap(op, rank, err)
}

// change is call for what changes files: one runs at a time.
func change[T any](ctx context.Context, w *Workspace, op string, f func(ctx context.Context) (T, error)) (T, error) {
	return call(ctx, w, op, w.rank, func(ctx context.Context) (v T, err error) {
		select {
		case <-w.turn:
			defer func() { w.turn <- struct{}{} }()
			return f(ctx)
		case <-ctx.Done():
			return v, context.Cause(ctx)
		}
	})
}

// begin begins a call, which ends with calls.Done.
func (w *Workspace) begin(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := cmp.Or(context.Cause(w.life), context.Cause(ctx)); err != nil {
		return err
	}
	w.calls.Add(1)
	return nil
}

// in is the path of a name in the generation's directory, as a volume has it.
func (w *Workspace) in(name string) string { return generationName(w.generation) + "/" + name }

// path is a volume's name as users have it.
func (w *Workspace) path(name string) string { return filepath.Join(w.dir, filepath.FromSlash(name)) }
