package tcpstore

import (
	"errors"
	"fmt"
	"slices"
)

// Generation is one of the three numberings of the protocol.
type Generation uint8

const (
	A Generation = iota + 1 // torch 1.9 to 2.0
	B                       // torch 2.1
	C                       // torch 2.2 and later
)

func (g Generation) String() string {
	if g >= A && g <= C {
		return string('A' + rune(g-A))
	}
	return fmt.Sprintf("generation(%d)", uint8(g))
}

const (
	// Magic is the number in VALIDATE.
	Magic = 0x3C85F7CE
	// Preface is the first request of a client of generation C: a VALIDATE.
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
	Updated      = 0 // WATCH_KEY
	Created      = 1
	Deleted      = 2
	Registered   = 3
)

// Op is an operation. Its number on the wire depends on the generation.
type Op uint8

const (
	OpValidate Op = iota + 1
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
	OpWatchKey
	opEnd
)

var opNames = [opEnd]string{
	OpValidate: "VALIDATE", OpSet: "SET", OpCompareSet: "COMPARE_SET", OpGet: "GET", OpAdd: "ADD", OpCheck: "CHECK",
	OpWait: "WAIT", OpGetNumKeys: "GETNUMKEYS", OpDeleteKey: "DELETE_KEY", OpAppend: "APPEND", OpMultiGet: "MULTI_GET",
	OpMultiSet: "MULTI_SET", OpCancelWait: "CANCEL_WAIT", OpPing: "PING", OpQueuePush: "QUEUE_PUSH", OpQueuePop: "QUEUE_POP",
	OpQueueLen: "QUEUE_LEN", OpListKeys: "LIST_KEYS", OpBarrier: "BARRIER", OpWatchKey: "WATCH_KEY",
}

// String returns the name of o in PyTorch's source.
func (o Op) String() string {
	if o > 0 && o < opEnd {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// numbers has each generation's operations in the order of their numbers.
var numbers = [...][]Op{
	A: {OpSet, OpCompareSet, OpGet, OpAdd, OpCheck, OpWait, OpGetNumKeys, OpWatchKey, OpDeleteKey},
	B: {
		OpSet, OpCompareSet, OpGet, OpAdd, OpCheck, OpWait, OpGetNumKeys, OpDeleteKey, OpAppend, OpMultiGet, OpMultiSet,
		OpCancelWait,
	},
	C: {
		OpValidate, OpSet, OpCompareSet, OpGet, OpAdd, OpCheck, OpWait, OpGetNumKeys, OpDeleteKey, OpAppend, OpMultiGet,
		OpMultiSet, OpCancelWait, OpPing, OpQueuePush, OpQueuePop, OpQueueLen, OpListKeys, OpBarrier,
	},
}

// ops returns g's operations; nil for an unknown generation.
func (g Generation) ops() []Op {
	if g > C {
		return nil
	}
	return numbers[g]
}

// Has reports whether g has the operation.
func (g Generation) Has(op Op) bool { return slices.Contains(g.ops(), op) }

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
	Keys    int // keys in a message; 131,072
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
	set(&l.Keys, 128<<10)
	set(&l.Message, 64<<20)
	return l
}
