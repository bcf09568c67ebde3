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
	// OpList: revision and TTL of each key; OpWatch: revision and Change of each; OpStatus:
	// generation and rank of the next page
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
	if flags&partNumbers != 0 {
		b = appendU64(b, r.Rev)
		b = appendU64(b, uint64(r.N))
	}
	if flags&partDetail != 0 {
		b = appendString(b, r.Detail)
	}
	if flags&partValue != 0 {
		b = appendBytes(b, r.Value)
	}
	if flags&partValues != 0 {
		b = appendValues(b, r.Values)
	}
	if flags&partKeys != 0 {
		b = appendStrings(b, r.Keys)
	}
	if flags&partNums != 0 {
		b = appendU32(b, uint32(len(r.Nums)))
		for _, n := range r.Nums {
			b = appendU64(b, uint64(n))
		}
	}
	if flags&partType != 0 {
		b = appendString(b, r.Type)
	}
	if flags&partFailure != 0 {
		b = r.Failure.append(b)
	}
	return finish(b, start)
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
	p := parser{b: body}
	if h.Flags&partNumbers != 0 {
		r.Rev = p.u64()
		r.N = int64(p.u64())
	}
	if h.Flags&partDetail != 0 {
		r.Detail = p.string(MaxReply)
	}
	if h.Flags&partValue != 0 {
		r.Value = p.bytes(MaxReply)
	}
	if h.Flags&partValues != 0 {
		r.Values = p.values()
	}
	if h.Flags&partKeys != 0 {
		r.Keys = p.strings(nil, MaxReply)
	}
	if h.Flags&partNums != 0 {
		r.Nums = make([]int64, p.count(8))
		for i := range r.Nums {
			r.Nums[i] = int64(p.u64())
		}
	}
	if h.Flags&partType != 0 {
		r.Type = p.string(MaxKey)
	}
	if h.Flags&partFailure != 0 {
		r.Failure = p.failure()
	}
	return p.end()
}

func (v *Failure) append(b []byte) []byte {
	b = appendU16(b, uint16(v.Code))
	b = appendInt(b, v.By)
	b = appendDuration(b, v.Waited)
	b = appendString(b, v.Reason)
	b = appendInts(b, v.Missing)
	b = appendStrings(b, v.Doing)
	b = appendInts(b, v.Lost)
	b = appendInts(b, v.Left)
	b = append(b, byte(len(v.Clash)))
	for i := range v.Clash {
		b = v.Clash[i].append(b, fMember|fCall|fVote)
	}
	return b
}

func (p *parser) failure() *Failure {
	v := &Failure{Code: Code(p.u16()), By: p.int(), Waited: p.duration(), Reason: p.string(math.MaxInt32)}
	v.Missing = p.ints()
	if doing := p.strings(nil, MaxReply); len(doing) > 0 {
		v.Doing = doing
	}
	v.Lost = p.ints()
	v.Left = p.ints()
	for range p.u8() {
		var c Contribution
		c.parse(p, fMember|fCall|fVote, 0)
		v.Clash = append(v.Clash, c)
		if p.err != nil {
			break
		}
	}
	return v
}
