package nfsws

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"syscall"
)

// sweepUnfinished removes what publishes that have died left of this rank: manifests that were being written, and of
// states the one file that has lost the other. Entries are this rank's, sorted.
func (w *Workspace) sweepUnfinished(own []entry) {
	last, _ := newest(own, w.rank)
	has := setOf(own)
	var orphans []entry
	for _, e := range own {
		switch {
		case e.kind == kindTemp, e.kind == kindManifest && !has[e.with(kindWeights)] && compareVersions(e.version, last) < 0:
			w.remove(w.in(e.name()))
		case e.kind == kindWeights && !has[e.with(kindManifest)] && !w.hasManifest(e.version):
			orphans = append(orphans, e)
		}
	}
	// A manifest that was taken back must not come back, after a crash, without its weights.
	if len(orphans) > 0 && w.syncGeneration() == nil {
		for _, e := range orphans {
			w.remove(w.in(e.name()))
		}
	}
}

// sweepReplaced removes what is older than the newest state, and nothing that is newer: if two processes believe to be
// this rank, it is what the other is about to publish.
func (w *Workspace) sweepReplaced(own []entry) {
	last, _ := newest(own, w.rank)
	has := setOf(own)
	for _, e := range own { // of one state, the manifest is the first
		if compareVersions(e.version, last) >= 0 || e.kind == kindWeights && has[e.with(kindManifest)] {
			continue
		}
		has[e] = !w.remove(w.in(e.name()))
	}
}

func setOf(entries []entry) map[entry]bool {
	set := map[entry]bool{}
	for _, e := range entries {
		set[e] = true
	}
	return set
}

func (w *Workspace) syncGeneration() error {
	dir := generationName(w.generation)
	return at(dir, w.volume.SyncDir(dir))
}

// hasManifest looks a second time, by name, before weights are removed: the first look may have been at an old listing.
// Nobody will ever publish a state under a name that is not there now, so that the answer may well be cached.
func (w *Workspace) hasManifest(v Version) bool {
	f, err := w.volume.Open(w.in(fileName(w.rank, v, kindManifest)))
	if err == nil {
		f.Close()
	}
	return !errors.Is(err, fs.ErrNotExist)
}

// remove removes a file, or tells that it could not: it is in nobody's way then, and is tried again later.
func (w *Workspace) remove(name string) bool {
	err := w.volume.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return true
	}
	w.logger.Warn("nfsws: cannot remove a file that nobody needs", "path", w.path(name), "error", err)
	return false
}

// collect removes generations: files of ours in directories of ours. What others have put there stays, and so does the
// directory then. Several ranks may do it at once.
func (w *Workspace) collect(generations []uint64) {
	for _, g := range generations {
		dir := generationName(g)
		files, err := w.volume.ReadDir(dir)
		if err != nil {
			continue // another rank was here, or will be
		}
		foreign := false
		for _, f := range files {
			if _, ours := parseEntry(f.Name()); ours && !f.IsDir() {
				w.remove(dir + "/" + f.Name())
			} else {
				foreign = true
			}
		}
		if !foreign {
			w.removeDir(dir)
		}
	}
}

// removeDir may find it full again: of what a client keeps for a reader that still has it open, or of what a process
// of that generation has just made. The next Open goes on.
func (w *Workspace) removeDir(dir string) {
	err := w.volume.Remove(dir)
	if !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, fs.ErrExist) && err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.logger.Warn("nfsws: cannot remove a generation that nobody needs", "path", w.path(dir), "error", err)
	}
}

// Remove takes back what this rank has published in this generation. Those who read it at the moment may hear
// ErrNotPublished.
func (w *Workspace) Remove(ctx context.Context) error {
	ctx, done, err := w.beginTurn(ctx)
	if err != nil {
		return w.wrap("remove", w.rank, err)
	}
	defer done()
	return w.wrap("remove", w.rank, w.removeAll(ctx))
}

// Discard takes back one state that this rank has published in this generation: v is what its Write returned. Those who
// read it at the moment may hear ErrNotPublished. One that is not there is no error.
func (w *Workspace) Discard(ctx context.Context, v Version) error {
	_, done, err := w.beginTurn(ctx)
	if err != nil {
		return w.wrap("discard", w.rank, err)
	}
	defer done()
	return w.wrap("discard", w.rank, w.discard(v))
}

// discard takes the manifest back for good before the weights.
func (w *Workspace) discard(v Version) error {
	for _, k := range []kind{kindManifest, kindWeights} {
		name := w.in(fileName(w.rank, v, k))
		if err := w.volume.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return at(name, err)
		}
		if err := w.syncGeneration(); err != nil {
			return err
		}
	}
	if last := w.lastPublished(); last != nil && compareVersions(*last, v) == 0 {
		w.published(nil)
	}
	return nil
}

// removeAll begins with the oldest manifest, each durably: at no moment is a state that was replaced the newest again, and
// none loses its weights before its manifest.
func (w *Workspace) removeAll(ctx context.Context) error {
	own, err := w.own()
	if err != nil {
		return err
	}
	isManifest := func(e entry) bool { return e.kind == kindManifest }
	manifests := slices.DeleteFunc(slices.Clone(own), func(e entry) bool { return !isManifest(e) })
	rest := slices.DeleteFunc(own, isManifest)
	for _, e := range slices.Concat(manifests, rest) {
		if err := ended(ctx); err != nil {
			return err
		}
		name := w.in(e.name())
		if err := w.volume.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return at(name, err)
		}
		if e.kind != kindManifest {
			continue
		}
		if err := w.syncGeneration(); err != nil {
			return err
		}
	}
	w.published(nil)
	return w.syncGeneration()
}

// published notes what this handle has published last.
func (w *Workspace) published(v *Version) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = v
}

// lastPublished is what published has noted.
func (w *Workspace) lastPublished() *Version {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}
