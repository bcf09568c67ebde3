package main_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// TestSilentStore checks what is said of a server that accepts connections and sends nothing.
func TestSilentStore(t *testing.T) {
	t.Parallel()
	url := "muster://" + testcluster.Listen(t).Addr().String()
	run(t, "get", "k", "--store", url).wants(t, 5, "", "no answer from ")
}

// TestHiddenKeys checks that the keys of servers and relays are listed only when they are asked for.
func TestHiddenKeys(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	s, err := store.Open(t.Context(), url)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Set(t.Context(), "\x00own", []byte("x"), nil))
	require.NoError(t, s.Set(t.Context(), "k", []byte("x"), nil))
	run(t, "keys", "--store", url).wants(t, 0, "k\n", "")
	run(t, "keys", "--all", "--store", url).wants(t, 0, "\"\\x00own\"\nk\n", "")
}
