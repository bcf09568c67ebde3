package wire

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// Request is one call, as the store carries it out. Clients, servers and engines exchange nothing
// else. docs/reference/protocol.md has the fields of each operation; the others are zero.
type Request struct {
	Op      Op
	ID      uint64 // of the call, chosen by the caller
	Session uint64 // of the caller: the server sets it, it is not in the frame
	// Number counts the requests of a session that change state: 1, 2, 3, … The store carries out
	// each number once; 0 is carried out each time it arrives.
	Number uint64
	Acked  uint64 // with Number: the client has received the answers up to this number
	// Timeout is the time left until the caller's deadline, counted from the receipt of the frame;
	// 0 means no deadline. OpHello: the client's liveness timeout.
	Timeout time.Duration
	Key     string // a key, a prefix, or a queue
	Keys    []string
	// Value is a value, a payload or the info of a member; nil means none. OpSwap: nil means that
	// the key is to be deleted.
	Value  []byte
	Expect []byte // OpSwap: the value that the key must have; nil: it must not exist
	Claim  []byte // OpJoin: the token of this process's claim to the rank, of at most 64 bytes; nil: none
	Token  []byte // OpHello: of the client, if it has a secret. A server replaces it: see docs/reference/protocol.md
	Add    int64  // OpAdd: the number to add
	Length int64  // OpSendReady: of the message, in bytes
	First  int64  // OpMembers: the first rank
	Limit  int64  // OpList: the largest number of keys to return; 0 or less: as many as fit into a page
	// KeysOnly omits the values of OpList, and in this process those of OpGet, whose frame does not
	// have it.
	KeysOnly bool
	// Borrow allows the value that OpGet returns to be the memory of a store in this process, which
	// must not be modified. It is not in the frame.
	Borrow bool
	// TTL is the time after which the entry or the message expires; 0 means never. OpAdd, OpAppend:
	// it applies only to an entry that they create.
	TTL         time.Duration
	After       uint64 // OpWatch: the revision after which changes are returned
	Offset      uint64 // OpBackup: the first byte of the part
	Attempt     uint64 // OpJoin: with Claim, the attempt of this process: 1, 2, …
	Count       uint64 // OpMembers: the number of members; 0: all of the rest
	Resume      uint64 // OpHello: the session to resume, with its token in Value; 0: a new one
	Incarnation uint64 // OpHello: with Resume, of the store that has the session
	Lease       uint64 // OpSet: the lease of the entry; OpKeepAlive, OpRevoke: this one
	Phase       Phase  // OpProgress
	// Group is for operations of groups. OpStacks: the generation and the rank of the process that is
	// asked. OpStatus: those with which the page begins.
	Group Contribution
}

// Contribution is one rank's part of an operation of a group.
type Contribution struct {
	Group      string    // OpJoin: its name
	Run        string    // OpJoin: the id of the run; another run is another group
	Generation uint64    // of the group, once joined; OpJoin: the one to shrink, or 0
	Channel    string    // OpCollect: each has its own sequence; OpSend, OpRecv: the tag
	Seq        uint64    // of the record, or the position in the stream; the first is 1
	Rank       int       // of the caller
	Size       int       // OpJoin: the world size
	Root       int       // of a collective; OpSend: the destination; OpRecv: the source; -1: none
	Verb       string    // "barrier", "broadcast", …
	Type       string    // of the object; must be equal where two ranks set it
	Label      string    // must be equal; OpJoin: names the process in errors of other ranks
	Want       int32     // which payloads the reply has
	RootOnly   bool      // the vote of Root alone decides; otherwise those of all ranks
	Reduction  Reduction // WantReduced: how
	// No, if not 0, is the code of a vote of no, or of an abort. OpCancel: CodeTimeout if the
	// deadline has passed, and CodeCancelled otherwise.
	No     Code
	Reason string // text for No
	// Stall, of a vote, is after how long a rank has stalled that is missing and reports no progress; 0:
	// never.
	Stall time.Duration
}

// Phase is what a rank does, and how far it is.
type Phase struct {
	ID    uint64        // differs between two phases of a rank, even if their names are equal; 0: none, or no longer one
	Name  string        // "loading shards"; at most MaxPhase bytes
	Done  int64         // of Total
	Total int64         // 0: unknown
	Stall time.Duration // after which the rank has stalled, if that is longer than the Stall of a vote
	Ago   time.Duration // since the rank last made progress
}

// ReportInterval returns the least time between two reports of a rank in a group of a size. A large
// group makes no more reports than one of 500 ranks.
func ReportInterval(size int) time.Duration {
	return max(time.Second, time.Duration(size)*2*time.Millisecond)
}

// String returns the phase and its progress, such as "loading shards, 12 of 48 (25%)".
func (f *Phase) String() string {
	name := cmp.Or(f.Name, "unnamed")
	switch {
	case f.ID == 0:
		return "its last phase has ended"
	case f.Total > 0:
		return fmt.Sprintf("%s, %d of %d (%.0f%%)", name, f.Done, f.Total, min(math.Floor(100*float64(f.Done)/float64(f.Total)), 100))
	case f.Done > 0:
		return fmt.Sprintf("%s, %d done", name, f.Done)
	}
	return name
}

// The payloads in the reply to a vote. A number ≥ 0 means the payload of that rank.
const (
	WantNothing int32 = -1 - iota
	WantAll           // the payloads of all ranks, in their order
	WantPart          // the part for this rank of each payload (AppendParts)
	WantReduced       // all payloads, reduced in the order of ranks
)

// Reduction is how payloads of little-endian numbers are reduced to one.
type Reduction struct {
	Op   ReduceOp
	Kind NumberKind
}

// ReduceOp is the operator of a Reduction.
type ReduceOp uint8

// The operators of a Reduction.
const (
	ReduceSum ReduceOp = iota + 1
	ReduceProduct
	ReduceMin
	ReduceMax
	reduceEnd
)

// NumberKind is the type of the numbers of a Reduction.
type NumberKind uint8

const (
	Int32 NumberKind = iota + 1
	Int64
	Uint32
	Uint64
	Float32
	Float64
	numberEnd
)

// Size returns the bytes of one number; 0 for an unknown kind.
func (k NumberKind) Size() int {
	switch k {
	case Int32, Uint32, Float32:
		return 4
	case Int64, Uint64, Float64:
		return 8
	}
	return 0
}

// Valid reports whether f has a known operator and kind.
func (f Reduction) Valid() bool {
	return f.Op > 0 && f.Op < reduceEnd && f.Kind > 0 && f.Kind < numberEnd
}

// field is a set of parts of a request's body. Those that a request may lack are the flags of its
// frame.
type field uint32

const (
	fValue       field = 1 << iota // Value is not nil
	fBytes                         // Expect, Claim or Token is not nil: the table says which
	fNo                            // no is not 0: no, reason
	fNumber                        // number is not 0: number, acked
	fLease                         // lease is not 0
	fResume                        // resume is not 0: resume, incarnation
	fOptionalTTL                   // ttl is not 0
	fStall                         // stall is not 0
	fTimeout                       // the rest are not in flags: an operation that has them always has them
	fKey
	fKeys
	fAdd
	fLength
	fFirst
	fLimit
	fTTL
	fAfter
	fOffset
	fAttempt
	fCount
	fPlace  // rank and generation, of 64 bits each
	fMember // generation and rank
	fForm   // group, run, size, label
	fCall   // channel, seq, root, verb, type
	fVote   // label, want, root-only, fold
	fPhase  // a Phase
	isClaim // fBytes is Claim
	isToken // fBytes is Token

	fExpect   = fBytes
	fClaim    = fBytes | isClaim
	fToken    = fBytes | isToken
	fOptional = fTimeout - 1 // the flags of a frame
)

// AppendRequest appends r to b as one frame.
func AppendRequest(b []byte, r *Request) []byte {
	start := len(b)
	f := r.parts(r.Op.info().fields)
	p := pass{b: AppendHeader(b, Header{Op: r.Op, Flags: uint8(f & fOptional), ID: r.ID})}
	r.fields(&p, f)
	return finish(p.b, start)
}

// parts returns those of f that r has.
func (r *Request) parts(f field) field {
	lacks := func(part field, lacks bool) {
		if lacks {
			f &^= part
		}
	}
	lacks(fValue, r.Value == nil)
	lacks(fBytes, *r.bytes(f) == nil)
	lacks(fNo, r.Group.No == CodeOK)
	lacks(fNumber, r.Number == 0)
	lacks(fLease, r.Lease == 0)
	lacks(fResume, r.Resume == 0)
	lacks(fOptionalTTL, r.TTL == 0)
	lacks(fStall, r.Group.Stall == 0)
	return f
}

// bytes returns the field that is the part fBytes.
func (r *Request) bytes(f field) *[]byte {
	switch {
	case f&isClaim != 0:
		return &r.Claim
	case f&isToken != 0:
		return &r.Token
	}
	return &r.Expect
}

// Parse parses the body of the frame with header h into r, which aliases body. It overwrites r, and
// reuses the memory of its Keys.
func (r *Request) Parse(h Header, body []byte) error {
	keys := r.Keys[:0]
	*r = Request{Op: h.Op, ID: h.ID}
	if h.Op == 0 || h.Op >= opEnd || relayOnly(h.Op) {
		return ErrUnknownOp
	}
	f := h.Op.info().fields
	if field(h.Flags)&^(f&fOptional) != 0 || h.Code != CodeOK {
		return ErrFlags
	}
	if f&fKeys != 0 {
		r.Keys = keys
	}
	p := pass{b: body, parses: true}
	r.fields(&p, f&^fOptional|field(h.Flags))
	return p.end()
}

// fields is a pass over the parts f of r.
func (r *Request) fields(p *pass, f field) {
	if f&fNumber != 0 {
		p.u64(&r.Number)
		p.u64(&r.Acked)
		p.present(r.Number)
	}
	if f&fTimeout != 0 {
		p.duration(&r.Timeout)
	}
	if f&fKey != 0 {
		p.string(&r.Key, MaxKey)
	}
	if f&fKeys != 0 {
		p.strings(&r.Keys, MaxKey)
	}
	if f&fValue != 0 {
		p.bytes(&r.Value, MaxValue)
	}
	if f&fBytes != 0 {
		p.bytes(r.bytes(f), MaxValue)
	}
	if f&fAdd != 0 {
		p.i64(&r.Add)
	}
	if f&fLength != 0 {
		p.i64(&r.Length)
	}
	if f&fFirst != 0 {
		p.i64(&r.First)
	}
	if f&fLimit != 0 {
		r.limit(p)
	}
	if f&fTTL != 0 {
		p.duration(&r.TTL)
	}
	if f&fOptionalTTL != 0 {
		p.duration(&r.TTL)
		p.present(uint64(r.TTL))
	}
	if f&fAfter != 0 {
		p.u64(&r.After)
	}
	if f&fOffset != 0 {
		p.u64(&r.Offset)
	}
	if f&fAttempt != 0 {
		p.u64(&r.Attempt)
	}
	if f&fCount != 0 {
		p.u64(&r.Count)
	}
	if f&fPlace != 0 {
		p.int64(&r.Group.Rank)
		p.u64(&r.Group.Generation)
	}
	if f&fLease != 0 {
		p.u64(&r.Lease)
		p.present(r.Lease)
	}
	if f&fResume != 0 {
		p.u64(&r.Resume)
		p.u64(&r.Incarnation)
		p.present(r.Resume)
	}
	r.Group.fields(p, f)
	if f&fPhase != 0 {
		r.Phase.fields(p)
	}
}

func (f *Phase) fields(p *pass) {
	p.u64(&f.ID)
	p.string(&f.Name, MaxPhase)
	p.i64(&f.Done)
	p.i64(&f.Total)
	p.duration(&f.Stall)
	p.duration(&f.Ago)
}

// limit is a pass over Limit, below 0 with KeysOnly.
func (r *Request) limit(p *pass) {
	n := max(r.Limit, 0)
	if r.KeysOnly {
		n = -cmp.Or(n, math.MaxInt64)
	}
	p.i64(&n)
	switch {
	case !p.parses:
	case n == math.MinInt64:
		p.fail(ErrTooLarge)
	default:
		r.KeysOnly, r.Limit = n < 0, max(n, -n)
	}
}

func (c *Contribution) fields(p *pass, f field) {
	if f&fMember != 0 {
		p.u64(&c.Generation)
		p.int(&c.Rank)
	}
	if f&fForm != 0 {
		p.string(&c.Group, MaxKey)
		p.string(&c.Run, MaxKey)
		p.int(&c.Size)
		p.string(&c.Label, MaxKey)
	}
	if f&fCall != 0 {
		p.string(&c.Channel, MaxKey)
		p.u64(&c.Seq)
		p.int(&c.Root)
		p.string(&c.Verb, MaxKey)
		p.string(&c.Type, MaxKey)
	}
	if f&fVote != 0 {
		p.string(&c.Label, MaxKey)
		p.i32(&c.Want)
		p.bool(&c.RootOnly)
		c.Reduction.fields(p)
	}
	if f&fStall != 0 {
		p.duration(&c.Stall)
		p.present(uint64(c.Stall))
	}
	if f&fNo != 0 {
		p.code(&c.No)
		p.string(&c.Reason, MaxKey)
		p.present(uint64(c.No))
	}
}

func (f *Reduction) fields(p *pass) {
	p.u8((*uint8)(&f.Op))
	p.u8((*uint8)(&f.Kind))
}
