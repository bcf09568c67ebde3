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

// StoreVariable is the environment variable with the URL of a store, muster://host:port, over which tests run that take theirs
// from Store or StoreURL. If it is not set, each of their stores is in memory.
const StoreVariable = "MUSTER_TEST_STORE"

var stores atomic.Uint64

// Store makes an empty store for a test. Each call of open is for another rank or worker: in memory all of them get the same
// *store.Store; over the store that StoreVariable names each gets a session of its own, below the prefix of StoreURL. Any goroutine
// can call open, which panics if that store cannot be reached. What it returned is closed when the test ends.
//
// It is not for a synctest bubble, in which time does not pass while a server answers: use a store.Memory there.
func Store(t testing.TB) (open func() *store.Store) {
	t.Helper()
	url := StoreURL()
	if url == "" {
		s := store.New(new(store.Memory))
		t.Cleanup(func() { _ = s.Close() })
		return func() *store.Store { return s }
	}
	return func() *store.Store {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s, err := store.Open(ctx, url)
		if err != nil {
			panic(fmt.Sprintf("testcluster: the store of %s: %v", StoreVariable, err))
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
}

// StoreURL returns the URL of an empty part of the store that StoreVariable names, another one with each call; "" if it names none.
func StoreURL() string {
	url := os.Getenv(StoreVariable)
	if url == "" {
		return ""
	}
	return fmt.Sprintf("%s/test-%d-%d", strings.TrimSuffix(url, "/"), os.Getpid(), stores.Add(1))
}
