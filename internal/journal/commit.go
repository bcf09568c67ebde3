package journal

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"
)

// commit writes batches, in order, until b is durable or the journal has failed. The caller holds
// sem.
func (j *Journal) commit(b *batch) {
	for {
		next := j.nextBatch(b)
		if next == nil {
			return
		}
		j.completeBatch(next, j.write(next))
	}
}

// nextBatch closes the first batch of the queue for further entries and returns it, or nil if b is
// done. The batch stays in the queue, so that callers of Sync find it.
func (j *Journal) nextBatch(b *batch) *batch {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil || b.last <= j.durable.Load() {
		return nil
	}
	j.queue[0].taken = true
	return j.queue[0]
}

// write makes b durable. The caller holds sem, and nextBatch has returned b.
func (j *Journal) write(b *batch) error {
	began := time.Now()
	j.writing.Store(&began)
	defer j.writing.Store(nil)
	if b.segment > j.seg.number {
		if err := j.nextSegment(); err != nil {
			return err
		}
	}
	next := j.base + b.last + 1
	sealBatch(b.buf, j.seg.sum, j.seg.off, next-uint64(b.count), b.count)
	if j.onWrite == nil {
		return j.seg.write(b.buf, next)
	}
	err := j.seg.write(b.buf, next)
	j.onWrite(time.Since(began))
	return err
}

// completeBatch wakes the callers that wait for b, and keeps its buffer.
func (j *Journal) completeBatch(b *batch, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case err != nil:
		j.failLocked(err)
		return
	case j.err != nil: // an entry was too large meanwhile
		return
	}
	j.durable.Store(b.last)
	j.segments[len(j.segments)-1].bytes += int64(len(b.buf))
	if cap(b.buf) <= spareBytes {
		j.spare = b.buf[:0]
	}
	j.queue = slices.Delete(j.queue, 0, 1)
	close(b.done)
}

// nextSegment creates the segment after the current one, all of which is durable, and then writes
// the end of the current one. In this order, a segment with an end always has a successor. The
// caller holds sem.
func (j *Journal) nextSegment() error {
	before, first := j.seg, j.base+j.durable.Load()+1
	if err := j.createSegment(before.number+1, first); err != nil {
		return errors.Join(err, before.close())
	}
	return errors.Join(before.writeEnd(first), before.close())
}

// createSegment creates a durable segment whose first entry has sequence number first.
func (j *Journal) createSegment(number, first uint64) error {
	name := segmentName(j.dir, number)
	f, err := j.fs.Create(name)
	if err != nil {
		return fileError("create", name, err)
	}
	j.seg = segment{file: f, name: name, number: number, preallocate: j.preallocate}
	if err := j.seg.begin(header{version: version, store: j.store, segment: number, first: first}); err != nil {
		return err
	}
	if err := j.fs.SyncDir(j.dir); err != nil {
		return fileError("sync", j.dir, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.segments = append(j.segments, extent{number, headerLen})
	return nil
}

// ensureSegment makes all appended entries durable, and creates the given segment, or the newest
// that Rotate has returned, if it does not exist yet. The caller holds sem.
func (j *Journal) ensureSegment(segment uint64) error {
	j.mu.Lock()
	segment = min(segment, j.segment) // before all is committed: those before it are then complete
	j.mu.Unlock()
	if b, _ := j.batchOf(math.MaxUint64); b != nil {
		j.commit(b)
	}
	if err := j.failure(); err != nil || j.seg.number >= segment {
		return err
	}
	if err := j.nextSegment(); err != nil {
		j.fail(err)
		return err
	}
	return nil
}

// detachBefore returns the segments before the given one, after making sure that they are
// no longer written.
func (j *Journal) detachBefore(before uint64) (old []extent, err error) {
	<-j.sem
	defer func() { j.sem <- struct{}{} }()
	if err := j.ensureSegment(before); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	before = min(before, j.seg.number)
	n, _ := slices.BinarySearchFunc(j.segments, before, func(e extent, n uint64) int { return cmp.Compare(e.number, n) })
	old = slices.Clone(j.segments[:n])
	j.segments = slices.Delete(j.segments, 0, n)
	return old, nil
}

func (j *Journal) failure() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}
