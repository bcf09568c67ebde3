package store_test

import (
	"encoding/binary"
	"io"
	"iter"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

var garbage = []struct {
	name    string
	greeted bool // the bytes follow a hello
	bytes   []byte
	reason  string // expected in the log
}{
	{"garbage", false, make([]byte, 64), "not a muster store"},
	{"HTTP", false, []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), `it began with \"GET / HT`},
	{"TLS", false, []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and what follows"), "not a muster store"},
	{"another version", false, otherVersion(1), "not a muster store"},
	{"a request before hello", false, append([]byte(wire.Preface), frame(wire.Header{Op: wire.OpPing})...), "ping before hello"},
	{"an unknown op in the handshake", false, append([]byte(wire.Preface), frame(wire.Header{Op: 99})...), "unknown operation"},
	{"hello twice", true, wire.AppendRequest(nil, &wire.Request{Op: wire.OpHello}), "unknown operation"},
	{"an unknown op", true, frame(wire.Header{Op: 99}), "unknown operation: 99"},
	{"op 0", true, make([]byte, wire.HeaderLen), "unknown operation: 0"},
	{"lost", true, frame(wire.Header{Op: wire.OpLost}, make([]byte, 8)...), "lost: wire: unknown operation"},
	{"unknown flags", true, frame(wire.Header{Op: wire.OpPing, Flags: 0x80}), "ping: wire: unknown flags"},
	{"a code in a request", true, frame(wire.Header{Op: wire.OpPing, Code: 1}), "ping: wire: unknown flags"},
	{"trailing bytes", true, frame(wire.Header{Op: wire.OpPing}, 1), "ping: wire: bytes after the end of a body"},
	{"a body too short", true, frame(wire.Header{Op: wire.OpGet}, 9, 0, 0, 0, 'k'), "get: wire: truncated frame"},
	{"a key too long", true, frame(wire.Header{Op: wire.OpGet}, append(binary.LittleEndian.AppendUint32(nil, wire.MaxKey+1), make([]byte, wire.MaxKey+1)...)...), "get: wire: frame too large"},
	{"too large a frame", true, wire.AppendHeader(nil, wire.Header{Op: wire.OpSet, Len: wire.MaxBody + 1}), "set of 17825793 bytes, the limit is 17825792"},
	{"the largest length", true, wire.AppendHeader(nil, wire.Header{Op: wire.OpSet, Len: 1<<32 - 1}), "frame too large"},
}

// way is an engine over a kind of connection: engines cover the two ways in which a server reads, a
// loop and a goroutine, and durables the engines whose replies also wait for the log.
type way struct {
	name   string
	engine func(*testing.T) store.Backend
	wires  wires
}

var engines = []way{
	{"loop", newMemory, tcp},
	{"goroutine", newMemory, pipes},
}

var durables = []way{
	{"durable", onDisk, tcp},
	{"durable over pipes", onDisk, pipes},
}

// each runs a test with each way in which a server reads.
func each(t *testing.T, test func(t *testing.T, s *service)) {
	eachWith(t, store.ServerLimits{}, test)
}

func eachWith(t *testing.T, limits store.ServerLimits, test func(t *testing.T, s *service)) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) {
			test(t, serve(t, &store.Server{Engine: e.engine(t), Limits: limits}, e.wires))
		})
	}
}

func TestBadInputClosesOnlyItsConnection(t *testing.T) {
	each(t, func(t *testing.T, s *service) {
		other := s.client(t)
		for _, bad := range garbage {
			t.Run(bad.name, func(t *testing.T) {
				c := s.raw(t)
				if bad.greeted {
					c = s.greeted(t)
				}
				_, _ = c.Write(bad.bytes) // the reader of a pipe may end in the middle of the bytes
				closed(t, c)
				s.Says(t, bad.reason)
				works(t, other)
			})
		}
	})
}

// TestAnswersThatLackSomething checks that a reply that lacks a part of what was requested, or that does
// not parse, is an error of the call, and ends the connection.
func TestAnswersThatLackSomething(t *testing.T) {
	wait := func(s *store.Store) error { _, err := s.Wait(bounded(t), "a", "b"); return err }
	list := func(s *store.Store) error { return last(s.List(bounded(t), "")) }
	keys := func(s *store.Store) error { return last(s.Keys(bounded(t), "")) }
	watch := func(s *store.Store) error { return last(s.Watch(bounded(t), "", 1)) }
	get := func(s *store.Store) error { _, err := s.Get(bounded(t), "a"); return err }
	for name, c := range map[string]struct {
		ask  func(*store.Store) error
		rep  wire.Reply
		says string
	}{
		"the values":    {wait, wire.Reply{}, "incomplete reply"},
		"a value":       {wait, wire.Reply{Values: [][]byte{nil}}, "incomplete reply"},
		"its values":    {list, wire.Reply{Keys: []string{"a"}, Nums: make([]int64, 2)}, "incomplete reply"},
		"its numbers":   {list, wire.Reply{Keys: []string{"a"}, Values: [][]byte{nil}}, "incomplete reply"},
		"a page":        {keys, wire.Reply{N: 1}, "incomplete reply"},
		"what happened": {watch, wire.Reply{Keys: []string{"a"}, Values: [][]byte{nil}, Nums: make([]int64, 1)}, "incomplete reply"},
		"half of it":    {get, wire.Reply{}, "truncated"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := otherService(t, func(conn net.Conn) {
				_, err := io.ReadFull(conn, make([]byte, len(wire.Preface)))
				require.NoError(t, err)
				send(t, conn, wire.AppendReply(nil, wire.OpHello, receiveRequest(t, conn).ID, &wire.Reply{N: 1, Rev: 1}))
				req := receiveRequest(t, conn)
				answer := wire.AppendReply(nil, req.Op, req.ID, &c.rep)
				if c.says == "truncated" {
					answer = frame(wire.Header{Op: req.Op, Flags: 1, ID: req.ID}, 1)
				}
				send(t, conn, answer)
				closed(t, conn)
			})
			s := dial(t, addr)
			err := c.ask(s)
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// last returns the last error of a sequence.
func last[T any](all iter.Seq2[T, error]) (err error) {
	for _, err = range all {
	}
	return err
}

func TestWrongVersionGetsTheSupportedOne(t *testing.T) {
	c := serve(t, new(store.Server), tcp).raw(t)
	send(t, c, otherVersion(7))
	h, rep := receiveReply(t, c)
	require.Equal(t, wire.OpHello, h.Op)
	require.Equal(t, wire.CodeUnsupported, rep.Code)
	require.Equal(t, "this server speaks version 2 of the protocol", rep.Detail)
	closed(t, c)
}

func TestALengthAloneCostsNothing(t *testing.T) {
	s := serve(t, new(store.Server), tcp)
	conns := make([]net.Conn, 32)
	for i := range conns {
		conns[i] = s.greeted(t)
	}
	before := heap()
	for _, c := range conns {
		send(t, c, append(wire.AppendHeader(nil, wire.Header{Op: wire.OpSet, Len: wire.MaxValue}), 1, 2, 3))
	}
	works(t, s.client(t))
	require.Less(t, heap()-before, int64(16<<20), "32 lengths of 16 MiB")
}

// heap returns the size of the heap in use, in bytes.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestManyRequestsRightBehindTheHello(t *testing.T) {
	const many = 5000 // far more than the buffer of a loop
	each(t, func(t *testing.T, s *service) {
		c := s.raw(t)
		b := greeting()
		for i := range many {
			b = wire.AppendRequest(b, &wire.Request{Op: wire.OpAdd, ID: uint64(i + 1), Key: "n", Add: 1})
		}
		go func() { _, _ = c.Write(b) }()
		ids := make([]uint64, many+1)
		for i := range ids {
			ids[i] = receive(t, c).ID
		}
		slices.Sort(ids) // an engine may answer in any order
		for i := range ids {
			require.EqualValues(t, i, ids[i])
		}
	})
}

func TestFramesOfEachLengthAroundTheBuffers(t *testing.T) {
	each(t, func(t *testing.T, s *service) {
		c, ctx := s.client(t), bounded(t)
		for _, room := range []int{4 << 10, 16 << 10, 64 << 10} {
			for n := room - 60; n <= room+4; n += 3 {
				require.NoError(t, setAndGet(ctx, c, "k", strings.Repeat("x", n)))
			}
		}
	})
}

func TestManyIdleConnections(t *testing.T) {
	s := serve(t, new(store.Server), tcp)
	conns := make([]net.Conn, 2000)
	before := heap()
	for i := range conns {
		conns[i] = s.greeted(t)
	}
	each := (heap() - before) / int64(len(conns))
	require.Less(t, each, int64(24<<10), "both sides of a connection")
	works(t, s.client(t))
	require.NoError(t, s.Close()) // TestMain detects goroutines that are left
	for _, c := range conns {
		closed(t, c)
	}
}

func otherVersion(v byte) []byte {
	b := []byte(wire.Preface)
	b[wire.VersionAt] = v
	return b
}
