// Package tcpwire encodes and decodes the protocol of PyTorch's TCPStore, as torch 2.2 and later
// have it. It has pure functions without sockets, and no store: it does not implement the
// operations.
//
//	n, whole, err := tcpwire.NextRequest(b, &cursor, limits) // how long is the message at the front of b?
//	if whole {
//		err = req.Parse(b[:n])
//	}
//
// The protocol has no frames, no version and no request ids: a message ends where its last part
// does, and a connection has one request outstanding. A message may arrive in any pieces. The Next
// functions find its end: they check each length as soon as it has arrived, before its bytes have,
// and a Cursor remembers how far they came, so that each byte is scanned once. The Parse functions
// take one whole message and return values that alias it, strings included: a caller that keeps a
// part clones it.
//
// # Layout
//
// Integers are those of the host that PyTorch runs on, which is little-endian.
//
//	str, vec   length u64 | bytes
//	strs       count u64 | count × str
//	pairs      count u64 | count × (str | vec)
//
// A request is its operation's number, one byte, and these parts. Their names are those of the
// fields.
//
//	    operation     request                         reply
//	0   VALIDATE      0x3C85F7CE u32                  nothing
//	1   SET           Key str | Value vec             nothing
//	2   COMPARE_SET   Key str | Old vec | Value vec   Value vec
//	3   GET           Key str                         Value vec
//	4   ADD           Key str | N i64                 N i64
//	5   CHECK         Keys strs                       N u8: Ready, NotReady
//	6   WAIT          Keys strs                       N u8: StopWaiting
//	7   GETNUMKEYS                                    N i64
//	8   DELETE_KEY    Key str                         N i64
//	9   APPEND        Key str | Value vec             nothing
//	10  MULTI_GET     Keys strs                       Values, as many vec as keys
//	11  MULTI_SET     Keys, Values pairs              nothing
//	12  CANCEL_WAIT                                   N u8: WaitCanceled
//	13  PING          N u32                           N u32
//	14  QUEUE_PUSH    Key str | Value vec             nothing
//	15  QUEUE_POP     Key str                         N i64 | Value vec, if N > 0
//	16  QUEUE_LEN     Key str                         N i64
//	17  LIST_KEYS                                     Keys strs
//	18  BARRIER       Key str | N i64                 N u8: StopWaiting
//
// A connection begins with VALIDATE, which is Preface. Clients before torch 2.2 do not send it, and
// number the operations differently: IsOlder recognizes them.
package tcpwire
