package journal

import (
	"cmp"
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
	if b.segment > j.seg.number {
		if err := j.next(); err != nil {
			return err
		}
	}
	seal(b.buf, j.seg.sum, j.seg.off, j.base+b.last-uint64(b.count)+1, b.count)
	if j.wrote == nil {
		return j.seg.write(b.buf)
	}
	began := time.Now()
	err := j.seg.write(b.buf)
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

// next begins the segment after the one that is written, all of which is durable. Called with the turn.
func (j *Journal) next() error {
	_ = j.seg.close()
	return j.create(j.seg.number + 1)
}

// create makes a segment. It is durable before any record is.
func (j *Journal) create(number uint64) error {
	name := segmentName(j.dir, number)
	f, err := j.fs.Create(name)
	if err != nil {
		return named("create", name, err)
	}
	j.seg = segment{file: f, name: name, number: number, ahead: j.ahead}
	return j.begin()
}

// begin writes the header of the segment, and makes its name durable.
func (j *Journal) begin() error {
	h := header{version: version, store: j.store, segment: j.seg.number, first: j.base + j.durable.Load() + 1}
	if err := j.seg.begin(h); err != nil {
		return err
	}
	if err := j.fs.SyncDir(j.dir); err != nil {
		return named("sync", j.dir, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.live = append(j.live, extent{j.seg.number, headerLen})
	return nil
}

// leave sees to it that segments before the given one are written no more, and returns them.
func (j *Journal) leave(before uint64) (old []extent, err error) {
	<-j.turn
	defer func() { j.turn <- struct{}{} }()
	b, before := j.lastBefore(before)
	if b != nil {
		j.commit(b)
	}
	if err := j.failed(); err != nil {
		return nil, err
	}
	if j.seg.number < before {
		if err := j.next(); err != nil {
			j.fail(err)
			return nil, err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
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
