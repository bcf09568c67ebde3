package transport

import "sync"

const (
	// smallBuffer is the size of the pooled buffers that small frames are appended to.
	smallBuffer = 4 << 10
	// fullBuffer is the size from which on a buffer gets no more frames: growing it would copy it,
	// and leave unused capacity.
	fullBuffer = 64 << 10
)

var buffers = sync.Pool{New: func() any { return new([smallBuffer]byte) }}

// chunk is some bytes to be written.
type chunk struct {
	b        []byte
	shared   *Body // the body of b, if other connections share it: neither reused nor counted
	uncopied bool  // b belongs to the caller of AppendUncopied: it is not reused
}

// chunks are bytes to be written, in order. The next frame goes into the last chunk, unless that is
// shared, uncopied or full.
type chunks []chunk

// grow appends a frame, which f appends to its argument, and returns its length.
func (q *chunks) grow(f func(b []byte) []byte) (n int) {
	if n := len(*q); n == 0 || (*q)[n-1].shared != nil || (*q)[n-1].uncopied || len((*q)[n-1].b) >= fullBuffer {
		*q = append(*q, chunk{b: buffers.Get().(*[smallBuffer]byte)[:0]})
	}
	last := &(*q)[len(*q)-1]
	before := len(last.b)
	last.b = f(last.b)
	return len(last.b) - before
}

// written removes n written bytes from queue, and returns how many of them were not shared.
func written(queue chunks, n int) (rest chunks, freed int) {
	for len(queue) > 0 {
		c := &queue[0]
		k := min(n, len(c.b))
		n -= k
		if c.shared == nil {
			freed += k
		}
		if k < len(c.b) {
			c.b = c.b[k:]
			break
		}
		if c.shared != nil {
			c.shared.release()
		} else if cap(c.b) == smallBuffer && !c.uncopied { // the end of an uncopied body may have that size
			buffers.Put((*[smallBuffer]byte)(c.b[:smallBuffer]))
		}
		queue = queue[1:]
	}
	return queue, freed
}

// releaseShared releases the shared bodies in queue.
func releaseShared(queue chunks) {
	for _, c := range queue {
		if c.shared != nil {
			c.shared.release()
		}
	}
}
