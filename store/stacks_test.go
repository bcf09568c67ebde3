package store_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

func TestStacks(t *testing.T) {
	s := serve(t, &store.Server{Stacks: true}, tcp)
	a, b := s.client(t), s.client(t)
	p := teamOf(t, a, b)
	for range 3 { // the client that is asked has no call, or one
		text, err := a.Stacks(bounded(t), p.gen, 1)
		require.NoError(t, err)
		require.Regexp(t, `^goroutine 1 \[[^\n]+\n(?s:.*)main\.main`, text)
		require.NotRegexp(t, `\(0x|\+0x`, text)
		require.LessOrEqual(t, len(text), 64<<10)
	}
	require.Contains(t, s.String(), `msg="stacks requested"`)
	require.Contains(t, s.String(), `rank 1 of group \"team\"`)
	for _, at := range []wire.Contribution{{Generation: p.gen, Rank: 2}, {Generation: p.gen, Rank: -1}, {Generation: p.gen + 1}} {
		_, err := a.Stacks(bounded(t), at.Generation, at.Rank)
		require.ErrorIs(t, err, store.ErrNotFound)
	}
	p.goesOn(1)
}

// TestStacksOfManyGoroutines checks that a pool of goroutines is one entry, behind the others.
func TestStacksOfManyGoroutines(t *testing.T) {
	one := func(id int, does string) string {
		return fmt.Sprintf("goroutine %d [chan receive]:\n%s(%#x)\n\t/m.go:7 +%#x\ncreated by main.run in goroutine %d\n\t/m.go:9 +0x2a\n\n", id, does, 0xc000+id, id, id)
	}
	var all strings.Builder
	for id := range 1000 {
		all.WriteString(one(100+id, "main.pool"))
	}
	all.WriteString(one(7, "main.two") + one(1, "main.main") + one(8, "main.two") + one(9, "main.alone"))
	text := store.GroupStacks(all.String())
	require.Regexp(t, `^goroutine 1 \[(?s:.*)\ngoroutine 9 \[(?s:.*)\ngoroutine 7 and 1 more \[(?s:.*)\ngoroutine 100 and 999 more \[`, text)
	require.Equal(t, 4, strings.Count(text, "\n\n"))
	require.NotRegexp(t, `\(0x|\+0x`, text)
}

func TestStacksWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	s := serve(t, &store.Server{Stacks: true}, tcp)
	a := s.client(t)
	b, proxy := s.through(t)
	p := teamOf(t, a, b)
	proxy.Blackhole(true)
	_, err := a.Stacks(bounded(t), p.gen, 1)
	require.ErrorIs(t, err, store.ErrUnavailable)
	require.ErrorContains(t, err, "within 2s: its process may be stopped")
	proxy.Blackhole(false)
}

// TestTooManyStacksAtOnce checks that a connection has 16 requests in goroutines at most, and the store
// 64: the next one is refused at once, and later ones are carried out.
func TestTooManyStacksAtOnce(t *testing.T) {
	s := serve(t, &store.Server{Stacks: true}, tcp)
	asked := s.greeted(t) // a rank that answers when the test does
	send(t, asked, wire.AppendRequest(nil, &wire.Request{Op: wire.OpJoin, ID: 1, Group: wire.Contribution{Group: "g", Size: 1}}))
	_, formed := receiveReply(t, asked)
	ask := func(b []byte, id uint64) []byte {
		return wire.AppendRequest(b, &wire.Request{Op: wire.OpStacks, ID: id, Group: wire.Contribution{Generation: formed.Rev}})
	}
	var all []byte // in one write, so that none ends before the last is read
	for id := range uint64(17) {
		all = ask(all, id+1)
	}
	conns := make([]net.Conn, 5)
	for i := range conns {
		conns[i] = s.greeted(t)
	}
	for _, c := range conns[:4] {
		send(t, c, all)
		h, rep := receiveReply(t, c)
		require.Equal(t, uint64(17), h.ID)
		require.Equal(t, wire.CodeFull, rep.Code)
	}
	send(t, conns[4], ask(nil, 1))
	_, rep := receiveReply(t, conns[4])
	require.Equal(t, wire.CodeFull, rep.Code)
	require.Equal(t, "64 processes are asked for their stacks already", rep.Detail)
	answer := wire.AppendRequest(nil, &wire.Request{Op: wire.OpStacks, Value: []byte("text")})
	send(t, asked, answer)
	for range 16 {
		_, rep := receiveReply(t, conns[0])
		require.Equal(t, "text", string(rep.Value))
	}
	send(t, conns[0], ask(nil, 18))
	for range 64 + 1 { // the questions
		require.Equal(t, wire.OpStacks, receive(t, asked).Op)
	}
	send(t, asked, answer)
	require.Equal(t, wire.CodeOK, receive(t, conns[0]).Code)
}

func TestStacksNeedARight(t *testing.T) {
	srv := serve(t, &store.Server{Access: []store.Access{
		{Secret: secretOf("a"), Write: true}, {Secret: secretOf("b"), Prefix: "te", Stacks: true}, {Secret: secretOf("c"), Prefix: "x/", Write: true, Stacks: true},
	}}, tcp)
	as := func(letter string) *store.Store { return srv.as(t, srv.knowing(secretOf(letter), nil)) }
	all, debug, other := as("a"), as("b"), as("c")
	p := teamOf(t, all, as("a"))
	text, err := debug.Stacks(bounded(t), p.gen, 1)
	require.NoError(t, err)
	require.Contains(t, text, "goroutine ")
	for _, s := range []*store.Store{all, other} {
		_, err := s.Stacks(bounded(t), p.gen, 1)
		require.ErrorIs(t, err, store.ErrDenied)
		_, err = s.Stacks(bounded(t), p.gen+7, 1)
		require.ErrorIs(t, err, store.ErrDenied, "it does not show which groups there are")
	}
	require.Contains(t, srv.String(), "no right to see stacks")
	off := serve(t, new(store.Server), tcp)
	s := off.client(t)
	q := teamOf(t, s, off.client(t))
	_, err = s.Stacks(bounded(t), q.gen, 1)
	require.ErrorIs(t, err, store.ErrDenied)
	require.ErrorContains(t, err, "--stacks")
}

// TestStacksThroughARelay checks that a rank behind a relay answers, and that a peer of the relay may
// not ask: the relay's rights are not its own.
func TestStacksThroughARelay(t *testing.T) {
	s := serve(t, &store.Server{Stacks: true}, tcp)
	a, b := s.client(t), relay(t, s.addr, &store.Server{Stacks: true}, tcp).client(t)
	p := teamOf(t, a, b)
	text, err := a.Stacks(bounded(t), p.gen, 1)
	require.NoError(t, err)
	require.Contains(t, text, "goroutine ")
	_, err = b.Stacks(bounded(t), p.gen, 0)
	require.ErrorIs(t, err, store.ErrDenied)
	require.ErrorContains(t, err, "ask the store itself")
}

func TestStacksOfThisProcess(t *testing.T) {
	m := new(store.Memory)
	defer m.Close()
	s := store.New(m)
	p := teamOf(t, s, s)
	text, err := s.Stacks(bounded(t), p.gen, 1)
	require.NoError(t, err)
	require.Contains(t, text, "TestStacksOfThisProcess")
	_, err = s.Stacks(bounded(t), p.gen, 5)
	require.ErrorIs(t, err, store.ErrNotFound)
}

// TestARelayGivesNoStacks checks that a store which asks the relay itself for stacks gets none.
func TestARelayGivesNoStacks(t *testing.T) {
	l := testcluster.Listen(t)
	sent := make(chan wire.Op)
	go func() {
		defer close(sent)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.ReadFull(c, make([]byte, len(wire.Preface)))
		hello := receiveRequest(t, c)
		send(t, c, wire.AppendReply(nil, wire.OpHello, hello.ID, &wire.Reply{N: 1, Rev: 1, Nums: []int64{0, 1, 2}}))
		send(t, c, wire.AppendReply(nil, wire.OpStacks, 0, new(wire.Reply)))
		send(t, c, wire.AppendReply(nil, wire.OpProbe, 0, new(wire.Reply)))
		sent <- receiveRequest(t, c).Op
	}()
	r, err := store.NewRelay(bounded(t), "muster://"+l.Addr().String(), nil)
	require.NoError(t, err)
	require.Equal(t, wire.OpProbe, <-sent)
	require.NoError(t, r.Close())
	<-sent
}
