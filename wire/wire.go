// Package wire is muster's protocol as bytes: pure functions, no sockets, locks or clocks.
//
//	b = wire.AppendRequest(b, &req)            // one frame: header and body
//	h, err := wire.ParseHeader(b, limit)       // the length is checked before anything is allocated
//	err = req.Parse(h, b[wire.HeaderLen:])
//
// Append functions append to b. Parse functions alias b, strings included: whoever keeps a
// part of what they gave clones it, and the caller of Parse says for how long b stays.
// docs/protocol.md is the normative description; its tables have these names.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Preface is what a client sends before its first frame. Its first byte is no ASCII and no TLS record, so that
// other protocols can share the port. It ends as a line and as a header would, so that a server of another
// kind answers at once instead of waiting for more.
const Preface = "\x8dMUSTER\x01\r\n\r\n"

const (
	// Version of the protocol.
	Version = 1
	// VersionAt is the place of the version's byte in Preface.
	VersionAt = 7
)

// HeaderLen is the length of a frame's header:
// body length u32 | op u8 | flags u8 | code u16 | id u64, little-endian.
const HeaderLen = 16

// What a frame may carry; longer is refused before it is read.
const (
	MaxKey   = 8 << 10  // bytes of a key, a group's name, a verb, a type, a label
	MaxValue = 16 << 20 // bytes of a value or a payload
	MaxKeys  = 1 << 17  // keys in one request
	MaxBody  = MaxValue + 1<<20
	MaxReply = 1 << 30 // body of a reply: an all-gather has as many payloads as ranks
)

// Op is what a frame asks for. Append-only: docs/protocol.md is the table.
type Op uint8

const (
	OpHello   Op = iota + 1 // opens the session; answered with its number
	OpGoodbye               // ends it: its ranks have left, they are not lost
	OpCancel                // gives up the call with this frame's id
	OpPing                  // answered at once
	OpGet                   // one key, at once
	OpSet
	OpWait // until all keys are there
	OpAdd
	OpSwap
	OpAppend
	OpDelete
	OpList         // a page of entries below a prefix
	OpWatch        // what changed below a prefix after a revision; waits if nothing has
	OpJoin         // a rank enters the roll of a group
	OpLeave        // a rank leaves its group, or aborts it
	OpFollow       // answered when the group's generation is revoked
	OpCollect      // one vote for one record: a group verb
	OpSend         // puts a message into a stream between two ranks
	OpRecv         // takes one from it
	OpExpired      // how many of a rank's messages expired unread
	OpLost         // the session's connection ended without goodbye: said by a server to its engine, refused from a peer
	OpTake         // one read of each of its keys, which have a number of reads left
	OpSendReady    // answered when a stream has room
	OpGrant        // a lease
	OpKeepAlive    // keeps a lease alive
	OpRevoke       // ends a lease, and its entries with it
	OpSkip         // nothing, under a number that was used
	OpProbe        // is anybody there: asked by a server, and answered with the same
	OpProof        // the server's question for the secret, and the proof of it
	OpBackup       // a piece of a copy of all that the store holds
	OpRelay        // of a relay: a frame of one of its branches, or one for many
	OpVotes        // of a relay: votes for one record, of many branches
	OpStatus       // a page of what the store sees of itself: groups, who waits for whom
	OpPush         // puts a value at the end of a queue
	OpPop          // takes the first value of a queue
	OpCloseChannel // a rank closes a channel: it makes no more calls on it
	OpAck          // a rank has received the messages of a stream up to a position
	opEnd
)

var opNames = [opEnd]string{
	OpHello: "hello", OpGoodbye: "goodbye", OpCancel: "cancel", OpPing: "ping", OpGet: "get", OpSet: "set", OpWait: "wait",
	OpAdd: "add", OpSwap: "swap", OpAppend: "append", OpDelete: "delete", OpList: "list", OpWatch: "watch", OpJoin: "join",
	OpLeave: "leave", OpFollow: "follow", OpCollect: "collect", OpSend: "send", OpRecv: "recv", OpExpired: "expired", OpLost: "lost",
	OpTake: "take", OpSendReady: "send ready", OpGrant: "lease", OpKeepAlive: "keep alive", OpRevoke: "revoke", OpSkip: "skip", OpProbe: "probe",
	OpProof: "proof", OpBackup: "backup", OpRelay: "relay", OpVotes: "votes", OpStatus: "status",
	OpPush: "push", OpPop: "pop", OpCloseChannel: "close channel", OpAck: "acknowledge",
}

func (o Op) String() string {
	if o < opEnd && opNames[o] != "" {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// Waits reports whether an answer to o may take as long as its caller lets it. What waits may be asked again
// after a reconnect, under the same id: it changes nothing, or is a vote, which counts once.
func (o Op) Waits() bool {
	switch o {
	case OpWait, OpWatch, OpJoin, OpFollow, OpCollect, OpRecv, OpSendReady:
		return true
	}
	return false
}

// Numbered reports whether o changes something each time it is carried out. It never waits. A session numbers
// such requests, and the store carries each number out once.
func (o Op) Numbered() bool { return o < opEnd && fields[o]&fNumber != 0 }

// Code is an error on the wire. Append-only: docs/protocol.md is the table.
type Code uint16

const (
	CodeOK          Code = iota
	CodeNotFound         // no such key
	CodeExpired          // it was there, and its time is over
	CodeConflict         // somebody else was first
	CodeLost             // a rank's session ended without goodbye
	CodeTimeout          // the deadline passed
	CodeTooLarge         // beyond a limit on one thing
	CodeFull             // beyond a limit on all things together
	CodeDenied           // not yours
	CodeUnavailable      // the store cannot be reached
	CodeUnsupported      // this engine does not have it
	CodeCompacted        // history is gone: list again
	CodeClosed           // by this side
	CodeInvalid          // a request that makes no sense
	CodeMismatch         // ranks disagree
	CodeAborted          // a rank said why
	CodeLeft             // a rank said goodbye
	CodeCancelled        // a rank's context ended
	CodeStale            // a generation that is over, or a sequence that is passed
	CodeCounted          // the entry is for a number of reads: OpTake is one
	CodeWouldBlock       // the stream is full: OpSendReady waits
	CodeFailed           // a rank could not do its part of what ranks do together; the group goes on
	CodeSkipped          // a rank went on to a later verb without a vote for this one; the group goes on
	CodeAgain            // the store has no room for the answer now: the client sends the request again
	codeEnd
)

var codeNames = [codeEnd]string{
	"ok", "not found", "expired", "conflict", "lost", "timed out", "too large", "full", "denied", "unavailable", "unsupported",
	"compacted", "closed", "invalid", "mismatch", "aborted", "left", "cancelled", "stale",
	"counted", "would block", "failed", "skipped", "no space for the answer",
}

func (c Code) String() string {
	if c < codeEnd {
		return codeNames[c]
	}
	return fmt.Sprintf("code(%d)", uint16(c))
}

// Header is the first HeaderLen bytes of each frame.
type Header struct {
	Len   uint32 // of the body that follows
	Op    Op     // OpHello… in requests; the same in their replies
	Flags uint8  // which parts the body has
	Code  Code   // in replies
	ID    uint64 // of the call; its reply carries it too
}

// What can be wrong with a frame.
var (
	ErrTooLarge  = errors.New("wire: frame too large")
	ErrTruncated = errors.New("wire: truncated frame")
	ErrTrailing  = errors.New("wire: bytes after the end of a body")
	ErrUnknownOp = errors.New("wire: unknown operation")
	ErrFlags     = errors.New("wire: unknown flags")
)

// AppendHeader appends h.
func AppendHeader(b []byte, h Header) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.Len)
	b = append(b, byte(h.Op), h.Flags)
	b = binary.LittleEndian.AppendUint16(b, uint16(h.Code))
	return binary.LittleEndian.AppendUint64(b, h.ID)
}

// ParseHeader parses the header at the front of b; a body of more than limit bytes is ErrTooLarge.
func ParseHeader(b []byte, limit uint32) (Header, error) {
	if len(b) < HeaderLen {
		return Header{}, ErrTruncated
	}
	h := Header{
		Len:   binary.LittleEndian.Uint32(b),
		Op:    Op(b[4]),
		Flags: b[5],
		Code:  Code(binary.LittleEndian.Uint16(b[6:])),
		ID:    binary.LittleEndian.Uint64(b[8:]),
	}
	if h.Len > limit {
		return h, fmt.Errorf("%w: %s of %d bytes, the limit is %d", ErrTooLarge, h.Op, h.Len, limit)
	}
	if h.Op == 0 || h.Op >= opEnd {
		return h, fmt.Errorf("%w: %d", ErrUnknownOp, uint8(h.Op))
	}
	return h, nil
}

// Readdress makes the header at the front of b answer another call: one body serves many.
func Readdress(b []byte, op Op, id uint64) {
	b[4] = byte(op)
	binary.LittleEndian.PutUint64(b[8:], id)
}
