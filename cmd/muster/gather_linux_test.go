package main_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// hollow writes a sparse file with one tensor of n zeros.
func (d desk) hollow(t *testing.T, name string, n int64) string {
	t.Helper()
	head := fmt.Appendf(nil, `{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, n, n)
	d.write(t, name, string(binary.LittleEndian.AppendUint64(nil, uint64(len(head))))+string(head))
	require.NoError(t, os.Truncate(d.path(name), int64(8+len(head))+n))
	return d.path(name)
}

// has checks which files are in the desk.
func (d desk) has(t *testing.T, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(string(d))
	require.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	require.Equal(t, want, got)
}

// half is a gather that was stopped while it wrote.
type half struct {
	*process
	desk desk
}

// halfway starts a gather, and stops it when a part of the file has been written.
func halfway(t *testing.T) *half {
	t.Helper()
	d := emptyDesk(t)
	const n = 96 << 20
	args := []string{"gather", "-o", d.path("out"), "--axis", "w=0", d.hollow(t, "a", n), d.hollow(t, "b", n)}
	for range 10 {
		h := &half{process: start(t, args...), desk: d}
		if h.stop(t, n) {
			return h
		}
		h.wait(t) // it finished too early
		_ = os.Remove(d.path("out"))
	}
	t.Fatal("no gather could be stopped while it wrote")
	return nil
}

// stop waits until some bytes are written, stops the process, and reports whether fewer than most
// bytes are written.
func (h *half) stop(t *testing.T, most int64) bool {
	t.Helper()
	for gone := false; !gone; gone = h.ended() {
		if n := h.written(); n > 0 {
			if syscall.Kill(h.cmd.Process.Pid, syscall.SIGSTOP) != nil {
				return false
			}
			return h.written() < most || syscall.Kill(h.cmd.Process.Pid, syscall.SIGCONT) != nil
		}
		<-time.After(time.Millisecond)
	}
	return false
}

func (h *half) ended() bool { return !testcluster.Alive(h.cmd.Process.Pid) }

// written returns the number of bytes written.
func (h *half) written() (n int64) {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", h.cmd.Process.Pid))
	for _, fd := range fds {
		to, err := os.Readlink(fd)
		if err != nil || !strings.HasPrefix(to, string(h.desk)) || !strings.HasSuffix(to, ".part") {
			continue
		}
		info, _ := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(fd)), "fdinfo", filepath.Base(fd)))
		_, _ = fmt.Sscanf(string(info), "pos: %d", &n)
	}
	return n
}

func TestGatherInterrupted(t *testing.T) {
	t.Parallel()
	for sig, want := range map[syscall.Signal]string{syscall.SIGINT: "ended by signal 2 (interrupt)", syscall.SIGTERM: "ended by signal 15 (terminated)"} {
		h := halfway(t)
		h.signal(t, sig)
		h.signal(t, syscall.SIGCONT)
		h.wait(t).wants(t, 128+int(sig), "", want+": "+h.desk.path("out")+" is not written")
		require.Zero(t, run(t, "gather", "-o", h.desk.path("out"), "--axis", "w=0", h.desk.path("a"), h.desk.path("b")).code)
		h.desk.has(t, "a", "b", "out")
	}
}

// TestGatherKilled kills gathers at random moments, and repeats each until it ends. It checks that what
// has a final name is right at any time, that later ones go on where the first was, and that nothing is left.
func TestGatherKilled(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	for _, shard := range []string{"a", "b"} {
		ts := map[string]*tensor.Tensor{}
		for i := range 6 {
			x := tensor.New(tensor.U8, 1<<10, 1<<10)
			_, _ = rand.NewChaCha8([32]byte{shard[0], byte(i)}).Read(x.Data)
			ts[fmt.Sprint("w", i)] = x
		}
		require.NoError(t, safetensors.WriteFile(d.path(shard), ts, nil))
	}
	args := func(out string) []string {
		return []string{"gather", "-o", d.path(out), "--shard-size", "3MiB", "--axis", "*=1", d.path("a"), d.path("b")}
	}
	began := time.Now()
	require.Zero(t, run(t, args("want")...).code)
	took := time.Since(began)
	wentOn, kills := 0, 0
	for least := testcluster.Form(10, 200); kills < least || wentOn == 0 && kills < 2000; {
		how := args("out")
		if rand.N(2) == 0 {
			how = append(how, "--force")
		} else {
			require.NoError(t, os.RemoveAll(d.path("out")))
		}
		for tries, ended := time.Duration(2), false; !ended; tries++ { // ever longer: the machine may be busier now
			if states, _ := filepath.Glob(d.path("out/.muster-*.state")); len(states) > 0 {
				if text, _ := os.ReadFile(states[0]); len(text) > 0 && !strings.Contains(string(text), `"File":0,"Bytes":0}`) {
					wentOn++
				}
			}
			p := start(t, how...)
			timer := time.AfterFunc(rand.N(tries*took), func() { _ = p.cmd.Process.Kill() })
			res := p.wait(t)
			ended = res.code == 0 || strings.Contains(res.stderr, "is there already") // killed when all was done
			timer.Stop()
			kills++
			d.sameFiles(t, ended)
		}
	}
	require.NotZero(t, wentOn)
}

// sameFiles checks that what has a final name in "out" is what is in "want": all of it, and nothing else,
// if there is an index.
func (d desk) sameFiles(t *testing.T, whole bool) {
	t.Helper()
	want, err := os.ReadDir(d.path("want"))
	require.NoError(t, err)
	_, err = os.Stat(d.path("out/model.safetensors.index.json"))
	if whole {
		require.NoError(t, err)
	}
	for _, e := range want {
		got, reading := os.ReadFile(d.path("out/" + e.Name()))
		if errors.Is(reading, os.ErrNotExist) && err != nil {
			continue
		}
		require.NoError(t, reading)
		data, reading := os.ReadFile(d.path("want/" + e.Name()))
		require.NoError(t, reading)
		require.True(t, bytes.Equal(data, got), e.Name())
	}
	if whole {
		got, err := os.ReadDir(d.path("out"))
		require.NoError(t, err)
		require.Len(t, got, len(want), "nothing is left: %v", got)
	}
}

func TestGatherOfAShardThatIsCutOff(t *testing.T) {
	t.Parallel()
	for _, shard := range []string{"a", "b"} {
		h := halfway(t)
		require.NoError(t, os.Truncate(h.desk.path(shard), 1<<20))
		h.signal(t, syscall.SIGCONT)
		h.wait(t).wants(t, 1, "", h.desk.path(shard)+`: tensor "w": the file has been cut off`)
		h.desk.has(t, "a", "b")
	}
}
