package wire

import (
	"encoding/binary"
	"encoding/hex"
	"strconv"
)

// A queue is entries: its head, which is there while the queue is not empty, and one entry for each value, whose key ends with the
// value's number in hexadecimal, so that the order of keys is that of the queue. OpPush and OpPop change head and value as one.

const (
	queueSuffix = "\x00queue"
	queueDigits = 16 // digits of a number
)

// QueueKey is the key of a queue's head.
func QueueKey(queue string) string { return queue + queueSuffix }

// QueuedKey is the key of the value with a number.
func QueuedKey(queue string, number uint64) string {
	key := make([]byte, 0, len(queue)+len(queueSuffix)+1+queueDigits)
	key = append(append(append(key, queue...), queueSuffix...), '/')
	return string(hex.AppendEncode(key, binary.BigEndian.AppendUint64(nil, number)))
}

// QueuedNumber is the number of the value of queue at key; ok is false if key is none of its values'.
func QueuedNumber(queue, key string) (number uint64, ok bool) {
	at := len(queue) + len(queueSuffix) + 1
	if len(key) != at+queueDigits || key[:at] != queue+queueSuffix+"/" {
		return 0, false
	}
	number, err := strconv.ParseUint(key[at:], 16, 64)
	return number, err == nil && QueuedKey(queue, number) == key
}

// QueueHead is the value of a queue's head: the values of the queue have the numbers from First up to Next, which the next one
// gets. First is below Next.
type QueueHead struct{ First, Next uint64 }

// queueHeadLen is the length of a QueueHead.
const queueHeadLen = 16

// Len is how many values are in the queue.
func (h QueueHead) Len() int64 { return int64(h.Next - h.First) }

// AppendQueueHead appends h: First u64 | Next u64, little-endian.
func AppendQueueHead(b []byte, h QueueHead) []byte { return appendU64(appendU64(b, h.First), h.Next) }

// ParseQueueHead parses the value of a queue's head; ok is false if that is none.
func ParseQueueHead(b []byte) (h QueueHead, ok bool) {
	if len(b) != queueHeadLen {
		return QueueHead{}, false
	}
	h = QueueHead{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
	return h, h.First < h.Next && h.Next < 1<<63
}
