package testcluster

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/muster-pg/muster/store"
)

// StoreVariable is the environment variable with the URL of a store, muster://host:port, for tests
// that use Store or StoreURL. If it is not set, each of their stores is in memory. Tests that serve a
// store by Serve or Listen do not run then.
const StoreVariable = "MUSTER_TEST_STORE"

var stores atomic.Uint64

// Store makes an empty store for a test. Each call of open is for another rank or worker. In memory
// all of them get the same *store.Store; with the store of StoreVariable each gets a session of its
// own, below the prefix of StoreURL. open may be called by any goroutine, and panics if that store
// cannot be reached. The stores are closed when the test ends.
//
// Do not use it in a synctest bubble, in which time does not pass while a server answers: use a
// store.Memory there.
func Store(t testing.TB) (open func() *store.Store) {
	t.Helper()
	url := StoreURL()
	if url == "" {
		s := store.New(new(store.Memory))
		t.Cleanup(func() { _ = s.Close() })
		return func() *store.Store { return s }
	}
	return func() *store.Store {
		ctx, cancel := context.WithTimeout(context.Background(), kernelTimeout)
		defer cancel()
		s, err := store.Open(ctx, url)
		if err != nil {
			panic(fmt.Sprintf("testcluster: the store of %s: %v", StoreVariable, err))
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
}

// skipOwnStore skips a test whose store is not that of StoreVariable.
func skipOwnStore(t testing.TB) {
	t.Helper()
	if os.Getenv(StoreVariable) != "" {
		t.Skipf("SKIPPED: it serves a store, and this run is for that of %s", StoreVariable)
	}
}

// StoreURL returns the URL of an empty part of the store of StoreVariable, another one with each
// call; "" if that is not set.
func StoreURL() string {
	url := os.Getenv(StoreVariable)
	if url == "" {
		return ""
	}
	return fmt.Sprintf("%s/test-%d-%d", strings.TrimSuffix(url, "/"), os.Getpid(), stores.Add(1))
}
