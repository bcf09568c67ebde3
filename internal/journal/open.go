package journal

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
)

// Open opens the log, of the store with the id, in the directory dir, which exists. It calls apply for
// each record of the segments from number from on, in order; when it returns, these records are durable,
// whatever happened before. Segments before from are left over from a checkpoint: it removes them. A log
// that has no segments from there on begins with segment from.
//
// If something is wrong with the log, or apply has returned an error, Open changes nothing.
func Open(dir string, id uint64, from uint64, apply func(record []byte) error, o *Options) (*Journal, error) {
	if o == nil {
		o = &Options{}
	}
	j := &Journal{
		fs:    o.FS,
		dir:   dir,
		store: id,
		wrote: o.Wrote, ahead: int64(cmp.Or(max(o.Ahead, 0), aheadDefault)),
		turn: make(chan struct{}, 1),
	}
	if j.fs == nil {
		j.fs = osFS{}
	}
	r := recovery{j: j, apply: apply, logger: o.Logger}
	if r.logger == nil {
		r.logger = slog.New(slog.DiscardHandler)
	}
	if err := r.run(from); err != nil {
		return nil, errors.Join(err, j.seg.close())
	}
	j.number, j.fresh = j.seg.number, r.last == 0
	j.turn <- struct{}{}
	return j, nil
}

// recovery is what Open has found. Nothing on the disk is changed before repair.
type recovery struct {
	j      *Journal // j.seg is the segment that is read, or the last
	apply  func([]byte) error
	logger *slog.Logger

	next uint64 // sequence that the next record has to have; 0: any
	last int64  // where the last batch of the last segment is; 0: it has only its header
	cut  int64  // how many bytes behind it are of a batch that was not finished
	torn bool   // the last segment has no header yet, only so many bytes
}

func (r *recovery) run(from uint64) error {
	old, live, err := r.list(from)
	if err != nil {
		return err
	}
	for _, n := range old {
		if err := r.leftOver(n); err != nil {
			return err
		}
	}
	for i, n := range live {
		if err := r.segment(n, i == len(live)-1); err != nil {
			return err
		}
	}
	if err := r.repair(from, len(live) == 0); err != nil {
		return err
	}
	return r.remove(old)
}

// list returns the segments before from, and the others: one after the other, the first of them from.
func (r *recovery) list(from uint64) (old, live []uint64, err error) {
	names, err := r.j.fs.ReadDir(r.j.dir)
	if err != nil {
		return nil, nil, named("list", r.j.dir, err)
	}
	for _, name := range names {
		switch n, ok := segmentNumber(name); {
		case !ok:
		case n < from:
			old = append(old, n)
		default:
			live = append(live, n)
		}
	}
	slices.Sort(old)
	slices.Sort(live)
	for i, n := range live {
		if want := from + uint64(i); n != want {
			return nil, nil, refuse(segmentName(r.j.dir, want), ErrMissing, "")
		}
	}
	return old, live, nil
}

// repair makes the last segment ready for more.
func (r *recovery) repair(from uint64, none bool) error {
	j, seg := r.j, &r.j.seg
	j.base = max(r.next, 1) - 1
	if none {
		return j.create(from)
	}
	if r.cut > 0 {
		r.logger.Warn("journal: cut off what a crash has left unfinished; nobody was told that it is there",
			"file", seg.name, "offset", seg.off, "bytes", r.cut)
	}
	if r.torn || r.cut > 0 {
		if err := seg.file.Truncate(seg.off); err != nil {
			return named("truncate", seg.name, err)
		}
		seg.end = seg.off
	}
	if r.torn {
		return j.begin()
	}
	return r.rewrite()
}

// rewrite writes the last batch once more, so that it is durable even if a sync of it has failed before.
func (r *recovery) rewrite() error {
	seg := &r.j.seg
	b, err := (&reader{f: seg.file, size: seg.off}).at(r.last, seg.off-r.last)
	if err != nil {
		return named("read", seg.name, err)
	}
	if _, err := seg.file.WriteAt(b, r.last); err != nil {
		return named("write", seg.name, err)
	}
	if err := seg.file.Sync(); err != nil {
		return named("sync", seg.name, err)
	}
	return named("sync", r.j.dir, r.j.fs.SyncDir(r.j.dir))
}

// remove removes what is left over from a checkpoint.
func (r *recovery) remove(old []uint64) error {
	for _, n := range old {
		name := segmentName(r.j.dir, n)
		if err := r.j.fs.Remove(name); err != nil {
			return named("remove", name, err)
		}
	}
	if len(old) == 0 {
		return nil
	}
	return named("sync", r.j.dir, r.j.fs.SyncDir(r.j.dir))
}
