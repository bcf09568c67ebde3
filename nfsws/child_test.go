package nfsws_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/nfsws"
)

// The environment of the test binary when it is a rank.
const (
	modeVar = "NFSWS_TEST_MODE"
	dirVar  = "NFSWS_TEST_DIR"
	argVar  = "NFSWS_TEST_ARG"
)

// acts are the actions of ranks.
var acts = map[string]func(){"die": die, "publish": publish}

// child runs the test binary as a rank.
func child(t testing.TB, mode, dir string, arg int) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), modeVar+"="+mode, dirVar+"="+dir, argVar+"="+strconv.Itoa(arg))
	return cmd
}

func assignment() (dir string, arg int) {
	return os.Getenv(dirVar), must(strconv.Atoi(os.Getenv(argVar)))
}

// die publishes a state, whose number is arg, and kills itself at operation number arg, half of
// which is done if it is a write.
func die() {
	dir, k := assignment()
	n := uint32(k + 2)
	v := &faulty{Volume: must(nfsws.OSVolume(dir))}
	v.die = func() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	v.on = nth(k, &fault{short: true, dies: true})
	w, err := nfsws.Open(context.Background(), dir, 0, nfsws.Options{}.On(v))
	if err == nil {
		_, err = write(w, n, small)
	}
	fmt.Println(err)
	os.Exit(0)
}

// TestKilledAtEachStep kills a rank at each operation of an Open and a Write that replaces a state,
// while another rank reads continuously: it sees the old state or the new one. The next Open
// removes what is left.
func TestKilledAtEachStep(t *testing.T) {
	dir := t.TempDir()
	w := open(t, dir, 1, nil)
	first := must(nfsws.Open(t.Context(), dir, 0, nil))
	require.NoError(t, second(write(first, 1, small)))
	require.NoError(t, first.Close())
	ctx, cancel := context.WithCancel(t.Context())
	var reader sync.WaitGroup
	reads := 0
	reader.Go(func() {
		for last := uint32(0); ctx.Err() == nil; reads++ {
			n, err := read(w, 0)
			if err != nil || n < last {
				t.Errorf("after %d, %d: %v", last, n, err)
				return
			}
			last = n
		}
	})
	old, killed := uint32(1), 0
	for k := 0; ; k++ {
		var out bytes.Buffer
		cmd := child(t, "die", dir, k)
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		n, readErr := read(w, 0)
		require.NoError(t, readErr)
		if err == nil {
			require.Equal(t, "<nil>\n", out.String())
			require.EqualValues(t, k+2, n)
			break
		}
		killed++
		require.EqualValues(t, syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(), out.String())
		require.Contains(t, []uint32{old, uint32(k + 2)}, n, "killed at operation %d", k)
		old = n
	}
	cancel()
	reader.Wait()
	t.Logf("killed %d times, read %d times meanwhile", killed, reads)
	require.Greater(t, killed, 15)
	require.NoError(t, must(nfsws.Open(t.Context(), dir, 0, nil)).Close())
	require.LessOrEqual(t, len(names(t, dir)), 4, "one state, and perhaps the one before")
}

// publish publishes arg states, one after the other.
func publish() {
	dir, rounds := assignment()
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
	cmd := child(t, "publish", dir, rounds)
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
