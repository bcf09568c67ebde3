package core

import "bytes"

const (
	// pageAligned is the size from which on the runtime allocates whole pages, or parts of them that
	// begin where a page does.
	pageAligned = 8 << 10
	// valueOffset is where CopyValue puts a large value in its allocation.
	valueOffset = 64
)

// CopyValue returns a copy of v that a Machine may keep, and nil if v is nil.
//
// A large value does not begin at the start of a page. Its answer has a few bytes before it, so that
// the kernel copies it from an address that is 0 to one that is 8 modulo 4096, say. If the target is
// 1 to 15 bytes ahead of the source in that sense, REP MOVSB of some processors (AMD Zen 4)
// takes a store for one that the next load needs, and is up to 16 times as slow: 18 µs for 64 KiB.
// See https://sourceware.org/bugzilla/show_bug.cgi?id=30994.
func CopyValue(v []byte) []byte {
	if len(v) < pageAligned {
		return bytes.Clone(v)
	}
	return append(make([]byte, valueOffset), v...)[valueOffset:] // append clears nothing that it overwrites
}
