package collective

import (
	"fmt"
	"io"

	"github.com/muster-pg/muster/internal/reduce"
)

// The parts of the algorithms over connections: a verb sends and receives parts, and combines
// received parts.

// send sends a part of this verb. data must not change until flush.
func (c *call) send(to int, part uint32, data vector) error {
	out, err := c.conns.to(c.ctx, connKey{to, forVerbs})
	if err != nil {
		return c.broken(to, err)
	}
	h := c.head
	h.part = part
	out.send(&h, data)
	return nil
}

// flush returns when all messages to a rank have been written.
func (c *call) flush(to int) error {
	out, err := c.conns.to(c.ctx, connKey{to, forVerbs})
	if err == nil {
		err = out.flush()
	}
	if err != nil {
		return c.broken(to, err)
	}
	return nil
}

// receive reads the next message of a rank, which must be that part of this verb, into dst.
func (c *call) receive(from int, part uint32, dst vector) error {
	c.await(from)
	in, err := c.conns.from(c.ctx, connKey{from, forVerbs})
	if err != nil {
		return c.broken(from, err)
	}
	if err := in.receive(c, from, part, dst); err != nil {
		return err
	}
	c.await(-1)
	return nil
}

func (in *inbound) receive(c *call, from int, part uint32, dst vector) error {
	r := io.Reader(in.r)
	if in.r.Buffered() == 0 && dst.n > smallMessage {
		r = in.conn // large data is read directly into its destination
	}
	if _, err := io.ReadFull(r, in.head[:]); err != nil {
		return c.broken(from, err)
	}
	theirs := parseHead(in.head[:])
	switch {
	case theirs.verb == announceLeave:
		return c.left(from)
	case !c.head.agrees(theirs):
		return c.mismatchOf(from, theirs)
	case theirs.part != part || int(theirs.length) != dst.n:
		return c.failed(from, fmt.Errorf("it sends part %d of %d bytes, where part %d of %d bytes is expected: another version of muster?", theirs.part, theirs.length, part, dst.n))
	}
	for _, x := range dst.slices() {
		if _, err := io.ReadFull(in.r, x); err != nil {
			return c.broken(from, err)
		}
	}
	return nil
}

// combine sets dst to the combination of a and b, divided by div.
func (c *call) combine(div int, dst, a, b vector) {
	c.srcs = append(c.srcs[:0], a, b)
	c.combineAll(div, dst)
}

// into sets dst to the combination of srcs. All have the same length.
func (c *call) into(div int, dst vector, srcs []vector) {
	c.srcs = append(c.srcs[:0], srcs...)
	c.combineAll(div, dst)
}

// combineAll sets dst to the combination of c.srcs, in pieces in which all of them are contiguous.
func (c *call) combineAll(div int, dst vector) {
	for dst.n > 0 {
		n := min(len(dst.head), contiguous(c.srcs))
		c.of = take(c.of[:0], c.srcs, n)
		reduce.Into(&c.scratch, c.dt, c.op, div, dst.head[:n:n], c.of)
		dst = dst.from(n)
	}
}

// contiguous returns the number of bytes that are contiguous at the beginning of each of vs.
func contiguous(vs []vector) int {
	n := len(vs[0].head)
	for i := range vs {
		n = min(n, len(vs[i].head))
	}
	return n
}

// take moves the first n bytes of each of vs, which are contiguous, to xs.
func take(xs [][]byte, vs []vector, n int) [][]byte {
	for i := range vs {
		xs = append(xs, vs[i].head[:n:n])
		vs[i] = vs[i].from(n)
	}
	return xs
}

// buffer returns reusable memory for n bytes of received data.
func (c *call) buffer(n int) []byte {
	if cap(c.piece) < n {
		c.piece = make([]byte, n)
	}
	return c.piece[:n]
}
