package nfsws

import (
	"context"
	"errors"
	"io/fs"
)

// sweepUnfinished removes what interrupted publishes have left of this rank: manifests that were
// being written, and of states the one file that has lost the other. Entries are this rank's,
// sorted.
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
	// A manifest that was removed must not reappear, after a crash, without its weights.
	if len(orphans) > 0 && w.syncGeneration() == nil {
		for _, e := range orphans {
			w.remove(w.in(e.name()))
		}
	}
}

// sweepReplaced removes what is older than the newest state, and nothing that is newer: if two
// processes run as this rank, that is what the other is about to publish.
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

// hasManifest looks a second time, by name, before weights are removed: the first look may have
// been at an old listing. No state is ever published under a name that does not exist now, so a
// cached answer does no harm.
func (w *Workspace) hasManifest(v Version) bool {
	f, _, err := w.volume.Open(w.in(fileName(w.rank, v, kindManifest)))
	if err == nil {
		f.Close()
	}
	return !errors.Is(err, fs.ErrNotExist)
}

// remove removes a file or a directory, or logs that it could not: what is left does no harm, and the
// next sweep or Open tries again. A directory may not be empty: with files of other programs, what a
// client keeps for a reader that still has it open, or what a process of that generation has just made.
func (w *Workspace) remove(name string) bool {
	err := w.volume.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return true
	}
	if !errors.Is(err, fs.ErrExist) { // ENOTEMPTY
		w.logger.Warn("nfsws: cannot remove what is not needed", "path", w.path(name), "error", err)
	}
	return false
}

// collect removes generations: files of this package in directories of this package. Files of other
// programs stay, and so do their directories. Several ranks may do it at once.
func (w *Workspace) collect(generations []uint64) {
	for _, g := range generations {
		dir := generationName(g)
		files, err := w.volume.ReadDir(dir)
		if err != nil {
			continue // another rank was here, or will be
		}
		for _, f := range files {
			if _, ours := parseEntry(f.Name()); ours && !f.IsDir() {
				w.remove(dir + "/" + f.Name())
			}
		}
		w.remove(dir)
	}
}

// Remove removes what this rank has published in this generation. Concurrent readers may get
// ErrNotPublished.
func (w *Workspace) Remove(ctx context.Context) error {
	_, err := change(ctx, w, "remove", func(ctx context.Context) (struct{}, error) { return struct{}{}, w.removeAll(ctx) })
	return err
}

// Discard removes one state that this rank has published in this generation: v is what its Write
// returned. Concurrent readers may get ErrNotPublished. It is no error if the state does not exist.
func (w *Workspace) Discard(ctx context.Context, v Version) error {
	_, err := change(ctx, w, "discard", func(context.Context) (struct{}, error) { return struct{}{}, w.discard(v) })
	return err
}

func (w *Workspace) discard(v Version) error {
	if err := w.removeDurably(entry{w.rank, v, kindManifest}, entry{w.rank, v, kindWeights}); err != nil {
		return err
	}
	if last := w.last.Load(); last != nil && compareVersions(*last, v) == 0 {
		w.last.Store(nil)
	}
	return nil
}

// removeAll begins with the oldest state: at no moment is a replaced one the newest again.
func (w *Workspace) removeAll(ctx context.Context) error {
	own, err := w.own()
	if err != nil {
		return err
	}
	for _, e := range own {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := w.removeDurably(e); err != nil {
			return err
		}
	}
	w.last.Store(nil)
	return nil
}

// removeDurably removes files in this order, even if the machine fails meanwhile: so no state loses
// its weights before its manifest.
func (w *Workspace) removeDurably(files ...entry) error {
	for _, e := range files {
		name := w.in(e.name())
		if err := w.volume.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return at(name, err)
		}
		if err := w.syncGeneration(); err != nil {
			return err
		}
	}
	return nil
}
