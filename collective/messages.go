package collective

import (
	"fmt"
	"io"

	"github.com/muster-pg/muster/internal/reduce"
)

// What the algorithms over connections are made of: a verb sends and receives parts, and combines what has come.

// send sends a part of this verb. data has to stay as it is until flush.
func (c *call) send(to int, part uint32, data []byte) error {
	out, err := c.lanes.to(c.ctx, laneKey{to, forVerbs})
	if err != nil {
		return c.broken(to, err)
	}
	h := c.head
	h.part = part
	out.send(&h, data)
	return nil
}

// flush returns when all that was sent to a rank is written.
func (c *call) flush(to int) error {
	out, err := c.lanes.to(c.ctx, laneKey{to, forVerbs})
	if err == nil {
		err = out.flush()
	}
	if err != nil {
		return c.broken(to, err)
	}
	return nil
}

// receive reads the next message of a rank, which is that part of this verb, into dst.
func (c *call) receive(from int, part uint32, dst []byte) error {
	c.await(from)
	in, err := c.lanes.from(c.ctx, laneKey{from, forVerbs})
	if err != nil {
		return c.broken(from, err)
	}
	if err := in.receive(c, from, part, dst); err != nil {
		return err
	}
	c.await(-1)
	return nil
}

func (in *inLane) receive(c *call, from int, part uint32, dst []byte) error {
	r := io.Reader(in.r)
	if in.r.Buffered() == 0 && len(dst) > smallMessage {
		r = in.conn // what is large goes straight to where it belongs
	}
	if _, err := io.ReadFull(r, in.head[:]); err != nil {
		return c.broken(from, err)
	}
	theirs := parseHead(in.head[:])
	switch {
	case theirs.verb == goodbye:
		return c.left(from)
	case !c.head.agrees(theirs):
		return c.disagree(from, theirs)
	case theirs.part != part || int(theirs.length) != len(dst):
		return c.failed(from, fmt.Errorf("it sends part %d of %d bytes, where part %d of %d bytes is expected: another version of muster?", theirs.part, theirs.length, part, len(dst)))
	}
	if _, err := io.ReadFull(in.r, dst); err != nil {
		return c.broken(from, err)
	}
	return nil
}

// combine makes dst the combination of a and b, which is this rank's own step of an algorithm.
func (c *call) combine(div int, dst, a, b []byte) {
	c.dsts = append(c.dsts[:0], dst)
	c.srcs = append(c.srcs[:0], a, b)
	reduce.Into(&c.scratch, c.dt, c.op, div, c.dsts, c.srcs)
}

// into makes dst the combination of srcs, and intoAll each of dsts.
func (c *call) into(div int, dst []byte, srcs [][]byte) {
	c.dsts = append(c.dsts[:0], dst)
	c.intoAll(div, c.dsts, srcs)
}

func (c *call) intoAll(div int, dsts, srcs [][]byte) {
	if len(dsts[0]) > 0 {
		reduce.Into(&c.scratch, c.dt, c.op, div, dsts, srcs)
	}
}

// buffer is memory for n bytes that have come and are to be combined; it is used again.
func (c *call) buffer(n int) []byte {
	if cap(c.piece) < n {
		c.piece = make([]byte, n)
	}
	return c.piece[:n]
}
