package nfsws_test

import (
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

// disk is a file system in memory that loses, when it crashes, random parts of what was not synced. A
// directory is a file without data of the disk below, and its files are lost with it.
type disk struct {
	under *journaldisk.Disk
	mu    sync.Mutex // makes each operation one
}

func newDisk(seed uint64) *disk {
	return &disk{under: journaldisk.New(rand.New(rand.NewPCG(seed, 3)))}
}

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

// in calls f if the directory exists.
func (d *disk) in(dir string, f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if dir != "." {
		if _, err := d.under.Open(dir); err != nil {
			return err
		}
	}
	return f()
}

func (d *disk) Mkdir(name string) error {
	_, err := d.Create(name)
	return err
}

func (d *disk) Create(name string) (file nfsws.File, err error) {
	err = d.in(path.Dir(name), func() error {
		f, err := d.under.Create(name)
		file = &handle{File: f}
		return err
	})
	return file, err
}

func (d *disk) Open(name string) (nfsws.File, int64, error) {
	f, err := d.under.Open(name)
	if err != nil {
		return nil, 0, err
	}
	size, err := f.Size()
	return &handle{File: f}, size, err
}

func (d *disk) Rename(from, to string) error { return d.under.Rename(from, to) }

func (d *disk) Remove(name string) error {
	return d.in(path.Dir(name), func() error {
		if inside, err := d.under.ReadDir(name); err != nil || len(inside) > 0 {
			return syscall.ENOTEMPTY
		}
		return d.under.Remove(name)
	})
}

func (d *disk) ReadDir(name string) (all []fs.DirEntry, err error) {
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
	return d.in(name, func() error { return d.under.SyncDir(name) })
}

func (d *disk) Close() error { return nil }

// handle is an open file. The file may have been removed.
type handle struct {
	journal.File
	end int64 // of what was written
}

func (h *handle) Write(p []byte) (int, error) {
	n, err := h.WriteAt(p, h.end)
	h.end += int64(n)
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
