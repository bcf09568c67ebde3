package nfsws_test

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/nfsws"
)

// The environment of the test binary when it is a rank that publishes.
const (
	dirVar    = "NFSWS_TEST_DIR"
	roundsVar = "NFSWS_TEST_ROUNDS"
)

// publish publishes states in dir, one after the other.
func publish(dir string) {
	rounds := must(strconv.Atoi(os.Getenv(roundsVar)))
	w := must(nfsws.Open(context.Background(), dir, 0, nil))
	for n := range rounds {
		must(write(w, uint32(n+1), small))
	}
	must(0, w.Close())
	os.Exit(0)
}

// TestModelOptHalfAState checks failure 9: a process writes a thousand states, one over the other,
// while another reads. The reader never sees a partial state, and never an older one after a newer
// one.
func TestModelOptHalfAState(t *testing.T) {
	rounds := testcluster.Form(200, 1000)
	dir := t.TempDir()
	w := open(t, dir, 1, nil)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), dirVar+"="+dir, roundsVar+"="+strconv.Itoa(rounds))
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	seen, last := 0, uint32(0)
	for last < uint32(rounds) {
		s, err := w.Wait(t.Context(), 0)
		require.NoError(t, err)
		n, err := whole(s)
		require.NoError(t, err)
		require.GreaterOrEqual(t, n, last)
		if n > last {
			seen++
		}
		last = n
	}
	require.NoError(t, cmd.Wait())
	t.Logf("saw %d of %d states", seen, rounds)
	require.Len(t, names(t, dir), 4)
}
