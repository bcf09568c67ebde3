package store_test

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// branches returns the hello requests of relayed connections with these numbers.
func branches(numbers ...uint32) (b []byte) {
	for _, n := range numbers {
		b = wire.AppendRelayRequest(b, n, &wire.Request{Op: wire.OpHello, Key: "a rank"})
	}
	return b
}

// ofBranch reads the next frame, which must be for exactly one relayed connection.
func ofBranch(t *testing.T, c net.Conn) (call wire.RelayCall, h wire.Header, rep wire.Reply) {
	t.Helper()
	calls, h, rep := ofBranches(t, c)
	require.Len(t, calls, 1)
	return calls[0], h, rep
}

func ofBranches(t *testing.T, c net.Conn) (calls []wire.RelayCall, h wire.Header, rep wire.Reply) {
	t.Helper()
	outer, body := receiveBody(t, c)
	for outer.Op == wire.OpProbe { // of the relay itself, one of whose ranks is silent
		outer, body = receiveBody(t, c)
	}
	require.Equal(t, wire.OpRelay, outer.Op)
	calls, h, body, err := wire.ParseRelay(outer, body, nil, wire.MaxVotes, wire.MaxReply)
	require.NoError(t, err)
	require.NoError(t, rep.Parse(h, body))
	return calls, h, rep
}

// multiplexTo returns a bare multiplexed connection to s with these relayed connections.
func multiplexTo(t *testing.T, s *service, numbers ...uint32) net.Conn {
	t.Helper()
	c := s.greeted(t)
	send(t, c, branches(numbers...))
	for _, n := range numbers {
		call, h, _ := ofBranch(t, c)
		require.Equal(t, n, call.Conn)
		require.Equal(t, wire.OpHello, h.Op)
		require.Equal(t, wire.CodeOK, h.Code)
	}
	return c
}

// joinOn lets branches 1 to n join a group, in the order of its ranks, and returns its generation and the
// calls that were answered.
func joinOn(t *testing.T, c net.Conn, n int) (generation uint64, calls []wire.RelayCall) {
	t.Helper()
	var joins []byte
	for rank := range n {
		joins = wire.AppendRelayRequest(joins, uint32(rank+1), &wire.Request{Op: wire.OpJoin, ID: 1, Group: wire.Contribution{Group: "g", Rank: rank, Size: n}})
	}
	send(t, c, joins)
	calls, _, rep := ofBranches(t, c)
	return rep.Rev, calls
}

func askOn(branch uint32, id uint64, key string) []byte {
	return wire.AppendRelayRequest(nil, branch, &wire.Request{Op: wire.OpGet, ID: id, Key: key})
}

// TestWhatIsWrongOnABranch checks that an invalid request ends the relayed connection that it came
// on, as it would end a direct one, and that the other relayed connections are still served.
func TestWhatIsWrongOnABranch(t *testing.T) {
	t.Parallel()
	s := serve(t, new(store.Server), tcp)
	bad := frame(wire.Header{Op: wire.OpGet}, 1, 2, 3)
	for name, b := range map[string][]byte{
		"a body that does not parse": append(wire.AppendRelay(nil, 3, wire.RelayCall{Conn: 7}), bad...),
		"a flag":                     wire.AppendHeader(wire.AppendRelay(nil, 0, wire.RelayCall{Conn: 7}), wire.Header{Op: wire.OpPing, Flags: 64}),
	} {
		c := multiplexTo(t, s, 7, 8)
		send(t, c, b)
		call, h, _ := ofBranch(t, c)
		require.Equal(t, wire.RelayCall{Conn: 7}, call, name)
		require.Equal(t, wire.OpLost, h.Op, name)
		send(t, c, append(askOn(7, 1, "k"), askOn(8, 2, "k")...)) // there is no reply for 7
		call, h, _ = ofBranch(t, c)
		require.Equal(t, wire.RelayCall{Conn: 8, ID: 2}, call, name)
		require.Equal(t, wire.CodeNotFound, h.Code, name)
	}
}

// TestARelayThatMakesNoSense checks that the server closes the connection of a relay that violates
// the protocol.
func TestARelayThatMakesNoSense(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sent []byte
		says string
	}{
		"a branch that is there":  {branches(7), "branch 7 is opened twice"},
		"a hello of two branches": {wire.AppendRequest(wire.AppendRelay(nil, 16, wire.RelayCall{Conn: 8}, wire.RelayCall{Conn: 9}), &wire.Request{Op: wire.OpHello, Key: "abcd"}), "one hello for 2 branches"},
		"no frame":                {frame(wire.Header{Op: wire.OpRelay}, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), "truncated frame"},
		"no votes":                {frame(wire.Header{Op: wire.OpVotes}, 1), "truncated frame"},
		"rights that are none":    {wire.AppendRelayRequest(nil, 8, &wire.Request{Op: wire.OpHello, Token: []byte("\x01\x00\x00\x00everything")}), "malformed rights"},
		"too many rights":         {wire.AppendRelayRequest(nil, 8, &wire.Request{Op: wire.OpHello, Token: wire.AppendParts(nil, slices.Repeat([][]byte{{'r'}}, 65))}), "65 rights of a peer"},
		"a long hello":            {wire.AppendRelayRequest(nil, 8, &wire.Request{Op: wire.OpHello, Value: make([]byte, 32<<10)}), "hello: wire: frame too large"},
		"a request of two":        {wire.AppendRequest(wire.AppendRelay(nil, 0, wire.RelayCall{Conn: 7, ID: 1}, wire.RelayCall{Conn: 7, ID: 2}), &wire.Request{Op: wire.OpPing}), "one ping for 2 branches"},
		"too many calls":          {wire.AppendRequest(wire.AppendRelay(nil, 0, make([]wire.RelayCall, wire.MaxVotes+1)...), &wire.Request{Op: wire.OpProbe}), "frame too large"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, new(store.Server), tcp)
			relay := multiplexTo(t, s, 7)
			send(t, relay, c.sent)
			closed(t, relay)
			s.Says(t, "connection ended")
			s.Says(t, c.says)
		})
	}
}

// TestAnswersForManyBranches checks that equal replies to several relayed connections are one frame, whether they
// come together later, or are there already, as the payload of a root is; that those with another reply get
// theirs in a frame of its own; and that votes for relayed connections that have ended do not count.
func TestAnswersForManyBranches(t *testing.T) {
	t.Parallel()
	for name, engine := range map[string]store.Backend{"memory": nil, "durable": onDisk(t)} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, &store.Server{Engine: engine}, tcp)
			c := multiplexTo(t, s, 1, 2, 3, 4, 5)
			generation, calls := joinOn(t, c, 4)
			require.Equal(t, []wire.RelayCall{{Conn: 1, ID: 1}, {Conn: 2, ID: 1}, {Conn: 3, ID: 1}, {Conn: 4, ID: 1}}, calls)
			answered := func(value string, values [][]byte, branches ...uint32) {
				t.Helper()
				calls, h, rep := ofBranches(t, c)
				require.Equal(t, wire.OpCollect, h.Op)
				var of []uint32
				for _, call := range calls {
					of = append(of, call.Conn)
					require.EqualValues(t, 10+call.Conn, call.ID)
				}
				require.Equal(t, branches, of)
				require.Equal(t, value, string(rep.Value))
				require.Equal(t, values, rep.Values)
			}
			said := wire.Contribution{Generation: generation, Seq: 1, Root: 0, RootOnly: true, Verb: "broadcast"}
			root := said
			root.Want = wire.WantNothing
			send(t, c, wire.AppendRelayRequest(nil, 1, &wire.Request{Op: wire.OpCollect, ID: 11, Group: root, Value: []byte("said")}))
			answered("", nil, 1)
			send(t, c, wire.AppendVotes(nil, &said, 3, votesOf(2, 0, 0, wire.WantNothing)))
			answered("said", nil, 2, 3)
			answered("", nil, 4)

			send(t, c, wire.AppendRelayRequest(nil, 5, &wire.Request{Op: wire.OpLost}))
			gather := wire.Contribution{Generation: generation, Seq: 2, Root: -1, Verb: "all-gather"}
			send(t, c, wire.AppendVotes(nil, &gather, 5, votesOf(1, wire.WantAll, wire.WantAll, wire.WantAll, wire.WantAll, wire.WantAll)))
			answered("", [][]byte{{1}, {2}, {3}, {4}}, 1, 2, 3, 4)

			for n := range uint32(3) {
				send(t, c, wire.AppendRelayRequest(nil, n+1, &wire.Request{Op: wire.OpWait, ID: 7, Keys: []string{"k"}}))
			}
			counts(t, s.Engine, func(n *store.ServerStatus) bool { return n.Calls == 3 })
			require.NoError(t, store.New(s.Engine).Set(bounded(t), "k", []byte("v"), nil))
			calls, _, rep := ofBranches(t, c)
			require.Equal(t, []wire.RelayCall{{Conn: 1, ID: 7}, {Conn: 2, ID: 7}, {Conn: 3, ID: 7}}, calls)
			require.Equal(t, [][]byte{[]byte("v")}, rep.Values)
		})
	}
}

// votesOf returns votes of branches from the first on, which are ranks in the same order, with what they want.
func votesOf(first uint32, wants ...int32) (votes []byte) {
	for i, want := range wants {
		n := first + uint32(i)
		votes = wire.AppendVote(votes, &wire.Vote{RelayCall: wire.RelayCall{Conn: n, ID: uint64(10 + n)}, Rank: int(n) - 1, Want: want, Value: []byte{byte(n)}})
	}
	return votes
}

// TestBranchesCountAsConnections checks that the limits of connections count relayed connections,
// too.
func TestBranchesCountAsConnections(t *testing.T) {
	t.Parallel()
	for _, limits := range []store.ServerLimits{{Conns: 3}, {PerAddr: 3}} {
		s := serve(t, &store.Server{Limits: limits}, tcp)
		c := multiplexTo(t, s, 1, 2)
		send(t, c, branches(3))
		call, h, rep := ofBranch(t, c)
		require.EqualValues(t, 3, call.Conn)
		require.Equal(t, wire.CodeFull, h.Code)
		require.Contains(t, rep.Detail, "the limit is 3 connections")
		send(t, c, append(wire.AppendRelayRequest(nil, 1, &wire.Request{Op: wire.OpGoodbye}), branches(4)...))
		for range 2 { // the end of one, and the hello reply of the other
			call, _, _ = ofBranch(t, c)
		}
		require.EqualValues(t, 4, call.Conn)
	}
}

// TestBranchesShareOneOutbox checks that relayed connections do not raise what may wait for their
// relay: the clients are told to ask again.
func TestBranchesShareOneOutbox(t *testing.T) {
	t.Parallel()
	const clients, size, inFlight = 40, 512 << 10, 2 << 20
	m := new(store.Memory)
	s := serve(t, &store.Server{Engine: m, Limits: store.ServerLimits{InFlight: inFlight}}, tcp)
	c := s.greeted(t)
	local := store.New(m)
	for n := range uint32(clients) {
		own := fmt.Sprint(n) // so that their answers are not the same
		require.NoError(t, local.Set(bounded(t), own, nil, nil))
		send(t, c, append(branches(n), wire.AppendRelayRequest(nil, n, &wire.Request{Op: wire.OpWait, ID: 1, Keys: []string{own, "k"}})...))
		ofBranch(t, c)
	}
	counts(t, m, func(n *store.ServerStatus) bool { return n.Calls == clients })
	require.NoError(t, local.Set(bounded(t), "k", make([]byte, size), nil))
	codes := map[wire.Code]int{}
	for range clients {
		_, h, _ := ofBranch(t, c)
		codes[h.Code]++
	}
	require.Equal(t, clients, codes[wire.CodeOK]+codes[wire.CodeAgain])
	require.GreaterOrEqual(t, codes[wire.CodeOK], inFlight/size-1)
	require.LessOrEqual(t, codes[wire.CodeOK], 2*inFlight/size, "some may be written meanwhile")
}

// TestRightsOfBranches checks that a relayed connection has at most the rights of its relay. What it may
// have of them, rights.txt shows through a relay.
func TestRightsOfBranches(t *testing.T) {
	t.Parallel()
	secret := secretOf("a")
	s := serve(t, &store.Server{Access: []store.Access{{Secret: secret, Prefix: "job/", Write: true}}}, tcp)
	r, err := store.NewRelay(bounded(t), "muster://"+s.addr, &store.DialOptions{Secret: secret})
	require.NoError(t, err)
	_, err = store.NewRelay(bounded(t), "muster://"+s.addr, nil)
	require.ErrorIs(t, err, store.ErrDenied)

	open := &store.Server{Engine: r}
	require.ErrorIs(t, open.Check(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}), store.ErrInsecure, "every client would have its rights")
	near := serve(t, &store.Server{Engine: r, Access: []store.Access{all("c")}}, tcp)
	writer := near.as(t, near.knowing(secretOf("c"), nil))
	require.NoError(t, setAndGet(bounded(t), writer, "job/a/k", "v"))
	require.ErrorIs(t, writer.Set(bounded(t), "else", []byte("v"), nil), store.ErrDenied)
	require.ErrorIs(t, writer.Set(bounded(t), "else", []byte("v"), nil), store.ErrDenied, "its number is used")
	_, err = writer.Get(bounded(t), "else")
	require.ErrorIs(t, err, store.ErrDenied)
	_, err = store.Dial(bounded(t), near.addr, &store.DialOptions{Secret: secret})
	require.ErrorIs(t, err, store.ErrDenied, "the store's secret is not the relay's")
}
