package store_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// sessions returns a function that opens sessions on one store.
type sessions = func(t *testing.T) (open func() *store.Store)

// reached are the ways in which a process reaches a store, with a copy of the bytes or without one.
var reached = map[string]sessions{
	"memory":  inThisProcess(newMemory),
	"durable": inThisProcess(onDisk),
	"client":  direct,
	"relay":   throughARelay,
}

// inThisProcess opens sessions on a store of this process, which are one.
func inThisProcess(engine func(t *testing.T) store.Backend) sessions {
	return func(t *testing.T) func() *store.Store {
		e := engine(t)
		t.Cleanup(func() { _ = e.Close() })
		return func() *store.Store { return store.New(e) }
	}
}

// direct opens sessions of a server over TCP.
func direct(t *testing.T) func() *store.Store {
	s := serve(t, new(store.Server), tcp)
	return func() *store.Store { return s.client(t) }
}

// throughARelay opens sessions of a server behind a relay.
func throughARelay(t *testing.T) func() *store.Store {
	s := serve(t, new(store.Server), tcp)
	r := relay(t, s.addr, new(store.Server), tcp)
	return func() *store.Store { return r.client(t) }
}

// TestBytesBelongToTheirCallers checks that a caller may change what it passed in after the call, and
// what it was given, also if other callers were given the same.
func TestBytesBelongToTheirCallers(t *testing.T) {
	for way, open := range reached {
		for name, check := range map[string]func(t *testing.T, open func() *store.Store){
			"keys": bytesOfKeys, "waits": bytesOfWaits, "queues": bytesOfQueues,
			"collectives": bytesOfCollectives, "messages": bytesOfMessages,
		} {
			t.Run(way+"/"+name, func(t *testing.T) { check(t, open(t)) })
		}
	}
}

func bytesOfKeys(t *testing.T, open func() *store.Store) {
	s, v := open(), []byte("value")
	require.NoError(t, s.Set(bounded(t), "key", v, nil))
	clear(v)
	v, err := s.Get(bounded(t), "key")
	require.NoError(t, err)
	clear(v)
	_ = append(v, "more"...)
	holds(t, s, "key", "value")
}

func bytesOfWaits(t *testing.T, open func() *store.Store) {
	a, b := open(), open()
	ctx, other := bounded(t), make(chan []byte, 1)
	go func() {
		values, _ := b.Wait(ctx, "key")
		other <- bytes.Join(values, nil)
	}()
	twice := make(chan [][]byte, 1)
	go func() {
		values, _ := a.Wait(ctx, "key", "key")
		twice <- values
	}()
	require.NoError(t, a.Set(ctx, "key", []byte("value"), nil))
	values := <-twice
	require.Len(t, values, 2)
	clear(values[0])
	require.Equal(t, "value", string(values[1]))
	require.Equal(t, "value", string(<-other))
	holds(t, a, "key", "value")
}

func bytesOfQueues(t *testing.T, open func() *store.Store) {
	s, v := open(), []byte("value")
	require.NoError(t, s.Push(bounded(t), "q", v))
	require.NoError(t, s.Push(bounded(t), "q", v))
	clear(v)
	for range 2 {
		v, err := s.Pop(bounded(t), "q")
		require.NoError(t, err)
		require.Equal(t, "value", string(v))
		clear(v)
	}
}

func bytesOfCollectives(t *testing.T, open func() *store.Store) {
	g := teamOf(t, open(), open(), open())
	ctx := bounded(t)
	broadcast := func(rank int) wire.Contribution {
		return wire.Contribution{Generation: g.gen, Rank: rank, Seq: 1, Verb: "broadcast", RootOnly: true}
	}
	payload := []byte("value")
	_, err := g.stores[0].Collect(ctx, broadcast(0), payload)
	require.NoError(t, err)
	clear(payload)
	for rank := 1; rank < 3; rank++ {
		values, err := g.stores[rank].Collect(ctx, broadcast(rank), nil)
		require.NoError(t, err)
		require.Equal(t, [][]byte{[]byte("value")}, values)
		clear(values[0])
	}
	results := make([][][]byte, 3)
	g.all(func(rank int, s *store.Store) (err error) {
		c := wire.Contribution{Generation: g.gen, Rank: rank, Seq: 2, Verb: "all-gather", Root: -1, Want: wire.WantAll}
		results[rank], err = s.Collect(ctx, c, []byte{'a' + byte(rank)})
		return err
	})
	for _, values := range results {
		require.Equal(t, "abc", string(bytes.Join(values, nil)))
		for _, v := range values {
			clear(v)
		}
	}
}

func bytesOfMessages(t *testing.T, open func() *store.Store) {
	g := teamOf(t, open(), open())
	m := []byte("message")
	require.NoError(t, g.send(m))
	clear(m)
	for range 2 {
		got, err := g.recv(bounded(t), 1)
		require.NoError(t, err)
		require.Equal(t, "message", string(got))
		clear(got)
	}
}

// send sends a message of rank 0 to rank 1.
func (g *team) send(message []byte) error {
	c := wire.Contribution{Generation: g.gen, Rank: 0, Root: 1, Verb: "send", Type: "bytes"}
	return g.stores[0].Send(bounded(g.t), c, message, 0)
}

// recv receives the message at pos of rank 0 at rank 1.
func (g *team) recv(ctx context.Context, pos uint64) ([]byte, error) {
	c := wire.Contribution{Generation: g.gen, Rank: 1, Root: 0, Seq: pos, Verb: "recv"}
	v, typ, err := g.stores[1].Recv(ctx, c)
	if err == nil && typ != "bytes" {
		err = fmt.Errorf("the type is %q", typ)
	}
	return v, err
}
