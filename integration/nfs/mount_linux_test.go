package nfs_test

import (
	"context"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// mountAt mounts the directory under and returns the mount point. The mount caches attributes and
// entries for the duration believe. Changes made directly in under have the effect of changes by
// another client. If nothing can be mounted, it skips the test and logs why.
func mountAt(t testing.TB, under string) (mounted string) {
	t.Helper()
	root, err := fs.NewLoopbackRoot(under)
	if err != nil {
		t.Fatal(err)
	}
	return mount(t, root, believe)
}

// mountHanging is mountAt with a file system that looks up no name in its directory between a call of
// hang and one of the function that that returns, as one whose server is gone.
func mountHanging(t testing.TB, under string) (mounted string, hang func() (answer func())) {
	t.Helper()
	root := &hanging{LoopbackNode: fs.LoopbackNode{RootData: &fs.LoopbackRoot{Path: under}}}
	root.RootData.RootNode = root
	return mount(t, root, 0), func() (answer func()) {
		root.mu.Lock()
		return root.mu.Unlock
	}
}

// hanging is the directory of mountHanging.
type hanging struct {
	fs.LoopbackNode
	mu sync.RWMutex // locked while it hangs
}

// Lookup implements fs.NodeLookuper.
func (h *hanging) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.LoopbackNode.Lookup(ctx, name, out)
}

func mount(t testing.TB, root fs.InodeEmbedder, believe time.Duration) (mounted string) {
	t.Helper()
	mounted = t.TempDir()
	server, err := fs.Mount(mounted, root, &fs.Options{
		EntryTimeout: &believe, AttrTimeout: &believe, NegativeTimeout: &believe,
		MountOptions: fuse.MountOptions{DirectMount: os.Geteuid() == 0, FsName: "muster-test", Name: "muster-test"},
	})
	if err != nil {
		t.Skipf("SKIPPED: no FUSE here, it needs /dev/fuse and either root or fusermount3 (apt-get install fuse3): %v", err)
	}
	t.Cleanup(func() {
		err := server.Unmount()
		for begun := time.Now(); err != nil && time.Since(begun) < 10*time.Second; err = server.Unmount() {
			runtime.GC() // closes what calls have opened that nobody waited for
		}
		if err != nil {
			t.Error(err)
		}
		server.Wait()
	})
	return mounted
}
