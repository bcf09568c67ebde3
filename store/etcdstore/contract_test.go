package etcdstore_test

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdstore"
	"github.com/muster-pg/muster/store/storetest"
)

// shortest is the shortest time that the leases of the tests' etcd have.
const shortest = time.Second

// without is what an engine over etcd cannot promise: when history ends is for etcd's operator to say, of a call that waits only its process
// knows the deadline, the tag and the keys, and thousands who join at once keep others waiting. A rank that joins keeps its own deadline, and claims are not heeded. TestStatusOfMuch has a large status.
var without = []storetest.Feature{storetest.Compaction, storetest.Waiters, storetest.Crowds, storetest.Attempts, storetest.Channels}

// TestContract runs the contract of all engines: each session is an engine of its own.
func TestContract(t *testing.T) {
	addrs := addresses(etcd(t))
	storetest.Run(t, func(t *testing.T) func() store.Engine {
		root := newRoot()
		return func() store.Engine {
			return dial(t, addrs, &etcdstore.Options{Root: root, Session: 3 * time.Second})
		}
	}, &storetest.Options{Without: without, TTL: shortest, Cut: func(e store.Engine) { etcdstore.Kill(e.(*etcdstore.Engine)) }})
}

// TestReconnect runs what must survive the end of connections.
func TestReconnect(t *testing.T) {
	addrs := addresses(etcd(t))
	var of sync.Map
	storetest.Run(t, func(t *testing.T) func() store.Engine {
		root := newRoot()
		return func() store.Engine {
			w := &wires{conns: map[net.Conn]struct{}{}}
			e := dial(t, addrs, &etcdstore.Options{Root: root, Dial: w.dial})
			of.Store(e, w)
			return e
		}
	}, &storetest.Options{Without: without, TTL: shortest, Only: []string{"Reconnect"}, Break: func(e store.Engine) {
		w, _ := of.Load(e)
		w.(*wires).cut()
	}})
}
