package main_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/testcluster"
)

// TestSilentStore checks what is said of a server that accepts connections and sends nothing.
func TestSilentStore(t *testing.T) {
	t.Parallel()
	url := "muster://" + testcluster.Listen(t).Addr().String()
	run(t, "get", "k", "--store", url).wants(t, 5, "", "no answer from ")
}
