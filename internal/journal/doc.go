// Package journal is an append-only log of records in segment files, with group commit. What a record
// is, only its writer knows.
//
//	j, err := journal.Open(dir, id, from, state.apply, nil)
//	mu.Lock()
//	pos := j.Append(func(b []byte) []byte { return append(b, event...) }) // in memory
//	mu.Unlock()
//	err = j.Sync(pos) // now it is on the disk: whoever waits for it may be answered
//
// A record that a caller passes or is given is copied or only lent: f may keep nothing of its
// argument, apply nothing of its record. The caller sees to it that one process at a time has
// the log open, and bounds what it appends before it syncs.
//
// # Format
//
// Integers are little-endian. Segment 7 is the file log-0000000000000007: a header, batches, zeros.
//
//	header  magic    8  "musterJL"
//	        version  4  1
//	        store    8  the id of the store: a log of another one is refused
//	        segment  8  its number
//	        first    8  the sequence of the first record in it
//	        crc      4  CRC-32C of the 36 bytes before
//	batch   crc      4  CRC-32C, going on from the header's, of the batch's offset (8) and the rest of it
//	        length   4  of the body
//	        first    8  the sequence of its first record: one more than the last before it
//	        count    4  of records, 1 or more
//	        body        each record: length 4, bytes
//	zeros               written ahead, or none
//
// That a batch's checksum depends on where it is keeps a record that holds a log from looking like a batch.
//
// # What holds
//
// A batch is what goes out in one write and one fdatasync, and is written when the one before
// it is durable; a segment is begun when the one before it is. Hence only the last batch of the last
// segment can be incomplete after a crash, and Open cuts it off: nobody was told that it is there. If
// anything valid follows what is damaged, the disk has lost what it had confirmed, and Open refuses.
//
// Killing the process loses what was appended and not written. A power failure loses what was
// not synced too. Open writes the last batch again: after a failed fdatasync the system may show it to readers,
// call it clean, and not have it on the disk.
package journal
