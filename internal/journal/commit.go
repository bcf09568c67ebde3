package journal

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// commit writes batches, in order, until b is durable or the journal has failed. Called with the turn.
func (j *Journal) commit(b *batch) {
	for {
		next := j.take(b)
		if next == nil {
			return
		}
		j.settle(next, j.write(next))
	}
}

// take closes the first batch, unless b is done, and returns it. It stays in the queue, for those who
// want to wait for it.
func (j *Journal) take(b *batch) *batch {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil || b.last <= j.durable.Load() {
		return nil
	}
	j.queue[0].taken = true
	return j.queue[0]
}

// write makes b durable. Called with the turn, and b taken.
func (j *Journal) write(b *batch) error {
	began := time.Now()
	j.writing.Store(&began)
	defer j.writing.Store(nil)
	if b.segment > j.seg.number {
		if err := j.next(); err != nil {
			return err
		}
	}
	next := j.base + b.last + 1
	seal(b.buf, j.seg.sum, j.seg.off, next-uint64(b.count), b.count)
	if j.wrote == nil {
		return j.seg.write(b.buf, next)
	}
	err := j.seg.write(b.buf, next)
	j.wrote(time.Since(began))
	return err
}

// settle tells those who wait for b, and keeps its buffer.
func (j *Journal) settle(b *batch, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case err != nil:
		j.failLocked(err)
		return
	case j.err != nil: // a record was too large meanwhile
		return
	}
	j.durable.Store(b.last)
	j.live[len(j.live)-1].bytes += int64(len(b.buf))
	if cap(b.buf) <= spareBytes {
		j.spare = b.buf[:0]
	}
	j.queue = slices.Delete(j.queue, 0, 1)
	close(b.done)
}

// next creates the segment after the one that is written, all of which is durable, and then ends that one. Called with
// the turn.
func (j *Journal) next() error {
	before, first := j.seg, j.base+j.durable.Load()+1
	if err := j.create(before.number+1, first); err != nil {
		return errors.Join(err, before.close())
	}
	return errors.Join(before.finish(first), before.close())
}

// create makes a segment, durable, whose first record has the given sequence.
func (j *Journal) create(number, first uint64) error {
	name := segmentName(j.dir, number)
	f, err := j.fs.Create(name)
	if err != nil {
		return named("create", name, err)
	}
	j.seg = segment{file: f, name: name, number: number, ahead: j.ahead}
	if err := j.seg.begin(header{version: version, store: j.store, segment: number, first: first}); err != nil {
		return err
	}
	if err := j.fs.SyncDir(j.dir); err != nil {
		return named("sync", j.dir, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.live = append(j.live, extent{number, headerLen})
	return nil
}

// begun sees to it that the given segment has been begun. Called with the turn.
func (j *Journal) begun(segment uint64) error {
	b, segment := j.lastBefore(segment)
	if b != nil {
		j.commit(b)
	}
	if err := j.failed(); err != nil {
		return err
	}
	if j.seg.number < segment {
		if err := j.next(); err != nil {
			j.fail(err)
			return err
		}
	}
	return nil
}

// leave sees to it that segments before the given one are written no more, and returns them.
func (j *Journal) leave(before uint64) (old []extent, err error) {
	<-j.turn
	defer func() { j.turn <- struct{}{} }()
	if err := j.begun(before); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	before = min(before, j.seg.number)
	n, _ := slices.BinarySearchFunc(j.live, before, func(e extent, n uint64) int { return cmp.Compare(e.number, n) })
	old = slices.Clone(j.live[:n])
	j.live = slices.Delete(j.live, 0, n)
	return old, nil
}

// lastBefore returns the last batch that waits for a segment before the given one, or before the
// newest if that is older.
func (j *Journal) lastBefore(before uint64) (last *batch, bound uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	bound = min(before, j.number)
	for _, b := range j.queue {
		if b.segment < bound {
			last = b
		}
	}
	return last, bound
}

func (j *Journal) failed() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}
