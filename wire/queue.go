package wire

import (
	"encoding/binary"
	"encoding/hex"
	"strconv"
)

// A queue is stored as entries: a head, which exists while the queue is not empty, and one entry
// for each value. The key of a value ends with its number in hexadecimal, so the order of keys is
// the order of the queue. OpPush and OpPop change the head and the value in one step.

const (
	queueSuffix = "\x00queue"
	queueDigits = 16 // digits of a number
)

// QueueKey returns the key of a queue's head.
func QueueKey(queue string) string { return queue + queueSuffix }

// QueuedKey returns the key of the value with a number.
func QueuedKey(queue string, number uint64) string {
	key := make([]byte, 0, len(queue)+len(queueSuffix)+1+queueDigits)
	key = append(append(append(key, queue...), queueSuffix...), '/')
	return string(hex.AppendEncode(key, binary.BigEndian.AppendUint64(nil, number)))
}

// QueuedNumber returns the number of the value of queue at key; ok is false if key is not the key
// of one of its values.
func QueuedNumber(queue, key string) (number uint64, ok bool) {
	at := len(queue) + len(queueSuffix) + 1
	if len(key) != at+queueDigits || key[:at] != queue+queueSuffix+"/" {
		return 0, false
	}
	number, err := strconv.ParseUint(key[at:], 16, 64)
	return number, err == nil && QueuedKey(queue, number) == key
}

// QueueHead is the value of a queue's head: the values of the queue have the numbers from First to
// Next-1. First is below Next.
type QueueHead struct{ First, Next uint64 }

// queueHeadLen is the length of a QueueHead in bytes.
const queueHeadLen = 16

// Len returns the number of values of the queue.
func (h QueueHead) Len() int64 { return int64(h.Next - h.First) }

// AppendQueueHead appends h: First u64 | Next u64, little-endian.
func AppendQueueHead(b []byte, h QueueHead) []byte { return appendU64(appendU64(b, h.First), h.Next) }

// ParseQueueHead parses the value of a queue's head; ok is false if b is not one.
func ParseQueueHead(b []byte) (h QueueHead, ok bool) {
	if len(b) != queueHeadLen {
		return QueueHead{}, false
	}
	h = QueueHead{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
	return h, h.First < h.Next && h.Next < 1<<63
}
