// Package wire has the two names that users of groups need, Codec and MsgPack, and encodes and decodes
// muster's protocol, for those who write a client. It has pure functions without sockets, locks or
// clocks.
//
//	b = wire.AppendRequest(b, &req)            // one frame: header and body
//	h, err := wire.ParseHeader(b, limit)       // the length is checked before anything is allocated
//	err = req.Parse(h, b[wire.HeaderLen:])
//
// Append functions append to b and return it. Parse functions return values that alias b, strings
// included: a caller that keeps a part clones it, and must not modify b before that.
// docs/reference/protocol.md is the normative description; its tables use the names of this
// package.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Preface is what a client sends before its first frame. Its first byte is neither ASCII nor the
// start of a TLS record, so other protocols can share the port. It ends with two line ends, and
// with bytes that are a complete header, so that a server of another protocol answers at once
// instead of waiting for more.
const Preface = "\x8dMUSTER\x02\r\n\r\n"

const (
	// Version is the version of the protocol.
	Version = 2
	// VersionAt is the index of the version's byte in Preface.
	VersionAt = 7
)

// HeaderLen is the length of the header of a frame, in bytes: body length u32 | op u8 | flags u8 |
// code u16 | id u64, little-endian.
const HeaderLen = 16

// Limits of a frame. A frame that exceeds one is refused before it is read.
const (
	MaxKey   = 8 << 10  // bytes of a key, and of a group's name, a verb, a type or a label
	MaxPhase = 128      // bytes of the name of a phase
	MaxValue = 16 << 20 // bytes of a value or a payload
	MaxKeys  = 10_000   // keys in one request: the store works on them at once
	MaxBody  = MaxValue + 1<<20
	MaxReply = 1 << 30 // bytes of a reply's body: an all-gather has the payloads of all ranks
)

// Code is the outcome of a call. Numbers are append-only; docs/reference/protocol.md has the table.
type Code uint16

const (
	CodeOK          Code = iota
	CodeNotFound         // the key does not exist
	CodeExpired          // it has expired
	CodeConflict         // another caller was first
	CodeLost             // a rank has failed: its session ended without goodbye
	CodeTimeout          // the deadline has passed
	CodeTooLarge         // over a limit on one object
	CodeFull             // over a limit on all objects together
	CodeDenied           // access denied
	CodeUnavailable      // the store cannot be reached
	CodeUnsupported      // this engine does not implement the operation
	CodeCompacted        // the history does not reach back so far: list again
	CodeClosed           // closed by this side
	CodeInvalid          // invalid request
	CodeMismatch         // ranks made different calls
	CodeAborted          // a rank aborted the group
	CodeLeft             // a rank left the group
	CodeCancelled        // a rank's context was cancelled
	CodeStale            // the generation has ended, or the sequence number is passed
	CodeAgain            // the store has no buffer for the answer now: the client retries
	CodeWouldBlock       // the stream is full: wait by OpSendReady
	CodeFailed           // a rank could not do its part of an operation; the group stays active
	CodeSkipped          // a rank moved on without a vote for this call; the group stays active
	CodeStalled          // a missing rank has made no progress for a time; the group stays active
	codeEnd
)

var codeNames = [codeEnd]string{
	"ok", "not found", "expired", "conflict", "lost", "timed out", "too large", "full", "denied", "unavailable", "unsupported",
	"compacted", "closed", "invalid", "mismatch", "aborted", "left", "cancelled", "stale",
	"no space for the answer", "would block", "failed", "skipped", "stalled",
}

func (c Code) String() string {
	if c < codeEnd {
		return codeNames[c]
	}
	return fmt.Sprintf("code(%d)", uint16(c))
}

// Header is the first HeaderLen bytes of a frame.
type Header struct {
	Len   uint32 // bytes of the body that follows
	Op    Op     // of the request; a reply has that of its request
	Flags uint8  // which optional parts the body has
	Code  Code   // of a reply; 0 in requests
	ID    uint64 // of the call; its reply has the same
}

// Errors of frames that cannot be parsed.
var (
	ErrTooLarge  = errors.New("wire: frame too large")
	ErrTruncated = errors.New("wire: truncated frame")
	ErrTrailing  = errors.New("wire: bytes after the end of a body")
	ErrUnknownOp = errors.New("wire: unknown operation")
	ErrFlags     = errors.New("wire: unknown flags")
)

// AppendHeader appends h to b.
func AppendHeader(b []byte, h Header) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.Len)
	b = append(b, byte(h.Op), h.Flags)
	b = binary.LittleEndian.AppendUint16(b, uint16(h.Code))
	return binary.LittleEndian.AppendUint64(b, h.ID)
}

// ParseHeader parses the header at the front of b. A body of more than limit bytes is ErrTooLarge.
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

// Readdress changes the header at the front of b to answer another call: one encoded body serves
// many.
func Readdress(b []byte, op Op, id uint64) {
	b[4] = byte(op)
	binary.LittleEndian.PutUint64(b[8:], id)
}
