package journal

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
)

// Create begins the log of the store with the id in the directory dir, which exists: it makes a segment of the given number,
// without records, durable. A log that is there already is ErrExists, unless it is what a Create of the same number has
// left that did not return.
func Create(dir string, id, number uint64, o *Options) error {
	j := newJournal(dir, id, o)
	r := recovery{j: j}
	names, err := j.fs.ReadDir(dir)
	if err != nil {
		return named("list", dir, err)
	}
	for _, name := range names {
		n, ok := segmentNumber(name)
		if !ok {
			continue
		}
		name := segmentName(dir, n)
		if unused, err := r.unused(name); err != nil || !unused || n != number {
			return errors.Join(err, refuse(name, ErrExists, ""))
		}
		if err := j.fs.Remove(name); err != nil {
			return named("remove", name, err)
		}
	}
	return errors.Join(j.create(number, 1), j.seg.close())
}

func newJournal(dir string, id uint64, o *Options) *Journal {
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
		j.fs = OS
	}
	return j
}

// Open opens the log, of the store with the id, in the directory dir. It calls apply for
// each record of the segments from number from on, in order; when it returns, these records are durable,
// whatever happened before. Segments before from are left over from a checkpoint: it removes them. Segment from has
// been made by Create or Begin, and is ErrMissing if it is not there.
//
// If something is wrong with the log, or apply has returned an error, Open changes nothing.
func Open(dir string, id uint64, from uint64, apply func(record []byte) error, o *Options) (*Journal, error) {
	j := newJournal(dir, id, o)
	r := recovery{j: j, apply: apply, logger: slog.New(slog.DiscardHandler)}
	if o != nil && o.Logger != nil {
		r.logger = o.Logger
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

	next  uint64  // sequence that the next record has to have; 0: any
	last  int64   // where the last batch of the last segment is; 0: it has only its header
	ended bool    // the last segment that was read says that another one follows
	prior segment // the one before that, without its file
	first uint64  // sequence of the first record after it
	cut   int64   // how many bytes behind the last batch are of one that was not finished
	stale string  // a segment that was begun, and is not needed: the one before it had not ended yet
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
		if err := r.segment(n, live[i+1:]); err != nil {
			return err
		}
		if !r.ended {
			break
		}
	}
	if r.ended {
		return refuse(segmentName(r.j.dir, r.j.seg.number+1), ErrMissing, "")
	}
	if err := r.repair(); err != nil {
		return err
	}
	return r.remove(old)
}

// list returns the segments before from, and the others: from, and those that follow it without a gap.
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
	for i := range uint64(max(1, len(live))) {
		if i >= uint64(len(live)) || live[i] != from+i {
			return nil, nil, refuse(segmentName(r.j.dir, from+i), ErrMissing, "")
		}
	}
	return old, live, nil
}

// repair makes the last segment ready for more.
func (r *recovery) repair() error {
	seg := &r.j.seg
	r.j.base = r.next - 1
	if r.stale != "" {
		if err := r.j.fs.Remove(r.stale); err != nil {
			return named("remove", r.stale, err)
		}
	}
	if r.cut > 0 {
		r.logger.Warn("journal: cut off an incomplete write at the end of the log; it was not acknowledged",
			"file", seg.name, "offset", seg.off, "bytes", r.cut)
		if err := seg.file.Truncate(seg.off); err != nil {
			return named("truncate", seg.name, err)
		}
		seg.end = seg.off
	}
	if err := r.finish(); err != nil {
		return err
	}
	if err := r.rewrite(); err != nil {
		return err
	}
	return named("sync", r.j.dir, r.j.fs.SyncDir(r.j.dir))
}

// finish writes the end of the segment before the last once more, for the same reason as rewrite.
func (r *recovery) finish() (err error) {
	s := &r.prior
	if s.name == "" {
		return nil
	}
	if s.file, err = r.j.fs.Open(s.name); err != nil {
		return named("open", s.name, err)
	}
	return errors.Join(s.finish(r.first), s.close())
}

// rewrite writes the last batch once more, so that it is durable even if a sync of it has failed before, and marks it.
func (r *recovery) rewrite() error {
	seg := &r.j.seg
	b, err := (&reader{f: seg.file, size: seg.off}).at(r.last, seg.off-r.last)
	if err != nil {
		return named("read", seg.name, err)
	}
	seg.off = r.last
	return seg.write(b, r.next)
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
