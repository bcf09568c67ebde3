package fusetest

import (
	"os"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// Mount mounts the directory under and returns the mount point. The mount caches attributes and
// entries for the duration believe. Changes made directly in under have the effect of changes by
// another client. If nothing can be mounted, Mount skips the test and logs why.
func Mount(t testing.TB, under string, believe time.Duration) (mounted string) {
	t.Helper()
	root, err := fs.NewLoopbackRoot(under)
	if err != nil {
		t.Fatal(err)
	}
	mounted = t.TempDir()
	server, err := fs.Mount(mounted, root, &fs.Options{
		EntryTimeout: &believe, AttrTimeout: &believe, NegativeTimeout: &believe,
		MountOptions: fuse.MountOptions{DirectMount: os.Geteuid() == 0, FsName: "fusetest", Name: "fusetest"},
	})
	if err != nil {
		t.Skipf("SKIPPED: no FUSE here, it needs /dev/fuse and either root or fusermount3 (apt-get install fuse3): %v", err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
		server.Wait()
	})
	return mounted
}
