package wire

import (
	"math"
	"time"
)

// Reply answers a Request. Which fields are there follows from the operation and the code.
type Reply struct {
	Code    Code
	Detail  string // of an error, in words
	Rev     uint64 // revision of an entry; OpJoin: the generation
	N       int64  // OpAdd: the counter; OpDelete: how many; OpHello: the session; OpPush: values in the queue; OpPop: before it
	Value   []byte
	Values  [][]byte // OpWait, OpList, OpWatch, WantAll, WantPart; OpJoin: the members
	Keys    []string // OpList, OpWatch; of an OpWait that timed out: those missing; OpStatus: names
	Nums    []int64  // OpList: revision and TTL of each key; OpWatch: revision and Change of each; OpStatus: generation and rank to go on from
	Type    string   // OpRecv: of the object
	Failure *Failure // of a group verb that failed
}

// Change is what happened to a key.
type Change int64

const (
	ChangeSet Change = iota
	ChangeDelete
	ChangeExpire
)

// Verdict is what the store decided about a group verb, the same for every rank.
type Failure struct {
	Code    Code
	Missing []int          // ranks that had not come
	Doing   []string       // what each of Missing is doing instead
	Lost    []int          // ranks whose session ended without goodbye
	Left    []int          // ranks that said goodbye
	By      int            // the rank that said no; -1 is the store
	Reason  string         // what it said
	Clash   []Contribution // the two ranks that disagree
	Waited  time.Duration  // from the first vote to the decision
}

// Parts of a reply, told by the header's flags.
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

// AppendReply appends r as one frame that answers the call id of op.
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
