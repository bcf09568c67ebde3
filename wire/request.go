package wire

import "time"

// Request is one call, as the store decides it: the only vocabulary between clients, servers
// and engines. Which fields an operation has is the table in docs/protocol.md; the others stay zero.
type Request struct {
	Op      Op
	ID      uint64        // of the call, chosen by the caller
	Session uint64        // of the caller; set by the server, never on the wire
	Number  uint64        // of a request that changes something: 1, 2, 3 … in its session; 0: it is carried out each time it comes
	Acked   uint64        // with Number: the answers to all up to this one have come
	Timeout time.Duration // what is left of the caller's deadline, 0 is none; OpHello: for how long it may be silent while others wait
	Key     string        // or a prefix, or a queue
	Keys    []string
	Value   []byte        // a value, a payload, a member; nil is none; OpSwap: nil is "absent"
	Old     []byte        // OpSwap: nil is "absent"; OpJoin: the token of this process's claim to the rank, at most 64 bytes; nil is none
	Delta   int64         // OpAdd; OpList: how many at most; below 0 it is so many keys without their values; OpGet: so too, but not on the wire; OpStatus: from this rank on
	TTL     time.Duration // the entry, or the message, goes when it has passed; 0 is never; OpAdd, OpAppend: if they make it
	Reads   uint32        // the entry goes with its last read; 0 is never
	Rev     uint64        // OpWatch: after this revision; OpHello: the incarnation that Resume is of; OpBackup: from this byte on; OpStatus: from this generation on; OpJoin: with Old, how often this process has claimed the rank: 1, 2, …
	Lease   uint64        // OpSet: the entry goes with it; OpKeepAlive, OpRevoke: this one
	Resume  uint64        // OpHello: the session to take up again, with its token in Value; 0 is a new one
	Group   Contribution  // operations of groups
}

// Contribution is one rank's part of a group verb.
type Contribution struct {
	Group      string    // OpJoin: the roll's name
	Run        string    // OpJoin: the run's id; another run is another roll
	Generation uint64    // the group, once joined; OpJoin: the generation to shrink, or 0
	Channel    string    // OpCollect: an independent sequence; OpSend, OpRecv: the tag
	Seq        uint64    // of the record, or position in the stream; the first is 1
	Rank       int       // who calls
	Size       int       // OpJoin: the world size
	Root       int       // the root; OpSend: the destination; OpRecv: the source; -1 is none
	Verb       string    // "barrier", "broadcast", …
	Type       string    // of the object; ranks agree on it if both tell
	Label      string    // ranks agree on it; OpJoin: who this is, for the errors of others
	Want       int32     // what comes back
	RootOnly   bool      // the root's yes decides; otherwise everybody's
	Reduction  Reduction // WantReduced: how
	No         Code      // a vote of no, or the abort of a group, and why; OpCancel: CodeTimeout if the call's deadline has passed, or CodeCancelled
	Reason     string    // in words
}

// What of a decided record comes back; a number ≥ 0 is that rank's payload.
const (
	WantNothing int32 = -1 - iota
	WantAll           // every rank's payload, in rank order
	WantPart          // the part at this rank's index of each payload (AppendParts)
	WantReduced       // all payloads folded in rank order
)

// Fold says how payloads of little-endian numbers become one.
type Reduction struct {
	Op   ReduceOp
	Kind NumberKind
}

// FoldOp is a reduction.
type ReduceOp uint8

const (
	ReduceSum ReduceOp = iota + 1
	ReduceProduct
	ReduceMin
	ReduceMax
	reduceEnd
)

// NumberKind is the type of the numbers of a Fold.
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

// Size is the number of bytes of one number.
func (k NumberKind) Size() int {
	switch k {
	case Int32, Uint32, Float32:
		return 4
	case Int64, Uint64, Float64:
		return 8
	}
	return 0
}

// Valid reports whether f is a fold that exists.
func (f Reduction) Valid() bool {
	return f.Op > 0 && f.Op < reduceEnd && f.Kind > 0 && f.Kind < numberEnd
}

// field is a set of parts of a request's body, in the order in which they travel.
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
	fOptionalTTL // ttl, if it is not 0
)

// fields says which parts each operation's body has.
var fields = [opEnd]field{
	OpHello:        fTimeout | fKey | fValue | fOld | fResume,
	OpGoodbye:      0,
	OpCancel:       fNo,
	OpPing:         0,
	OpGet:          fKey,
	OpSet:          fNumber | fKey | fValue | fTTL | fReads | fLease,
	OpWait:         fTimeout | fKeys,
	OpAdd:          fNumber | fKey | fDelta | fOptionalTTL,
	OpSwap:         fNumber | fKey | fValue | fOld | fOptionalTTL,
	OpAppend:       fNumber | fKey | fValue | fOptionalTTL,
	OpDelete:       fNumber | fKeys,
	OpList:         fKey | fKeys | fDelta,
	OpWatch:        fTimeout | fKey | fRev,
	OpJoin:         fTimeout | fValue | fOld | fRev | fMember | fForm,
	OpLeave:        fNumber | fMember | fNo,
	OpFollow:       fTimeout | fMember,
	OpCollect:      fTimeout | fValue | fMember | fCall | fVote | fNo,
	OpSend:         fNumber | fValue | fTTL | fMember | fCall,
	OpRecv:         fTimeout | fMember | fCall,
	OpExpired:      fNumber | fMember,
	OpLost:         fTTL | fValue,
	OpTake:         fNumber | fKeys,
	OpSendReady:    fTimeout | fDelta | fMember | fCall,
	OpGrant:        fNumber | fTTL,
	OpKeepAlive:    fLease,
	OpRevoke:       fNumber | fLease,
	OpSkip:         fNumber,
	OpProof:        fValue,
	OpBackup:       fRev,
	OpStatus:       fKey | fDelta | fRev,
	OpPush:         fNumber | fKey | fValue,
	OpPop:          fNumber | fKey,
	OpCloseChannel: fNumber | fMember | fCall,
	OpAck:          fMember | fCall,
}

// Flags of a request: which of the optional parts are there.
const (
	flagValue  uint8 = 1 << iota // Value is not nil
	flagOld                      // Old is not nil
	flagNo                       // the vote is no
	flagNumber                   // Number is not 0
	flagLease                    // Lease is not 0
	flagResume                   // Resume is not 0
	flagTTL                      // TTL is not 0, where it may be left out
)

// AppendRequest appends r as one frame.
func AppendRequest(b []byte, r *Request) []byte {
	start := len(b)
	f := fields[r.Op]
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

// Parse parses the body of the frame with header h into r, which aliases body.
// What r held before is gone; the room of its Keys is used again.
func (r *Request) Parse(h Header, body []byte) error {
	keys := r.Keys[:0]
	*r = Request{Op: h.Op, ID: h.ID}
	if h.Op == 0 || h.Op >= opEnd || relayOnly(h.Op) {
		return ErrUnknownOp
	}
	f := fields[h.Op]
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

// requestFlags are the flags that a request with parts f may have.
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
