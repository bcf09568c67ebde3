package relay

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"weak"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// Large payloads of roots travel to a relay once: it keeps the bodies that the store tells it to keep
// (wire.Keep), and a rank that reads a payload later than others of its host gets the relay's. The
// store still takes each vote, and answers it.

const (
	// keepFrom is the size from which on a relay keeps the payload of a root, in bytes.
	keepFrom = 64 << 10
	// keptBytes bounds the payloads that a relay keeps: a root is at most that far ahead.
	keptBytes = wire.MaxValue
)

// Kept are the replies whose bodies a relay keeps, as the store knows them.
//
// A payload belongs to one vote and is never modified, so its address identifies the reply. The
// pointer is weak: a relay must not keep the payload in the memory of the store.
type Kept struct {
	sync.Mutex // held from Frame until the frame is queued, as the relay reads them in order

	last  uint32 // number of the last of list
	list  []keptReply
	bytes int
}

type keptReply struct {
	payload weak.Pointer[byte]
	size    int
	head    [wire.HeaderLen]byte // of the reply
}

// Frame returns the OpRelay with which rep answers calls of op: the bytes before the body of the
// reply, and that body, which is empty if the relay keeps it. encode makes the reply's frame: its
// header, and its body. The caller holds the lock of k.
func (k *Kept) Frame(op wire.Op, rep *wire.Reply, calls []wire.RelayCall, encode func() (head []byte, body *transport.Body)) (outer []byte, body *transport.Body) {
	keep, kept := k.use(op, rep)
	if keep.Again {
		return append(wire.AppendKeep(nil, keep, 0, calls...), kept.head[:]...), new(transport.Body)
	}
	head, body := encode()
	if kept != nil {
		copy(kept.head[:], head)
	}
	return append(wire.AppendKeep(nil, keep, len(body.Bytes), calls...), head...), body
}

// use returns what the relay has to do with the body of a reply. If it has to keep it, kept is its
// new place in list.
func (k *Kept) use(op wire.Op, rep *wire.Reply) (keep wire.Keep, kept *keptReply) {
	size := len(rep.Value)
	if op != wire.OpCollect || size < keepFrom {
		return keep, nil
	}
	of := weak.Make(&rep.Value[0])
	if i := slices.IndexFunc(k.list, func(r keptReply) bool { return r.payload == of }); i >= 0 {
		return wire.Keep{Number: k.first() + uint32(i), First: k.first(), Again: true}, &k.list[i]
	}
	for k.bytes += size; k.bytes > keptBytes; k.list = slices.Delete(k.list, 0, 1) {
		k.bytes -= k.list[0].size
	}
	k.list = append(k.list, keptReply{payload: of, size: size})
	k.last++
	return wire.Keep{Number: k.last, First: k.first()}, &k.list[len(k.list)-1]
}

// first returns the number of the first of list.
func (k *Kept) first() uint32 { return k.last + 1 - uint32(len(k.list)) }

// bodies are those that a relay keeps, by number. A store that is right never refers to others.
type bodies map[uint32]*transport.Body

// Errors of a store that breaks the protocol.
var (
	errNoRoom = errors.New("more to keep than a relay has room for")
	errNoBody = errors.New("a reply whose body this relay does not have")
)

// use returns the body of a reply, in the frame or kept, and does what the store says about it.
func (b bodies) use(outer, h wire.Header, body []byte) (*transport.Body, error) {
	keep, err := wire.ParseKeep(outer)
	shared := &transport.Body{Bytes: body}
	if err != nil || keep.Number == 0 {
		return shared, err
	}
	maps.DeleteFunc(b, func(n uint32, _ *transport.Body) bool { return n < keep.First })
	if !keep.Again {
		b[keep.Number] = shared
		room := 2 * keptBytes // the store counts payloads, which bodies are a little larger than
		for _, kept := range b {
			room -= len(kept.Bytes)
		}
		if room < 0 {
			return nil, errNoRoom
		}
		return shared, nil
	}
	if shared = b[keep.Number]; shared == nil || len(shared.Bytes) != int(h.Len) {
		return nil, errNoBody
	}
	return shared, nil
}
