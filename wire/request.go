package wire

import "time"

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
	Value []byte
	// Old is the value that OpSwap expects; nil means that the key must not exist. OpJoin: the
	// token of this process's claim to the rank, of at most 64 bytes; nil means none.
	Old []byte
	// Delta has several uses:
	//
	//   - OpAdd: the number to add
	//   - OpList: the maximum number of keys to return, negated to omit their values
	//   - OpSendReady: the length of the message in bytes
	//   - OpStatus: the first rank of the page; OpStacks: the rank; OpMembers: the first rank
	//   - OpGet: below 0 omits the value, and above 0 the value may be the memory of a store in this
	//     process, which must not be modified; this is not in the frame
	Delta int64
	// TTL is the time after which the entry or the message expires; 0 means never. OpAdd, OpAppend:
	// it applies only to an entry that they create.
	TTL   time.Duration
	Reads uint32 // the entry is deleted by its last read; 0 means unlimited
	// Rev is a revision: OpWatch returns the changes after it. OpHello: the incarnation of the
	// store that Resume is of. OpBackup: the first byte of the part. OpStatus: the first generation
	// of the page. OpStacks: the generation. OpJoin: with Old, the try of this process: 1, 2, …
	// OpMembers: the number of members, 0 for all of the rest.
	Rev    uint64
	Lease  uint64       // OpSet: the lease of the entry; OpKeepAlive, OpRevoke: this one
	Resume uint64       // OpHello: the session to resume, with its token in Value; 0: a new one
	Group  Contribution // operations of groups
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

// field is a set of parts of a request's body. They are encoded in the order of their bits.
type field uint32

const (
	fTimeout field = 1 << iota
	fKey
	fKeys
	fValue
	fOld
	fDelta
	fTTL
	fReads
	fRev
	fMember      // generation and rank
	fForm        // group, run, size, label
	fCall        // channel, seq, root, verb, type
	fVote        // label, want, root-only, fold
	fNo          // no, reason
	fNumber      // number, acked
	fLease       // lease
	fResume      // resume, rev
	fOptionalTTL // ttl, unless it is 0
)

// The flags of a request: which optional parts it has.
const (
	flagValue  uint8 = 1 << iota // Value is not nil
	flagOld                      // Old is not nil
	flagNo                       // No is not 0
	flagNumber                   // Number is not 0
	flagLease                    // Lease is not 0
	flagResume                   // Resume is not 0
	flagTTL                      // TTL is not 0, where it is optional
)

// AppendRequest appends r to b as one frame.
func AppendRequest(b []byte, r *Request) []byte {
	start := len(b)
	f := r.Op.info().fields
	b = AppendHeader(b, Header{Op: r.Op, Flags: r.flags(f), ID: r.ID})
	if f&fNumber != 0 && r.Number != 0 {
		b = appendU64(b, r.Number)
		b = appendU64(b, r.Acked)
	}
	if f&fTimeout != 0 {
		b = appendDuration(b, r.Timeout)
	}
	if f&fKey != 0 {
		b = appendString(b, r.Key)
	}
	if f&fKeys != 0 {
		b = appendStrings(b, r.Keys)
	}
	if f&fValue != 0 && r.Value != nil {
		b = appendBytes(b, r.Value)
	}
	if f&fOld != 0 && r.Old != nil {
		b = appendBytes(b, r.Old)
	}
	if f&fDelta != 0 {
		b = appendU64(b, uint64(r.Delta))
	}
	if f&fTTL != 0 {
		b = appendDuration(b, r.TTL)
	}
	if f&fOptionalTTL != 0 && r.TTL != 0 {
		b = appendDuration(b, r.TTL)
	}
	if f&fReads != 0 {
		b = appendU32(b, r.Reads)
	}
	if f&fRev != 0 {
		b = appendU64(b, r.Rev)
	}
	if f&fLease != 0 && r.Lease != 0 {
		b = appendU64(b, r.Lease)
	}
	if f&fResume != 0 && r.Resume != 0 {
		b = appendU64(b, r.Resume)
		b = appendU64(b, r.Rev)
	}
	b = r.Group.append(b, f)
	return finish(b, start)
}

func (r *Request) flags(f field) (flags uint8) {
	set := func(part field, there bool, flag uint8) {
		if f&part != 0 && there {
			flags |= flag
		}
	}
	set(fValue, r.Value != nil, flagValue)
	set(fOld, r.Old != nil, flagOld)
	set(fNo, r.Group.No != CodeOK, flagNo)
	set(fNumber, r.Number != 0, flagNumber)
	set(fLease, r.Lease != 0, flagLease)
	set(fResume, r.Resume != 0, flagResume)
	set(fOptionalTTL, r.TTL != 0, flagTTL)
	return flags
}

func (c *Contribution) append(b []byte, f field) []byte {
	if f&fMember != 0 {
		b = appendU64(b, c.Generation)
		b = appendInt(b, c.Rank)
	}
	if f&fForm != 0 {
		b = appendString(b, c.Group)
		b = appendString(b, c.Run)
		b = appendInt(b, c.Size)
		b = appendString(b, c.Label)
	}
	if f&fCall != 0 {
		b = appendString(b, c.Channel)
		b = appendU64(b, c.Seq)
		b = appendInt(b, c.Root)
		b = appendString(b, c.Verb)
		b = appendString(b, c.Type)
	}
	if f&fVote != 0 {
		b = appendString(b, c.Label)
		b = appendU32(b, uint32(c.Want))
		b = append(b, boolByte(c.RootOnly), byte(c.Reduction.Op), byte(c.Reduction.Kind))
	}
	if f&fNo != 0 && c.No != CodeOK {
		b = appendU16(b, uint16(c.No))
		b = appendString(b, c.Reason)
	}
	return b
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
	if h.Flags&^requestFlags(f) != 0 || h.Code != CodeOK {
		return ErrFlags
	}
	p := parser{b: body}
	if h.Flags&flagNumber != 0 {
		r.Number, r.Acked = p.u64(), p.u64()
		p.present(r.Number)
	}
	if f&fTimeout != 0 {
		r.Timeout = p.duration()
	}
	if f&fKey != 0 {
		r.Key = p.string(MaxKey)
	}
	if f&fKeys != 0 {
		r.Keys = p.strings(keys, MaxKey)
	}
	if h.Flags&flagValue != 0 {
		r.Value = p.bytes(MaxValue)
	}
	if h.Flags&flagOld != 0 {
		r.Old = p.bytes(MaxValue)
	}
	if f&fDelta != 0 {
		r.Delta = int64(p.u64())
	}
	if f&fTTL != 0 {
		r.TTL = p.duration()
	}
	if h.Flags&flagTTL != 0 {
		r.TTL = p.duration()
		p.present(uint64(r.TTL))
	}
	if f&fReads != 0 {
		r.Reads = p.u32()
	}
	if f&fRev != 0 {
		r.Rev = p.u64()
	}
	if h.Flags&flagLease != 0 {
		r.Lease = p.u64()
		p.present(r.Lease)
	}
	if h.Flags&flagResume != 0 {
		r.Resume, r.Rev = p.u64(), p.u64()
		p.present(r.Resume)
	}
	r.Group.parse(&p, f, h.Flags)
	return p.end()
}

// requestFlags returns the flags that a request with parts f may have.
func requestFlags(f field) (flags uint8) {
	if f&fValue != 0 {
		flags |= flagValue
	}
	if f&fOld != 0 {
		flags |= flagOld
	}
	if f&fNo != 0 {
		flags |= flagNo
	}
	if f&fNumber != 0 {
		flags |= flagNumber
	}
	if f&fLease != 0 {
		flags |= flagLease
	}
	if f&fResume != 0 {
		flags |= flagResume
	}
	if f&fOptionalTTL != 0 {
		flags |= flagTTL
	}
	return flags
}

func (c *Contribution) parse(p *parser, f field, flags uint8) {
	if f&fMember != 0 {
		c.Generation = p.u64()
		c.Rank = p.int()
	}
	if f&fForm != 0 {
		c.Group = p.string(MaxKey)
		c.Run = p.string(MaxKey)
		c.Size = p.int()
		c.Label = p.string(MaxKey)
	}
	if f&fCall != 0 {
		c.Channel = p.string(MaxKey)
		c.Seq = p.u64()
		c.Root = p.int()
		c.Verb = p.string(MaxKey)
		c.Type = p.string(MaxKey)
	}
	if f&fVote != 0 {
		c.Label = p.string(MaxKey)
		c.Want = int32(p.u32())
		c.RootOnly = p.bool()
		c.Reduction = Reduction{ReduceOp(p.u8()), NumberKind(p.u8())}
	}
	if flags&flagNo != 0 {
		c.No = Code(p.u16())
		c.Reason = p.string(MaxKey)
		if c.No == CodeOK {
			p.fail(ErrFlags)
		}
	}
}
