// Package journal is an append-only log of entries in segment files, with group commit. Entries are
// bytes, which the caller interprets.
//
//	err := journal.Create(dir, id, 1, nil) // once
//	j, err := journal.Open(dir, id, 1, state.apply, nil)
//	mu.Lock()
//	pos := j.Append(func(b []byte) []byte { return append(b, event...) }) // in memory
//	mu.Unlock()
//	err = j.Sync(pos) // now the entry is on the disk: a client that waits for it may be answered
//
// Arguments and results are not retained: the f of Append must not keep its argument, and apply
// must not keep its entry. The caller makes sure that one process at a time has the log open, and
// bounds what it appends before it syncs.
//
// # Format
//
// Integers are little-endian. Segment 7 is the file log-0000000000000007: a header, batches, zeros.
//
//	header  magic    8  "musterJL"
//	        version  4  2
//	        store    8  the id of the store: a log of another one is refused
//	        segment  8  its number
//	        first    8  the sequence of the first entry in it
//	        crc      4  CRC-32C of the 36 bytes before
//	batch   crc      4  CRC-32C, continued from the header's, of the batch's offset (8) and the
//	                    rest of its head
//	        sum      4  CRC-32C, continued from the header's, of the batch's offset (8) and the body
//	        length   4  of the body
//	        first    8  the sequence of its first entry: one more than the last before it
//	        count    4  of entries, 1 or more
//	        body        each entry: length 4, bytes
//	mark                a head with the count 0 and the length 0, behind the last batch
//	end                 a head with the count 0 and the length 1: the next segment follows
//	zeros               a hole, or written ahead
//
// A checksum depends on the offset, so that a log within an entry is not mistaken for batches.
//
// # Recovery
//
// A batch is what one write and one fdatasync make durable. It is written after the previous batch
// is durable. When it is durable too, the mark is written behind it, and only then does Sync
// return; the next batch overwrites the mark. A head with a valid checksum, of a batch or of a
// mark, therefore proves that everything before it was durable.
//
// A new segment is created, and durable, before the end is written to the previous one, and entries
// are written to it after that. A segment with an end therefore has a successor with a valid
// header, and the successor of a segment without an end has no entries.
//
// Before a batch is written, the file reaches farther than the batch and its mark will, durably. A
// crash therefore never leaves a batch that exceeds its file, or a file that ends less than a head
// behind a batch: such a file was truncated, which is damage.
//
// Open replaces an incomplete last batch by zeros, because no Sync has returned for it: a batch
// with no valid head behind it, of which a sector (512 bytes) is still zero, or whose head is split
// between two sectors. It does not truncate the file, so that a crash meanwhile leaves no short
// one. Anything else that is invalid is damage, and so is a missing segment: Open then returns an
// error, and changes nothing.
//
// Killing the process loses the entries that were not written. A power failure also loses those
// that were not synced, and possibly the last mark: damage to the last batch may then look like an
// incomplete write, if one of its sectors is zero. Open writes the last batch again, because after
// a failed fdatasync the system may return the batch to readers and consider it clean although it
// is not on the disk.
package journal
