package doctor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/cmd/muster/internal/doctor"
	"github.com/muster-pg/muster/cmd/muster/internal/fusetest"
)

// sees runs the checks on three ranks that share a directory, whose path for the last rank is
// second.
func sees(t *testing.T, first, second string) *doctor.Report {
	t.Helper()
	r, errs := job(t, 3, func(rank int, d *doctor.Doctor) {
		d.Dir = first
		if rank == 2 {
			d.Dir = second
		}
	})
	require.NoError(t, errors.Join(errs...))
	return r
}

func TestDirectoriesThatAreNotTheSame(t *testing.T) {
	t.Parallel()
	r := sees(t, t.TempDir(), t.TempDir())
	f := wants(t, r, "dir", doctor.Problem, "is not there")
	require.Equal(t, []int{2}, f.Ranks)
	well(t, r, 1, 0)
}

func TestDirectoryThatRemembersWhatWasNot(t *testing.T) {
	t.Parallel()
	first := t.TempDir()
	r := sees(t, first, fusetest.Mount(t, first, time.Minute))
	f := wants(t, r, "dir", doctor.Warning, "a file that was asked for before it was there is not seen")
	require.Equal(t, []int{2}, f.Ranks)
	well(t, r, 0, 1)
}

func TestDirectoryThatOneHas(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, errs := job(t, 2, func(rank int, d *doctor.Doctor) {
		if rank == 1 {
			d.Dir = dir
		}
	})
	require.NoError(t, errors.Join(errs...))
	wants(t, r, "dir", doctor.Problem, `rank 0 has --dir "" and rank 1 has "/`)
}

// client is a node of a file system whose open files have the content that a function returns.
type client struct {
	fs.LoopbackNode
	open func(path string) ([]byte, syscall.Errno)
}

// WrapChild makes every file a node of this client.
func (c *client) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	return &client{fs.LoopbackNode{RootData: ops.(*fs.LoopbackNode).RootData}, c.open}
}

func (c *client) Open(_ context.Context, _ uint32) (fs.FileHandle, uint32, syscall.Errno) {
	b, errno := c.open(filepath.Join(c.RootData.Path, c.Path(nil)))
	return read(b), fuse.FOPEN_DIRECT_IO, errno
}

// read is an open file.
type read []byte

func (r read) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	from := min(off, int64(len(r)))
	return fuse.ReadResultData(r[from:min(from+int64(len(dest)), int64(len(r)))]), 0
}

// mount mounts under as such a client sees it.
func mount(t *testing.T, under string, open func(path string) ([]byte, syscall.Errno)) (mounted string) {
	t.Helper()
	root := &fs.LoopbackRoot{Path: under}
	node := &client{LoopbackNode: fs.LoopbackNode{RootData: root}, open: open}
	root.RootNode = node
	mounted = t.TempDir()
	server, err := fs.Mount(mounted, node, &fs.Options{MountOptions: fuse.MountOptions{DirectMount: os.Geteuid() == 0, FsName: "client", Name: "client"}})
	if err != nil {
		t.Skipf("SKIPPED: no FUSE here, it needs /dev/fuse and either root or fusermount3 (apt-get install fuse3): %v", err)
	}
	t.Cleanup(func() {
		require.NoError(t, server.Unmount())
		server.Wait()
	})
	return mounted
}

func readAll(path string) ([]byte, syscall.Errno) {
	b, err := os.ReadFile(path)
	return b, fs.ToErrno(err)
}

func TestDirectoryOfOldContents(t *testing.T) {
	t.Parallel()
	first := t.TempDir()
	var old sync.Map
	r := sees(t, first, mount(t, first, func(path string) ([]byte, syscall.Errno) {
		b, errno := readAll(path)
		if strings.HasSuffix(path, ".over") || strings.HasSuffix(path, ".race") {
			was, _ := old.LoadOrStore(path, b)
			b = was.([]byte)
		}
		return b, errno
	}))
	wants(t, r, "dir", doctor.Problem, "is opened with its old content")
	wants(t, r, "dir", doctor.Warning, "the new version of a file that was replaced")
	well(t, r, 1, 1)
}

func TestDirectoryWhoseRenamesAreNotAtomic(t *testing.T) {
	t.Parallel()
	first := t.TempDir()
	var opened atomic.Int64
	r := sees(t, first, mount(t, first, func(path string) ([]byte, syscall.Errno) {
		b, errno := readAll(path)
		if strings.HasSuffix(path, ".race") {
			switch opened.Add(1) {
			case 2:
				return nil, syscall.EIO
			case 3:
				b[len(b)-1]++
			}
		}
		return b, errno
	}))
	wants(t, r, "dir", doctor.Problem, "was read in part")
	wants(t, r, "dir", doctor.Warning, "could not be read at times: input")
	well(t, r, 1, 1)
}

// TestDirectoryThatHangs checks that a rank whose file system does not answer reports that in time,
// and that the other ranks continue.
func TestDirectoryThatHangs(t *testing.T) {
	t.Parallel()
	first, gate := t.TempDir(), make(chan struct{})
	second := mount(t, first, func(path string) ([]byte, syscall.Errno) {
		if strings.HasSuffix(path, ".over") {
			<-gate
		}
		return readAll(path)
	})
	defer close(gate)
	r := sees(t, first, second)
	f := wants(t, r, "dir", doctor.Problem, "did not end within 1.5s")
	require.Equal(t, []int{2}, f.Ranks)
	well(t, r, 1, 0)
}
