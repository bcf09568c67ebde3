package wire

import (
	"fmt"
	"time"
)

// A relay has one connection to the store for the connections of many clients. Each of these has a
// number, which the relay chooses and uses once. A frame of a relayed connection travels in an
// OpRelay, and means what it would mean on a separate connection. Two frames combine what many
// connections have in common: an OpRelay with several calls is the same frame for each of them, and
// OpVotes has the votes of many ranks for one record.

const (
	// RelayOverhead is the number of bytes by which an OpRelay for one call is longer than its
	// frame.
	RelayOverhead = HeaderLen + 4 + callLen
	// MaxVotes is the maximum number of votes of an OpVotes, and of calls of an OpRelay that a relay
	// sends: they are carried out in one step.
	MaxVotes = 1024

	callLen = 4 + 8
	voteLen = callLen + 4 + 4 + 8 + 4 // without its payload
)

// relayOnly reports whether o is not a Request: see ParseRelay and ParseVotes.
func relayOnly(o Op) bool { return o == OpRelay || o == OpVotes }

// RelayCall is a call on a connection of a relay. A frame that has no answer has ID 0.
type RelayCall struct {
	Conn uint32
	ID   uint64
}

func (c *RelayCall) fields(p *pass) {
	p.u32(&c.Conn)
	p.u64(&c.ID)
}

// Keep is a server's instruction to a relay, of whose connections more may get the reply in an
// OpRelay later. The relay keeps the body of the frame, and the next OpRelay with that body has only
// its number.
type Keep struct {
	Number uint32 // of the body; they count from 1, and 0 means that it is not kept
	First  uint32 // the relay forgets bodies with lower numbers
	Again  bool   // the body is one that the relay keeps; the frame ends after its header
}

// The flags of an OpRelay with a Keep. Its ID is the number and, in the upper half, First.
const (
	relayKeep  uint8 = 1
	relayAgain uint8 = 2
)

// AppendRelay appends an OpRelay up to the header of its frame, which has body bytes and is for
// each of calls: their IDs replace its own.
func AppendRelay(b []byte, body int, calls ...RelayCall) []byte {
	return AppendKeep(b, Keep{}, body, calls...)
}

// AppendKeep is AppendRelay with a Keep. With Again, body is 0.
func AppendKeep(b []byte, k Keep, body int, calls ...RelayCall) []byte {
	h := Header{Op: OpRelay, Len: uint32(4 + callLen*len(calls) + HeaderLen + body), ID: uint64(k.First)<<32 | uint64(k.Number)}
	switch {
	case k.Again:
		h.Flags = relayAgain
	case k.Number != 0:
		h.Flags = relayKeep
	}
	p := pass{b: AppendHeader(b, h)}
	elements(&p, &calls, p.count(len(calls), callLen), func(c *RelayCall) { c.fields(&p) })
	return p.b
}

// AppendRelayRequest appends r as an OpRelay of one connection.
func AppendRelayRequest(b []byte, branch uint32, r *Request) []byte {
	start := len(b)
	b = AppendRelay(b, 0, RelayCall{branch, r.ID})
	return finish(AppendRequest(b, r), start)
}

// AppendRelayReply appends r as an OpRelay for one connection.
func AppendRelayReply(b []byte, branch uint32, op Op, id uint64, r *Reply) []byte {
	start := len(b)
	b = AppendRelay(b, 0, RelayCall{branch, id})
	return finish(AppendReply(b, op, id, r), start)
}

// ParseKeep returns the Keep of an OpRelay; only a server sends one.
func ParseKeep(outer Header) (Keep, error) {
	k := Keep{Number: uint32(outer.ID), First: uint32(outer.ID >> 32), Again: outer.Flags == relayAgain}
	if outer.Flags > relayAgain || (outer.Flags == 0) != (outer.ID == 0) || outer.Flags != 0 && (k.First == 0 || k.Number < k.First) {
		return k, ErrFlags
	}
	return k, nil
}

// ParseRelay parses the body of an OpRelay, which frame aliases. It reuses the memory of calls, and
// returns from one to maxCalls. The body of the frame may have limit bytes; with Keep.Again it is
// missing.
func ParseRelay(outer Header, body []byte, calls []RelayCall, maxCalls int, limit uint32) (_ []RelayCall, h Header, frame []byte, err error) {
	calls = calls[:0]
	k, err := ParseKeep(outer)
	if err != nil || outer.Code != CodeOK {
		return calls, h, nil, ErrFlags
	}
	p := pass{b: body, parses: true}
	n := p.count(0, callLen)
	if n > maxCalls {
		return calls, h, nil, ErrTooLarge
	}
	elements(&p, &calls, n, func(c *RelayCall) { c.fields(&p) })
	frame = p.b
	switch {
	case p.err != nil:
		return calls, h, nil, p.err
	case len(calls) == 0:
		return calls, h, nil, ErrTruncated
	}
	if h, err = ParseHeader(frame, limit); err != nil {
		return calls, h, nil, err
	}
	want := int(h.Len)
	if k.Again {
		want = 0
	}
	switch n := len(frame) - HeaderLen; {
	case n < want:
		return calls, h, nil, ErrTruncated
	case n > want:
		return calls, h, nil, ErrTrailing
	case relayOnly(h.Op):
		return calls, h, nil, fmt.Errorf("%w: %s on a branch", ErrUnknownOp, h.Op)
	}
	return calls, h, frame[HeaderLen:], nil
}

// Vote is one connection's vote of yes for a record. The Contribution of the OpVotes has the fields
// that are common to all votes.
type Vote struct {
	RelayCall
	Rank    int
	Want    int32
	Timeout time.Duration
	Value   []byte
}

// AppendVote appends a vote, for AppendVotes.
func AppendVote(b []byte, v *Vote) []byte {
	p := pass{b: b}
	v.fields(&p)
	return p.b
}

func (v *Vote) fields(p *pass) {
	v.RelayCall.fields(p)
	p.int(&v.Rank)
	p.i32(&v.Want)
	p.duration(&v.Timeout)
	p.optional(&v.Value, MaxValue)
}

// AppendVotes appends an OpVotes: n votes, as AppendVote made them, for the record of c; Rank and
// Want of c are not used.
func AppendVotes(b []byte, c *Contribution, n int, votes []byte) []byte {
	start := len(b)
	p := pass{b: AppendHeader(b, Header{Op: OpVotes})}
	c.votes(&p)
	p.count(n, voteLen)
	return finish(append(p.b, votes...), start)
}

// votes is a pass over what the votes of an OpVotes have in common.
func (c *Contribution) votes(p *pass) {
	p.u64(&c.Generation)
	c.fields(p, fCall)
	p.string(&c.Label, MaxKey)
	p.bool(&c.RootOnly)
	c.Reduction.fields(p)
	p.duration(&c.Stall)
}

// ParseVotes parses the body of an OpVotes, which c and the votes alias. It reuses the memory of
// votes.
func ParseVotes(h Header, body []byte, c *Contribution, votes []Vote) ([]Vote, error) {
	votes = votes[:0]
	if h.Flags != 0 || h.Code != CodeOK || h.ID != 0 {
		return votes, ErrFlags
	}
	p := pass{b: body, parses: true}
	*c = Contribution{}
	c.votes(&p)
	n := p.count(0, voteLen)
	if n > MaxVotes {
		return votes, ErrTooLarge
	}
	elements(&p, &votes, n, func(v *Vote) { v.fields(&p) })
	return votes, p.end()
}
