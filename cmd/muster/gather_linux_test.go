package main_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
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
		if err != nil || !strings.HasPrefix(to, string(h.desk)) || strings.HasSuffix(to, "/a") || strings.HasSuffix(to, "/b") {
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
		h.desk.has(t, "a", "b")
	}
}

// A gather that was killed leaves a file with another name, and nothing named OUT.
func TestGatherKilled(t *testing.T) {
	t.Parallel()
	h := halfway(t)
	h.signal(t, syscall.SIGKILL)
	h.wait(t)
	require.NoFileExists(t, h.desk.path("out"))
	parts, err := filepath.Glob(h.desk.path(".muster-*.part"))
	require.NoError(t, err)
	require.Len(t, parts, 1)
}

func TestGatherOfAShardThatIsCutOff(t *testing.T) {
	t.Parallel()
	for _, shard := range []string{"a", "b"} {
		h := halfway(t)
		require.NoError(t, os.Truncate(h.desk.path(shard), 1<<20))
		h.signal(t, syscall.SIGCONT)
		h.wait(t).wants(t, 1, "", h.desk.path(shard)+" was cut off")
		h.desk.has(t, "a", "b")
	}
}
