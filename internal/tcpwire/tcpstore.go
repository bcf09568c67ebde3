package tcpwire

import (
	"errors"
	"fmt"
)

const (
	// Magic is the number in VALIDATE.
	Magic = 0x3C85F7CE
	// Preface is the first request of a client: a VALIDATE.
	Preface = "\x00\xce\xf7\x85\x3c"
	// KeyPrefix is the prefix of each key that a user named.
	KeyPrefix = "/"
	// InitKey counts the clients that have joined. It has no KeyPrefix.
	InitKey = "init/"
)

// The values of one-byte replies.
const (
	Ready        = 0 // CHECK: all keys exist
	NotReady     = 1
	StopWaiting  = 0 // WAIT, BARRIER: the wait has ended
	WaitCanceled = 1 // CANCEL_WAIT
)

// Op is an operation. Its value is its number in the protocol.
type Op uint8

const (
	OpValidate Op = iota
	OpSet
	OpCompareSet
	OpGet
	OpAdd
	OpCheck
	OpWait
	OpGetNumKeys
	OpDeleteKey
	OpAppend
	OpMultiGet
	OpMultiSet
	OpCancelWait
	OpPing
	OpQueuePush
	OpQueuePop
	OpQueueLen
	OpListKeys
	OpBarrier
	opEnd
)

var opNames = [opEnd]string{
	OpValidate: "VALIDATE", OpSet: "SET", OpCompareSet: "COMPARE_SET", OpGet: "GET", OpAdd: "ADD", OpCheck: "CHECK",
	OpWait: "WAIT", OpGetNumKeys: "GETNUMKEYS", OpDeleteKey: "DELETE_KEY", OpAppend: "APPEND", OpMultiGet: "MULTI_GET",
	OpMultiSet: "MULTI_SET", OpCancelWait: "CANCEL_WAIT", OpPing: "PING", OpQueuePush: "QUEUE_PUSH", OpQueuePop: "QUEUE_POP",
	OpQueueLen: "QUEUE_LEN", OpListKeys: "LIST_KEYS", OpBarrier: "BARRIER",
}

// String returns the name of o in PyTorch's source.
func (o Op) String() string {
	if o < opEnd {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// IsOlder reports whether first, the first bytes of a connection, are those of a client before torch
// 2.2; more reports that it takes more bytes to decide. Such a client does not send Preface: its first
// message is a number and the length of a key or of a list.
func IsOlder(first []byte) (yes, more bool) {
	const numbers, length = 12, 9 // of torch 2.1; the number and the length
	for i, b := range first[:min(len(first), length)] {
		if i == 0 && b >= numbers || i > 2 && b != 0 {
			return false, false
		}
	}
	return len(first) >= length, len(first) < length
}

// Errors of messages. After one of them the connection cannot be used: the start of the next
// message is unknown.
var (
	ErrUnknownOp = errors.New("tcpstore: unknown operation")
	ErrTooLarge  = errors.New("tcpstore: too large")
	ErrMagic     = errors.New("tcpstore: not a client of PyTorch")
	ErrTruncated = errors.New("tcpstore: truncated message")
	ErrTrailing  = errors.New("tcpstore: bytes after the end of a message")
	ErrMismatch  = errors.New("tcpstore: as many values as keys are needed")
)

// Limits bound the messages of a peer. Zero fields are the limits of PyTorch's server, or the
// defaults.
type Limits struct {
	Key     int // bytes of a key; 8 KiB
	Value   int // bytes of a value; 8 MiB
	Keys    int // keys in a message; 10,000, PyTorch has 131,072
	Message int // bytes of a message; 64 MiB
}

func (l Limits) withDefaults() Limits {
	set := func(v *int, to int) {
		if *v == 0 {
			*v = to
		}
	}
	set(&l.Key, 8<<10)
	set(&l.Value, 8<<20)
	set(&l.Keys, 10_000)
	set(&l.Message, 64<<20)
	return l
}
