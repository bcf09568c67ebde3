package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// write is the writer: it sends what is queued until the Conn ends.
func (c *Conn) write() {
	defer close(c.wrote)
	var b []byte
	for last := false; !last; {
		select {
		case <-c.wake:
		case <-c.quit:
			last = true
		case <-c.done:
			return
		}
		var err error
		if b, err = c.flush(b); err != nil {
			c.fail(err)
			return
		}
	}
}

// fail ends the Conn because writing has failed. The reader first handles what the peer has sent
// before.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, net.ErrClosed) {
		c.broken = fmt.Errorf("shm: write to the peer: %w", err)
	}
	c.mu.Unlock()
	_ = c.sock.CloseWrite()
	_ = c.sock.CloseRead()
}

// flush sends until nothing is queued. It uses b, and returns it, which may have grown.
func (c *Conn) flush(b []byte) ([]byte, error) {
	for {
		var queue []notice
		queue, b = c.pending(b[:0])
		if len(queue) == 0 && len(b) == 0 {
			return b, nil
		}
		err := c.notify(queue)
		if err == nil {
			err = c.send(b, nil)
		}
		if err != nil {
			return nil, err
		}
	}
}

// pending removes what is queued; of the returns, which it appends to b, as many as fit into a
// frame.
func (c *Conn) pending(b []byte) ([]notice, []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	queue := c.queue
	c.queue = nil
	if n := min(len(c.returns), maxRecords(kindReturn)); n > 0 {
		b = appendHeader(b, kindReturn, n)
		for _, r := range c.returns[:n] {
			b = appendRef(b, r)
		}
		if n == len(c.returns) {
			c.returns = c.returns[:0] // to be used again
		} else {
			c.returns = c.returns[n:]
		}
		c.open -= n
	}
	return queue, b
}

// notify sends notices, one at a time, ends their hold of segments, and wakes the goroutines that
// share them.
func (c *Conn) notify(queue []notice) (err error) {
	for _, n := range queue {
		switch {
		case err != nil:
		case n.seg == nil:
			err = c.send(appendKey(appendHeader(nil, kindDrop, 1), n.key), nil)
		default:
			err = c.send(appendSegment(appendHeader(nil, kindSegment, 1), n.key, n.seg.size), unix.UnixRights(n.seg.fd))
		}
		if n.seg != nil {
			n.seg.unhold()
		}
	}
	if err == nil && len(queue) > 0 {
		c.arrived(queue)
	}
	return err
}

// arrived notes that these segments are in the socket.
func (c *Conn) arrived(queue []notice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range queue {
		if s := c.sent[n.key]; s != nil {
			s.delivered = true
		}
	}
	c.change()
}

// send sends b, with rights at its beginning.
func (c *Conn) send(b, rights []byte) error {
	for len(b) > 0 {
		n, _, err := c.sock.WriteMsgUnix(b, rights, nil)
		if err != nil {
			return err
		}
		b, rights = b[n:], nil
	}
	return nil
}

// reader is what the goroutine that reads owns.
type reader struct {
	c   *Conn
	buf []byte
	n   int   // bytes of buf that have arrived and are not parsed
	fds []int // descriptors of which the messages are not parsed
	oob []byte
}

// read is the reader: it handles what arrives, and cleans up when the Conn ends.
func (c *Conn) read() {
	r := &reader{c: c, buf: make([]byte, header+maxBody)}
	r.oob = make([]byte, unix.CmsgSpace(4)) // honest peers send one descriptor at a time
	err := stream(c.sock)
	for err == nil {
		err = r.next()
	}
	for _, fd := range r.fds {
		_ = unix.Close(fd)
	}
	c.end(err)
}

func stream(c *net.UnixConn) error {
	if c.LocalAddr() == nil || c.LocalAddr().Network() != "unix" {
		return errors.New("shm: a Conn needs a stream socket, net \"unix\"")
	}
	return nil
}

// next reads once, and handles all frames that are complete.
func (r *reader) next() error {
	n, oobn, flags, _, err := r.c.sock.ReadMsgUnix(r.buf[r.n:], r.oob)
	if oobn > 0 {
		r.fds = append(r.fds, descriptors(r.oob[:oobn])...)
	}
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET):
		return fmt.Errorf("shm: the peer has ended the connection: %w", io.EOF)
	case err != nil:
		return fmt.Errorf("shm: read from the peer: %w", err)
	case flags&unix.MSG_CTRUNC != 0:
		return errors.New("shm: a descriptor was cut off: the peer has sent more than it may, or this process can have no more (ulimit -n, RLIMIT_NOFILE)")
	case len(r.fds) > 2: // one of a message that is incomplete, and one of the next
		return errors.New("shm: the peer has sent more descriptors than segments")
	}
	r.n += n
	if err := r.handle(); err != nil {
		return fmt.Errorf("shm: refused what the peer has sent: %w", err)
	}
	return nil
}

// descriptors are those that came along.
func descriptors(oob []byte) (fds []int) {
	msgs, _ := unix.ParseSocketControlMessage(oob)
	for _, m := range msgs {
		if some, err := unix.ParseUnixRights(&m); err == nil {
			fds = append(fds, some...)
		}
	}
	return fds
}

// handle handles the complete frames.
func (r *reader) handle() error {
	at := 0
	for {
		f, n, err := parse(r.buf[at:r.n])
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		if err := handlers[f.kind](r, f.body); err != nil {
			return err
		}
		at += n
	}
	r.n = copy(r.buf, r.buf[at:r.n])
	if r.n == 0 && len(r.fds) > 0 {
		return errors.New("a descriptor that belongs to no segment")
	}
	return nil
}

var handlers = [...]func(*reader, []byte) error{
	kindSegment: (*reader).segment, kindReturn: (*reader).returned, kindDrop: (*reader).drop,
}

// segment maps a segment that the peer has sent.
func (r *reader) segment(b []byte) error {
	if len(r.fds) == 0 {
		return errors.New("a segment without a descriptor")
	}
	k, err := readKey(b)
	if err != nil {
		return err
	}
	size := int64(binary.LittleEndian.Uint64(b[16:]))
	c := r.c
	c.mu.Lock()
	count, mapped, had := c.mappings, c.mapped, c.maps[k] != nil
	c.mu.Unlock()
	if had || count >= maxSegments || size > maxMapped-mapped {
		return fmt.Errorf("segment %d of %d bytes, where %d segments of %d bytes are mapped (there before: %t)", k.segment, size, count, mapped, had)
	}
	m, err := mapPeer(r.fds[0], size)
	_ = unix.Close(r.fds[0]) // before the mapping, which does not need it, is visible
	r.fds = r.fds[1:]
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maps[k] = m
	c.mappings++
	c.mapped += size
	c.change()
	return nil
}

// returned handles refs that the peer has released.
func (r *reader) returned(b []byte) error {
	c := r.c
	var gone []*segment
	defer func() { giveBack(gone) }()
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; len(b) > 0; b = b[sizes[kindReturn]:] {
		ref, err := readRef(b)
		if err != nil {
			return err
		}
		some, err := c.unshareOne(ref)
		if err != nil {
			return err
		}
		gone = append(gone, some...)
	}
	c.change()
	return nil
}

// drop ends the Conn's use of a segment that the peer no longer has.
func (r *reader) drop(b []byte) error {
	c := r.c
	var dead []*mapping
	defer func() { unmap(dead) }()
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; len(b) > 0; b = b[sizes[kindDrop]:] {
		k, err := readKey(b)
		if err != nil {
			return err
		}
		m := c.maps[k]
		if m == nil {
			return fmt.Errorf("the end of segment %d, which it has not sent", k.segment)
		}
		delete(c.maps, k)
		dead = append(dead, c.unuse(m)...)
	}
	return nil
}

// end cleans up. It is the last call of the reader.
func (c *Conn) end(err error) {
	_ = c.sock.Close() // the writer ends
	c.mu.Lock()
	switch {
	case c.closing:
		err = ErrClosed
	case c.broken != nil:
		err = c.broken
	}
	c.err = err
	var gone []*segment
	for _, l := range c.shares {
		gone = append(gone, l.block.seg.arena.abandon(l)...)
	}
	queue, have := c.queue, c.sent
	c.open -= len(c.returns)
	c.queue, c.sent, c.returns = nil, nil, nil
	c.mu.Unlock()
	giveBack(gone)
	for _, n := range queue {
		if n.seg != nil {
			n.seg.unhold()
		}
	}
	for _, s := range have {
		s.seg.arena.unregister(c, s.seg)
	}
	close(c.done)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.change()
}
