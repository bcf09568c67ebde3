package journal

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
)

// Create creates the log of the store id in the directory dir, which exists: a durable segment of
// the given number, without entries. The error is ErrExists if there is a log, unless an
// interrupted Create of the same number has left it.
func Create(dir string, id, number uint64, o *Options) error {
	j := newJournal(dir, id, o)
	r := recovery{j: j}
	names, err := j.fs.ReadDir(dir)
	if err != nil {
		return fileError("list", dir, err)
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
			return fileError("remove", name, err)
		}
	}
	return errors.Join(j.createSegment(number, 1), j.seg.close())
}

func newJournal(dir string, id uint64, o *Options) *Journal {
	if o == nil {
		o = &Options{}
	}
	return &Journal{
		fs:      cmp.Or(o.FS, OS),
		dir:     dir,
		store:   id,
		onWrite: o.OnWrite, preallocate: int64(cmp.Or(max(o.Preallocate, 0), defaultPreallocate)),
		sem: make(chan struct{}, 1),
	}
}

// Open opens the log of the store id in the directory dir. It calls apply for each entry of the
// segments from from on, in order; when it returns, these entries are durable, whatever happened
// before. It removes the segments before from, which an interrupted Remove has left. Segment from
// was created by Create or Begin; the error is ErrMissing if it does not exist.
//
// If the log is damaged, or apply returns an error, Open changes nothing.
func Open(dir string, id uint64, from uint64, apply func(entry []byte) error, o *Options) (*Journal, error) {
	j := newJournal(dir, id, o)
	r := recovery{j: j, apply: apply, logger: slog.New(slog.DiscardHandler)}
	if o != nil && o.Logger != nil {
		r.logger = o.Logger
	}
	if err := r.run(from); err != nil {
		return nil, errors.Join(err, j.seg.close())
	}
	j.segment, j.segmentEmpty = j.seg.number, r.last == 0
	j.sem <- struct{}{}
	if j.segments[0].number < from {
		if err := j.Remove(from); err != nil {
			return nil, errors.Join(err, j.seg.close())
		}
	}
	return j, nil
}

// recovery is the state of Open. It changes nothing on the disk before repair.
type recovery struct {
	j      *Journal // j.seg is the segment that is being read, or the last one
	apply  func([]byte) error
	logger *slog.Logger

	next     uint64   // sequence number that the next entry must have; 0: any
	last     int64    // offset of the last batch of the last segment; 0: it has only its header
	ended    bool     // the last segment that was read has an end: another one follows
	previous segment  // the segment before that one, without its file
	first    uint64   // sequence number of the first entry after previous
	torn     [2]int64 // begin and end of an incomplete batch behind the last one
	stale    string   // a segment that was created too early: the one before it has no end
}

func (r *recovery) run(from uint64) error {
	old, live, err := r.list(from)
	if err != nil {
		return err
	}
	for _, n := range old {
		if err := r.checkObsolete(n); err != nil {
			return err
		}
		r.j.segments = append(r.j.segments, extent{number: n})
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
	return r.repair()
}

// list returns the segments before from, and those from from on, which must have no gap.
func (r *recovery) list(from uint64) (old, live []uint64, err error) {
	names, err := r.j.fs.ReadDir(r.j.dir)
	if err != nil {
		return nil, nil, fileError("list", r.j.dir, err)
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

// repair prepares the last segment for further batches.
func (r *recovery) repair() error {
	seg := &r.j.seg
	r.j.base = r.next - 1
	if r.stale != "" {
		if err := r.j.fs.Remove(r.stale); err != nil {
			return fileError("remove", r.stale, err)
		}
	}
	if off, end := r.torn[0], r.torn[1]; off < end {
		r.logger.Warn("journal: removed an incomplete write at the end of the log; it was not acknowledged",
			"file", seg.name, "offset", off, "bytes", end-off)
		if err := seg.zero(off, end); err != nil { // a crash must not leave a short file
			return err
		}
	}
	if err := r.rewriteEnd(); err != nil {
		return err
	}
	if err := r.rewriteLastBatch(); err != nil {
		return err
	}
	return fileError("sync", r.j.dir, r.j.fs.SyncDir(r.j.dir))
}

// rewriteEnd writes the end of the segment before the last one again, for the same reason as
// rewriteLastBatch.
func (r *recovery) rewriteEnd() (err error) {
	s := &r.previous
	if s.name == "" {
		return nil
	}
	if s.file, err = r.j.fs.Open(s.name); err != nil {
		return fileError("open", s.name, err)
	}
	return errors.Join(s.writeEnd(r.first), s.close())
}

// rewriteLastBatch writes the last batch and its mark again, so that the batch is durable even if
// an earlier sync of it has failed.
func (r *recovery) rewriteLastBatch() error {
	seg := &r.j.seg
	b, err := (&reader{f: seg.file, size: seg.off}).at(r.last, seg.off-r.last)
	if err != nil {
		return fileError("read", seg.name, err)
	}
	seg.off = r.last
	return seg.write(b, r.next)
}
