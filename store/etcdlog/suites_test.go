package etcdlog_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/wire"
)

// TestSuites runs the tests of packages that use a store, in their short form, with sessions at a
// server of a store whose log is in etcd: those of pgroup and membership, and with MUSTER_SOAK those of
// gather and dataparallel, which use the store through pgroup. Tests that serve another store skip
// themselves.
func TestSuites(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it builds the tests of other packages: not in a short run")
	}
	c := client(t, etcd(t))
	suites := []struct {
		name string
		op   wire.Op // which its tests send the most
	}{{"pgroup", wire.OpCollect}, {"membership", wire.OpSwap}, {"gather", wire.OpCollect}, {"dataparallel", wire.OpCollect}}
	for _, s := range suites[:testcluster.Form(2, 4)] {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			m := lead(t, c, &etcdlog.Options{Root: newRoot()})
			cmd := exec.CommandContext(t.Context(), "go", "test", "-short", "-vet=off", "-count=1", "-timeout=3m", "-run=^Test", "./"+s.name)
			cmd.Dir = "../.."
			cmd.Env = append(os.Environ(), testcluster.StoreVariable+"=muster://"+serve(t, m), testcluster.SoakVariable+"=")
			cmd.WaitDelay = time.Second
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			st, err := store.New(m).Status(t.Context(), "")
			require.NoError(t, err)
			require.Greater(t, st.Server.Ops[s.op], int64(10), "the tests used another store")
		})
	}
}

// serve serves a store until the end of the test, and returns the address.
func serve(t testing.TB, e store.Backend) string {
	t.Helper()
	return testcluster.Serve(t, &store.Server{Engine: e})
}
