package nfsws_test

import (
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"syscall"

	"github.com/muster-pg/muster/internal/journal"
	journaldisk "github.com/muster-pg/muster/internal/journal/disk"
	"github.com/muster-pg/muster/nfsws"
)

// disk is a client's volume on a file system in memory that loses, when it crashes, random parts of what
// was not synced. A directory is a file without data of the disk below, and its files are lost with it.
// The client's operations may have faults.
type disk struct {
	under *journaldisk.Disk
	whole *sync.Mutex // makes each operation of all clients one

	mu   sync.Mutex             // protects the fields below
	on   func(op string) *fault // by kind and file, as "create .json.tmp"; nil: no fault
	seen []string               // operations, while on is set
	old  []fs.DirEntry          // the contents of a stale listing
}

// fault is what happens to an operation.
type fault struct {
	err    error
	done   bool // the operation is done nevertheless
	short  bool // half of the data is read or written
	stale  bool // a listing, or a size, is an earlier one
	change bool // one bit of the data that is read is changed

	hangs <-chan struct{} // the operation begins only when this is closed
}

func newDisk(seed uint64) *disk {
	return &disk{under: journaldisk.New(rand.New(rand.NewPCG(seed, 3))), whole: new(sync.Mutex)}
}

// client returns another client of the same file system, without faults.
func (d *disk) client() *disk { return &disk{under: d.under, whole: d.whole} }

// crash is a loss of power. Open files become unusable.
func (d *disk) crash() {
	d.under.Crash()
	all := d.under.Files()
	for name := range all {
		if _, ok := all[path.Dir(name)]; !ok && path.Dir(name) != "." {
			d.under.Delete(name)
		}
	}
}

// files returns all files, by their paths.
func (d *disk) files() map[string][]byte {
	all := d.under.Files()
	for name := range all {
		if !strings.Contains(name, "/") {
			delete(all, name)
		}
	}
	return all
}

// arm sets on, which selects the fault of each later operation, and forgets the earlier operations.
func (d *disk) arm(on func(op string) *fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.on, d.seen = on, nil
}

// always lets x happen to each operation of one kind.
func (d *disk) always(kind string, x fault) {
	d.arm(func(op string) *fault {
		if op == kind {
			return &x
		}
		return nil
	})
}

// operations returns the operations since arm.
func (d *disk) operations() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen
}

// next returns the fault of an operation, which may be none.
func (d *disk) next(op, name string) (x fault) {
	if f := d.faultOf(op, name); f != nil {
		x = *f
	}
	if x.hangs != nil {
		<-x.hangs
	}
	return x
}

func (d *disk) faultOf(op, name string) *fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.on == nil {
		return nil
	}
	kind := "dir"
	if base := path.Base(name); path.Ext(base) != "" && base != "." {
		kind = path.Ext(base)
	}
	if name == "." {
		kind = "root"
	}
	d.seen = append(d.seen, op+" "+kind)
	return d.on(op + " " + kind)
}

// do does an operation, or what its fault says.
func (d *disk) do(op, name string, act func() error) error {
	x := d.next(op, name)
	if x.done || x.err == nil {
		if err := act(); err != nil {
			return err
		}
	}
	return x.err
}

// in does an operation in a directory that exists.
func (d *disk) in(dir string, act func() error) error {
	d.whole.Lock()
	defer d.whole.Unlock()
	if dir != "." {
		if _, err := d.under.Open(dir); err != nil {
			return err
		}
	}
	return act()
}

func (d *disk) Mkdir(name string) error {
	return d.do("mkdir", name, func() error {
		_, err := d.under.Create(name)
		return err
	})
}

func (d *disk) Create(name string) (nfsws.File, error) {
	h := &handle{d: d, name: name, end: "close"}
	return h, d.do("create", name, func() error {
		return d.in(path.Dir(name), func() (err error) { h.File, err = d.under.Create(name); return err })
	})
}

func (d *disk) Open(name string) (_ nfsws.File, size int64, err error) {
	x := d.next("open", name)
	if x.err != nil {
		return nil, 0, x.err
	}
	h := &handle{d: d, name: name, end: "release"}
	if h.File, err = d.under.Open(name); err == nil {
		size, err = h.Size()
	}
	if x.stale {
		size /= 2
	}
	return h, size, err
}

func (d *disk) Rename(from, to string) error {
	return d.do("rename", to, func() error { return d.under.Rename(from, to) })
}

func (d *disk) Remove(name string) error {
	return d.do("remove", name, func() error {
		return d.in(path.Dir(name), func() error {
			if inside, err := d.under.ReadDir(name); err != nil || len(inside) > 0 {
				return syscall.ENOTEMPTY
			}
			return d.under.Remove(name)
		})
	})
}

func (d *disk) ReadDir(name string) (all []fs.DirEntry, err error) {
	x := d.next("readdir", name)
	if x.stale || x.err != nil {
		return d.old, x.err
	}
	err = d.in(name, func() error {
		names, err := d.under.ReadDir(name)
		for _, n := range names {
			all = append(all, dirEntry{n, name == "."})
		}
		return err
	})
	return all, err
}

func (d *disk) SyncDir(name string) error {
	return d.do("syncdir", name, func() error { return d.in(name, func() error { return d.under.SyncDir(name) }) })
}

func (d *disk) Close() error { return nil }

// handle is an open file. The file may have been removed.
type handle struct {
	journal.File
	d    *disk
	name string
	end  string // the name of Close as an operation
	at   int64  // end of what was written
}

func (h *handle) Sync() error  { return h.d.do("sync", h.name, h.File.Sync) }
func (h *handle) Close() error { return h.d.do(h.end, h.name, h.File.Close) }

func (h *handle) Write(p []byte) (n int, err error) {
	x := h.d.next("write", h.name)
	switch {
	case x.short:
		p = p[:len(p)/2]
	case x.err != nil:
		return 0, x.err
	}
	n, err = h.WriteAt(p, h.at)
	h.at += int64(n)
	if x.err != nil {
		err = x.err
	}
	return n, err
}

func (h *handle) ReadAt(p []byte, off int64) (n int, err error) {
	x := h.d.next("read", h.name)
	if x.err != nil {
		return 0, x.err
	}
	if x.short {
		n, _ = h.File.ReadAt(p[:len(p)/2], off)
		return n, io.EOF
	}
	n, err = h.File.ReadAt(p, off)
	if x.change && n > 0 {
		p[n/2] ^= 1
	}
	return n, err
}

type dirEntry struct {
	name string
	dir  bool
}

func (e dirEntry) Name() string               { return e.name }
func (e dirEntry) IsDir() bool                { return e.dir }
func (e dirEntry) Info() (fs.FileInfo, error) { return nil, fs.ErrInvalid }
func (e dirEntry) Type() fs.FileMode {
	if e.dir {
		return fs.ModeDir
	}
	return 0
}
