package etcdlog_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/durable/logtest"
	"github.com/muster-pg/muster/internal/storetest"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
)

// TestContract runs the contract of all engines over a store whose log is in etcd: all of it with
// MUSTER_SOAK, otherwise the chapters in which a call waits for others, or entries end by time, and
// one about sizes. The other chapters are about the machine, which other engines of the suite share.
func TestContract(t *testing.T) {
	chapters := testcluster.Form([]string{"Keys", "Wait", "Limits", "Join", "Collect", "Failures", "Leases"}, nil)
	c := client(t, etcd(t))
	storetest.Run(t, func(t *testing.T) func() store.Engine {
		m := lead(t, c, &etcdlog.Options{Root: newRoot()})
		return func() store.Engine { return m }
	}, &storetest.Options{Without: []storetest.Feature{storetest.Sessions}, Only: chapters})
}

// TestLog runs the contract of all logs over one in etcd.
func TestLog(t *testing.T) {
	c := client(t, etcd(t))
	logtest.Run(t, func(*testing.T) logtest.Medium { return &etcdlog.Home{Client: c, Root: newRoot()} })
}
