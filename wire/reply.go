package wire

import (
	"encoding/binary"
	"math"
	"time"
)

// Reply answers a Request. The operation and the code determine which fields it has.
type Reply struct {
	Code   Code
	Detail string // text of an error
	Rev    uint64 // revision of an entry; OpJoin: the generation (see ParseFormed)
	// OpAdd: the counter; OpDelete: the number of keys that existed; OpHello: the session; OpPush:
	// the length of the queue; OpPop: the length before
	N      int64
	Value  []byte
	Values [][]byte // OpWait, OpList, OpWatch, WantAll, WantPart; OpJoin, OpMembers: the values of the members
	Keys   []string // OpList, OpWatch; OpWait that timed out: the missing keys; OpStatus: names
	// OpList: see Listed; OpWatch: see Changed; OpStatus: see NextPage; OpJoin: see ParseFormed;
	// OpHello: see docs/reference/protocol.md
	Nums    []int64
	Type    string   // OpRecv: type of the object
	Failure *Failure // of a group operation that failed
}

// Change is what happened to a key.
type Change int64

// The changes of a key: set, deleted, or expired.
const (
	ChangeSet Change = iota
	ChangeDelete
	ChangeExpire
)

// Failure describes why an operation of a group failed. All ranks get the same one. Only the fields
// that the code uses are set.
type Failure struct {
	Code    Code
	Missing []int          // ranks that had not called
	Doing   []string       // what the first of Missing do instead
	Lost    []int          // ranks that have failed: their sessions ended without goodbye
	Left    []int          // ranks that have left
	By      int            // the rank that failed the operation; -1: the store
	Reason  string         // text
	Clash   []Contribution // the calls of two ranks that differ
	Waited  time.Duration  // from the first vote to the failure
}

// The parts of a reply, as bits of the header's flags.
const (
	partNumbers uint8 = 1 << iota // Rev and N
	partDetail
	partValue
	partValues
	partKeys
	partNums
	partType
	partFailure
)

func (r *Reply) parts() (flags uint8) {
	set := func(there bool, part uint8) {
		if there {
			flags |= part
		}
	}
	set(r.Rev != 0 || r.N != 0, partNumbers)
	set(r.Detail != "", partDetail)
	set(r.Value != nil, partValue)
	set(r.Values != nil, partValues)
	set(r.Keys != nil, partKeys)
	set(r.Nums != nil, partNums)
	set(r.Type != "", partType)
	set(r.Failure != nil, partFailure)
	return flags
}

// AppendReply appends r to b as the frame that answers call id of op.
func AppendReply(b []byte, op Op, id uint64, r *Reply) []byte {
	start := len(b)
	flags := r.parts()
	b = AppendHeader(b, Header{Op: op, Flags: flags, Code: r.Code, ID: id})
	p := pass{b: b}
	r.fields(&p, flags)
	return finish(p.b, start)
}

// AppendReplyHead appends the frame of AppendReply without the bytes of r.Value at its end. It
// returns false if r has a part that follows them.
func AppendReplyHead(b []byte, op Op, id uint64, r *Reply) (head []byte, ok bool) {
	if r.Value == nil || r.Values != nil || r.Keys != nil || r.Nums != nil || r.Type != "" || r.Failure != nil {
		return b, false
	}
	start, short := len(b), *r
	short.Value = []byte{}
	b = AppendReply(b, op, id, &short)
	n := uint32(len(r.Value))
	binary.LittleEndian.PutUint32(b[len(b)-4:], n)
	binary.LittleEndian.PutUint32(b[start:], binary.LittleEndian.Uint32(b[start:])+n)
	return b, true
}

// Parse parses the body of the frame with header h into r, which aliases body.
func (r *Reply) Parse(h Header, body []byte) error {
	*r = Reply{Code: h.Code}
	p := pass{b: body, parses: true}
	r.fields(&p, h.Flags)
	return p.end()
}

// fields is a pass over the parts of r.
func (r *Reply) fields(p *pass, parts uint8) {
	if parts&partNumbers != 0 {
		p.u64(&r.Rev)
		p.i64(&r.N)
	}
	if parts&partDetail != 0 {
		p.string(&r.Detail, MaxReply)
	}
	if parts&partValue != 0 {
		p.bytes(&r.Value, MaxReply)
	}
	if parts&partValues != 0 {
		p.values(&r.Values)
	}
	if parts&partKeys != 0 {
		if p.parses {
			r.Keys = []string{}
		}
		p.strings(&r.Keys, MaxReply)
	}
	if parts&partNums != 0 {
		p.nums(&r.Nums)
	}
	if parts&partType != 0 {
		p.string(&r.Type, MaxKey)
	}
	if parts&partFailure != 0 {
		if p.parses {
			r.Failure = new(Failure)
		}
		r.Failure.fields(p)
	}
}

func (v *Failure) fields(p *pass) {
	p.code(&v.Code)
	p.int(&v.By)
	p.duration(&v.Waited)
	p.string(&v.Reason, math.MaxInt32)
	p.ints(&v.Missing)
	p.strings(&v.Doing, MaxReply)
	p.ints(&v.Lost)
	p.ints(&v.Left)
	elements(p, &v.Clash, p.few(len(v.Clash), 8), func(c *Contribution) { c.fields(p, fMember|fCall|fVote) })
}
