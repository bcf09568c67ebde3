package store

import (
	"slices"
	"sync"
	"weak"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

const (
	// keepFrom is the size from which on a relay keeps the payload of a root, in bytes.
	keepFrom = 64 << 10
	// keptBytes bounds the payloads that a relay keeps: a root is at most that far ahead.
	keptBytes = wire.MaxValue
)

// keptReplies are the replies with the payload of a root that a relay keeps, as the store knows
// them. A rank that reads a payload later than others of its host gets the relay's, so that each
// payload travels once. The store decides what the relay keeps (wire.Keep); it still takes each
// vote, and answers it.
//
// A payload belongs to one vote and is never modified, so its address identifies the reply. The
// pointer is weak: a relay must not keep the payload in the memory of the store.
type keptReplies struct {
	mu    sync.Mutex // protects the fields below; held until the frame is queued, as the relay reads them in order
	last  uint32     // number of the last of list
	list  []keptReply
	bytes int
}

type keptReply struct {
	payload weak.Pointer[byte]
	size    int
	head    [wire.HeaderLen]byte // of the reply
}

// frame returns the OpRelay with which e answers calls: the bytes before the body of the reply, and
// that body, which is empty if the relay keeps it. The caller holds mu.
func (k *keptReplies) frame(e core.Effect, calls []wire.RelayCall, encode *encoder) (outer []byte, body *transport.Body) {
	keep, kept := k.use(e)
	if keep.Again {
		return append(wire.AppendKeep(nil, keep, 0, calls...), kept.head[:]...), new(transport.Body)
	}
	head, body := encode.frameOf(e)
	if kept != nil {
		copy(kept.head[:], head)
	}
	return append(wire.AppendKeep(nil, keep, len(body.Bytes), calls...), head...), body
}

// use returns what the relay has to do with the body of e's reply. If it has to keep it, kept is
// its new place in list.
func (k *keptReplies) use(e core.Effect) (keep wire.Keep, kept *keptReply) {
	size := len(e.Reply.Value)
	if e.Op != wire.OpCollect || size < keepFrom {
		return keep, nil
	}
	of := weak.Make(&e.Reply.Value[0])
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
func (k *keptReplies) first() uint32 { return k.last + 1 - uint32(len(k.list)) }

// sameReply reports whether two replies to votes of one record are the same one.
func sameReply(a, b *wire.Reply) bool {
	return a.Code == b.Code && a.Detail == b.Detail && a.N == b.N && a.Failure == b.Failure && sameSlice(a.Value, b.Value) && sameSlice(a.Values, b.Values)
}

func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (a == nil) == (b == nil) && (len(a) == 0 || &a[0] == &b[0])
}
