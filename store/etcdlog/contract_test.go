package etcdlog_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/durable/logtest"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/store/storetest"
)

// TestContract runs the contract of all engines over a store whose log is in etcd.
func TestContract(t *testing.T) {
	c := client(t, etcd(t))
	storetest.Run(t, func(t *testing.T) func() store.Engine {
		m := lead(t, c, &etcdlog.Options{Root: newRoot()})
		return func() store.Engine { return m }
	}, &storetest.Options{Without: []storetest.Feature{storetest.Sessions}})
}

// TestLog runs the contract of all logs over one in etcd.
func TestLog(t *testing.T) {
	c := client(t, etcd(t))
	logtest.Run(t, func(*testing.T) logtest.Medium { return &etcdlog.Home{Client: c, Root: newRoot()} })
}
