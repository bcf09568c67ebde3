package collective

import (
	"encoding/binary"
	"fmt"

	"github.com/muster-pg/muster/tensor"
)

// verb is an operation of a Comm.
type verb uint8

const (
	allReduce verb = iota + 1
	reduceTo
	reduceScatter
	allGather
	broadcast
	allToAll
	barrier
	send
	announceLeave // the rank closes, and sends no more messages
	receive       // the name of a Recv on this rank; on connections both ends of a message use send
)

var verbNames = [...]string{
	allReduce: "allreduce", reduceTo: "reduce", reduceScatter: "reducescatter", allGather: "allgather", broadcast: "broadcast",
	allToAll: "alltoall", barrier: "barrier", send: "send", announceLeave: "close", receive: "recv",
}

func (v verb) String() string {
	if int(v) < len(verbNames) && verbNames[v] != "" {
		return verbNames[v]
	}
	return fmt.Sprintf("verb %d", uint8(v))
}

// head precedes the data of every message. It has what all ranks must agree on, and the part that
// the message carries. Little-endian:
//
//	generation u64 | seq u64 | count u64 | root i32 | verb u8 | op u8 | dtype u8 | 0 u8 |
//	slices u32 | lengths u32 | part u32 | length u32
type head struct {
	generation uint64
	seq        uint64
	count      uint64 // number of elements that each rank passes, in all slices
	root       int32  // -1: none
	verb       verb
	op         Op
	dt         tensor.DType
	slices     uint32 // number of slices that each rank passes as one
	lengths    uint32 // a hash of their lengths; 0: the verb takes one slice
	part       uint32 // number of the part, in the order of sending
	length     uint32 // number of bytes that follow
}

const headLen = 8 + 8 + 8 + 4 + 4 + 4 + 4 + 4 + 4

func (h *head) put(b []byte) {
	_ = b[headLen-1]
	binary.LittleEndian.PutUint64(b, h.generation)
	binary.LittleEndian.PutUint64(b[8:], h.seq)
	binary.LittleEndian.PutUint64(b[16:], h.count)
	binary.LittleEndian.PutUint32(b[24:], uint32(h.root))
	b[28], b[29], b[30], b[31] = byte(h.verb), byte(h.op), byte(h.dt), 0
	binary.LittleEndian.PutUint32(b[32:], h.slices)
	binary.LittleEndian.PutUint32(b[36:], h.lengths)
	binary.LittleEndian.PutUint32(b[40:], h.part)
	binary.LittleEndian.PutUint32(b[44:], h.length)
}

func parseHead(b []byte) head {
	_ = b[headLen-1]
	return head{
		generation: binary.LittleEndian.Uint64(b), seq: binary.LittleEndian.Uint64(b[8:]), count: binary.LittleEndian.Uint64(b[16:]),
		root: int32(binary.LittleEndian.Uint32(b[24:])), verb: verb(b[28]), op: Op(b[29]), dt: tensor.DType(b[30]),
		slices: binary.LittleEndian.Uint32(b[32:]), lengths: binary.LittleEndian.Uint32(b[36:]),
		part: binary.LittleEndian.Uint32(b[40:]), length: binary.LittleEndian.Uint32(b[44:]),
	}
}

// agrees reports whether o belongs to the same call as h.
func (h head) agrees(o head) bool {
	o.part, o.length = h.part, h.length
	return h == o
}

// String describes a rank's call, for the error of ranks that disagree.
func (h head) String() string {
	s := fmt.Sprintf("%v #%d", h.verb, h.seq)
	switch h.verb {
	case barrier, announceLeave:
		return s
	case allReduce, reduceTo, reduceScatter:
		s += " " + h.op.String()
	}
	s += fmt.Sprintf(" of %d %v", h.count, h.dt)
	if h.lengths != 0 {
		s += fmt.Sprintf(" in %d slices (hash of their lengths: %08x)", h.slices, h.lengths)
	}
	if h.root >= 0 {
		s += fmt.Sprintf(" with root %d", h.root)
	}
	return s
}
