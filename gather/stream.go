package gather

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/muster-pg/muster/tensor"
)

// A stream carries items that are not in shared memory. The first rank requests pieces of them, and
// reads them into their final place; many requests are in flight at a time. Numbers are
// little-endian.
//
//	request: export u64 | item u32 | length u32 | offset u64
//
// The item lastItem is the last of an export.
//
//	answer:  length u32 | bytes      length is that of the request, or 0: it no longer exists
const (
	requestLen = 8 + 4 + 4 + 8
	pieceLen   = 1 << 20 // bytes of a request
	lastItem   = 1<<32 - 1
	ahead      = 4 // requests of that size that are sent before the first answer
	bufferLen  = 64 << 10
)

var errGone = errors.New("gather: what was offered no longer exists")

// piece is a part of an item that is requested.
type piece struct {
	export uint64
	item   uint32
	n      uint32
	off    uint64
}

func appendPiece(b []byte, p piece) []byte {
	b = binary.LittleEndian.AppendUint64(b, p.export)
	b = binary.LittleEndian.AppendUint32(b, p.item)
	b = binary.LittleEndian.AppendUint32(b, p.n)
	return binary.LittleEndian.AppendUint64(b, p.off)
}

func parsePiece(b []byte) piece {
	return piece{
		export: binary.LittleEndian.Uint64(b), item: binary.LittleEndian.Uint32(b[8:]),
		n: binary.LittleEndian.Uint32(b[12:]), off: binary.LittleEndian.Uint64(b[16:]),
	}
}

// fetcher is the first rank's end of a stream. One goroutine uses it at a time.
type fetcher struct {
	conn   net.Conn
	number uint64
	in     *bufio.Reader
	buf    []byte
}

func newFetcher(conn net.Conn, number uint64) *fetcher {
	return &fetcher{conn: conn, number: number, in: bufio.NewReaderSize(conn, bufferLen)}
}

// want is a part of an item, and where it goes.
type want struct {
	item int
	off  int64
	dst  []byte
}

// fetch reads the wanted parts of an export. A context that ends breaks the stream, since an answer
// may be partly read; after any error the stream is not used again. The error concerns the item
// that is returned.
func (f *fetcher) fetch(ctx context.Context, export uint64, wants []want) (item int, err error) {
	arrived := int64(0)
	stop := context.AfterFunc(ctx, func() { _ = f.conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() { // the deadline has caused the connection's error
			err = fmt.Errorf("%d bytes have come: %w", arrived, context.Cause(ctx))
		}
		if err != nil {
			_ = f.conn.Close()
			err = linkError{err}
		}
	}()
	asked, answers := pieces(wants), pieces(wants)
	inFlight := 0 // bytes that were requested and have not arrived
	next, more := asked()
	for {
		f.buf = f.buf[:0]
		for ; more && inFlight < ahead*pieceLen && len(f.buf) < bufferLen; next, more = asked() {
			f.buf = appendPiece(f.buf, piece{export: export, item: uint32(next.item), n: uint32(len(next.dst)), off: uint64(next.off)})
			inFlight += len(next.dst)
		}
		if len(f.buf) > 0 {
			if _, err := f.conn.Write(f.buf); err != nil {
				return next.item, err
			}
		}
		w, left := answers()
		if !left {
			return 0, nil
		}
		if err := f.answer(w.dst); err != nil {
			return w.item, err
		}
		inFlight -= len(w.dst)
		arrived += int64(len(w.dst))
	}
}

// pieces splits the wanted parts into requests.
func pieces(wants []want) func() (w want, ok bool) {
	i, done := 0, 0
	return func() (want, bool) {
		for i < len(wants) && done == len(wants[i].dst) {
			i, done = i+1, 0
		}
		if i == len(wants) {
			return want{}, false
		}
		w := wants[i]
		n := min(pieceLen, len(w.dst)-done)
		w.off, w.dst = w.off+int64(done), w.dst[done:][:n]
		done += n
		return w, true
	}
}

func (f *fetcher) answer(dst []byte) error {
	var head [4]byte
	if _, err := io.ReadFull(f.in, head[:]); err != nil {
		return err
	}
	switch n := binary.LittleEndian.Uint32(head[:]); {
	case n == 0:
		return errGone
	case n != uint32(len(dst)):
		return fmt.Errorf("gather: an answer of %d bytes to a request for %d", n, len(dst))
	}
	_, err := io.ReadFull(f.in, dst)
	return err
}

// exports are the tensors that this rank's peers may fetch during a verb.
type exports struct {
	mu   sync.Mutex // protects the fields below
	last uint64
	open map[uint64]*export
}

// export is what one verb offers to one rank.
type export struct {
	to    uint64 // the subgroup whose stream may fetch it
	items []*tensor.Tensor
	busy  sync.WaitGroup // answers that are being written
}

// add makes items fetchable over the stream of a subgroup until remove. (A stream of another
// subgroup is not closed when the verb fails, so a peer that does not read would delay remove.)
func (e *exports) add(to uint64, items []*tensor.Tensor) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open == nil {
		e.open = map[uint64]*export{}
	}
	e.last++
	e.open[e.last] = &export{to: to, items: items}
	return e.last
}

// remove ends an export, and returns when its memory is no longer read. By then all of it has been
// fetched, or the verb has failed and the connection is closed, so a write does not block for long.
func (e *exports) remove(id uint64) {
	e.mu.Lock()
	x := e.open[id]
	delete(e.open, id)
	e.mu.Unlock()
	if x != nil {
		x.busy.Wait()
	}
}

// take returns the memory of a piece, which is held until done is called.
func (e *exports) take(subgroup uint64, p piece) (data []byte, done func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.open[p.export]
	if x == nil || x.to != subgroup || len(x.items) == 0 || p.item != lastItem && int64(p.item) >= int64(len(x.items)) {
		return nil, func() {}
	}
	data = x.items[min(int64(p.item), int64(len(x.items)-1))].Data
	if p.off > uint64(len(data)) || uint64(p.n) > uint64(len(data))-p.off {
		return nil, func() {}
	}
	x.busy.Add(1)
	return data[p.off:][:p.n:p.n], x.busy.Done
}

// serve answers the requests of the first rank of a subgroup, until the connection ends. It writes
// small answers together while more requests have already arrived.
func (e *exports) serve(conn net.Conn, subgroup uint64) error {
	in, out := bufio.NewReaderSize(conn, bufferLen), bufio.NewWriterSize(conn, bufferLen)
	var request [requestLen]byte
	for {
		if _, err := io.ReadFull(in, request[:]); err != nil {
			return err
		}
		if err := e.reply(conn, out, subgroup, parsePiece(request[:])); err != nil {
			return err
		}
		if in.Buffered() < requestLen {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}

func (e *exports) reply(conn net.Conn, out *bufio.Writer, subgroup uint64, p piece) error {
	data, done := e.take(subgroup, p)
	defer done()
	head := binary.LittleEndian.AppendUint32(out.AvailableBuffer(), uint32(len(data)))
	if _, err := out.Write(head); err != nil || len(data) <= bufferLen/2 {
		_, _ = out.Write(data)
		return err // a bufio.Writer keeps its first error
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := conn.Write(data)
	return err
}
