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
	for last := false; !last; {
		select {
		case <-c.wake:
		case <-c.quit:
			last = true
		case <-c.done:
			return
		}
		if err := c.flush(); err != nil {
			c.fail(err)
			return
		}
	}
}

// fail ends the Conn because writing is over. The reader hears of it after what the peer has said before.
func (c *Conn) fail(err error) {
	c.mu.Lock()
	if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, net.ErrClosed) {
		c.broken = fmt.Errorf("shm: write to the peer: %w", err)
	}
	c.mu.Unlock()
	_ = c.sock.CloseWrite()
	_ = c.sock.CloseRead()
}

// flush sends until nothing is queued.
func (c *Conn) flush() error {
	var b []byte
	for {
		queue, returns := c.pending()
		if len(queue) == 0 && len(returns) == 0 {
			return nil
		}
		b = b[:0]
		var err error
		for _, m := range queue {
			if err == nil {
				b, err = c.add(b, m)
			}
			if m.seg != nil {
				m.seg.unhold()
			}
		}
		if err == nil {
			b = appendReturns(b, returns)
			err = c.send(b, nil)
		}
		if err != nil {
			return err
		}
	}
}

// pending takes what is queued, of the returns a frame full.
func (c *Conn) pending() (queue []message, returns []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	queue, c.queue, c.queued = c.queue, nil, 0
	n := min(len(c.returns), mostRecords(kindReturn))
	returns, c.returns = c.returns[:n:n], c.returns[n:]
	c.open -= n
	c.change()
	return queue, returns
}

// add gathers in b what has no descriptor, and sends what has.
func (c *Conn) add(b []byte, m message) ([]byte, error) {
	if m.seg == nil {
		return append(b, m.b...), nil
	}
	if err := c.send(b, nil); err != nil {
		return nil, err
	}
	return b[:0], c.send(m.b, unix.UnixRights(m.seg.fd))
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

func appendReturns(b []byte, numbers []uint64) []byte {
	if len(numbers) == 0 {
		return b
	}
	b = appendHeader(b, kindReturn, len(numbers))
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

// reader is what the goroutine that reads owns.
type reader struct {
	c   *Conn
	buf []byte
	n   int   // bytes of buf that have arrived and are not parsed
	fds []int // descriptors of which the messages are not parsed
	oob []byte
}

// read is the reader: it handles what arrives, and settles everything when the Conn ends.
func (c *Conn) read() {
	r := &reader{c: c, buf: make([]byte, header+mostBody)}
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

// next reads once, and handles what is all there.
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
	case len(r.fds) > 2: // that of a message that is not all there, and that of the one after
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

// handle handles the frames that are all there.
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
	kindSegment: (*reader).segment, kindLend: (*reader).lend, kindReturn: (*reader).returned, kindDrop: (*reader).drop,
}

// segment maps one that the peer will lend of.
func (r *reader) segment(b []byte) error {
	if len(r.fds) == 0 {
		return errors.New("a segment without a descriptor")
	}
	fd := r.fds[0]
	r.fds = r.fds[1:]
	defer unix.Close(fd)
	k, err := readKey(b)
	if err != nil {
		return err
	}
	size := int64(binary.LittleEndian.Uint64(b[16:]))
	c := r.c
	c.mu.Lock()
	count, mapped, had := c.mappings, c.mapped, c.maps[k] != nil
	c.mu.Unlock()
	if had || count >= mostSegments || size > mostMapped-mapped {
		return fmt.Errorf("segment %d of %d bytes, where %d segments of %d bytes are mapped (there before: %t)", k.segment, size, count, mapped, had)
	}
	m, err := mapPeer(fd, size)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maps[k] = m
	c.mappings++
	c.mapped += size
	return nil
}

// lend takes what the peer lends.
func (r *reader) lend(b []byte) error {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; len(b) > 0; b = b[sizes[kindLend]:] {
		ref, err := readRef(b)
		if err != nil {
			return err
		}
		m := c.maps[ref.key()]
		if m == nil {
			return fmt.Errorf("%+v is of a segment that it has not sent", ref)
		}
		if size := int64(len(m.mem)); ref.Offset < 0 || ref.Len < 1 || ref.Offset > size || ref.Len > size-ref.Offset {
			return fmt.Errorf("%+v is not in a segment of %d bytes", ref, size)
		}
		if c.open++; c.open > mostLoans {
			return fmt.Errorf("more than %d loans that are not returned", mostLoans)
		}
		m.uses++
		c.offers[ref] = append(c.offers[ref], offer{c.offered, m})
		c.offered++
	}
	c.change()
	return nil
}

// returned ends loans.
func (r *reader) returned(b []byte) error {
	c := r.c
	back := map[*Arena][]loan{}
	c.mu.Lock()
	var err error
	for ; len(b) > 0 && err == nil; b = b[sizes[kindReturn]:] {
		number := binary.LittleEndian.Uint64(b)
		l, ok := c.loans[number]
		if !ok {
			err = fmt.Errorf("the return of %d, which is not lent", number)
			break
		}
		delete(c.loans, number)
		back[l.arena] = append(back[l.arena], l)
	}
	c.mu.Unlock()
	for a, loans := range back {
		a.settle(loans)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, loans := range back {
		for _, l := range loans {
			if c.out[l.ref]--; c.out[l.ref] == 0 {
				delete(c.out, l.ref)
			}
		}
	}
	c.change()
	return err
}

// drop ends the Conn's use of a segment that the peer has no more.
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

// end settles everything. The reader calls it, as its last.
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
	lost := map[*Arena][]loan{}
	for _, l := range c.loans {
		lost[l.arena] = append(lost[l.arena], l)
	}
	queue, have := c.queue, c.sent
	dead := c.unmapAll()
	c.loans, c.queue, c.sent, c.returns = nil, nil, nil, nil
	c.mu.Unlock()
	unmap(dead)
	for _, m := range queue {
		if m.seg != nil {
			m.seg.unhold()
		}
	}
	for a, loans := range lost {
		a.lose(loans)
	}
	for _, s := range have {
		s.arena.forget(c, s.seg)
	}
	close(c.done)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.change()
}

// unmapAll ends the uses of the peer's segments but those of Blocks, and gives back what nobody uses. mu is held.
func (c *Conn) unmapAll() (dead []*mapping) {
	for _, m := range c.maps {
		dead = append(dead, c.unuse(m)...)
	}
	for _, offers := range c.offers {
		for _, o := range offers {
			dead = append(dead, c.unuse(o.m)...)
		}
	}
	c.maps, c.offers = nil, nil
	return dead
}
