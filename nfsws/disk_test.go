package nfsws_test

import (
	"bytes"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"syscall"

	"github.com/muster-pg/muster/nfsws"
)

// disk is a file system in memory that loses, when it crashes, random parts of what was not synced:
// any of the bytes, and any of the changes of a directory, independent of earlier ones.
type disk struct {
	mu    sync.Mutex
	rng   *rand.Rand
	root  *node
	quota int // bytes that may still be written; -1: any number
}

// node is a file or a directory.
type node struct {
	data, synced []byte

	dir          bool
	now, durable map[string]*node
	pending      []func(map[string]*node)
}

func newDir() *node { return &node{dir: true, now: map[string]*node{}, durable: map[string]*node{}} }

func newDisk(seed uint64) *disk {
	return &disk{rng: rand.New(rand.NewPCG(seed, 3)), root: newDir(), quota: -1}
}

// crash is a loss of power. Open files become unusable.
func (d *disk) crash() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.root = d.survivor(d.root)
}

func (d *disk) survivor(n *node) *node {
	if !n.dir {
		data := slices.Clone(n.synced)
		if !bytes.Equal(n.data, n.synced) {
			data = slices.Clone(n.data[:d.rng.IntN(len(n.data)+1)])
			clear(data[d.rng.IntN(len(data)+1):])
			copy(data, n.synced)
		}
		return &node{data: data, synced: slices.Clone(data)}
	}
	for _, change := range n.pending {
		if d.rng.IntN(2) == 0 {
			change(n.durable)
		}
	}
	s := newDir()
	for _, name := range slices.Sorted(maps.Keys(n.durable)) {
		s.now[name] = d.survivor(n.durable[name])
	}
	s.durable = maps.Clone(s.now)
	return s
}

// files returns all files, by their paths.
func (d *disk) files() map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[string][]byte{}
	for dir, n := range d.root.now {
		for name, f := range n.now {
			all[dir+"/"+name] = slices.Clone(f.data)
		}
	}
	return all
}

func (d *disk) find(name string) (parent, n *node, err error) {
	parent = d.root
	if dir := path.Dir(name); dir != "." {
		parent = d.root.now[dir]
	}
	if parent == nil {
		return nil, nil, fs.ErrNotExist
	}
	if name == "." {
		return nil, d.root, nil
	}
	if n = parent.now[path.Base(name)]; n == nil {
		return parent, nil, fs.ErrNotExist
	}
	return parent, n, nil
}

func (n *node) change(f func(map[string]*node)) {
	f(n.now)
	n.pending = append(n.pending, f)
}

func (d *disk) add(name string, n *node) error {
	parent, _, err := d.find(name)
	if err == nil {
		return fs.ErrExist
	}
	if parent == nil {
		return err
	}
	parent.change(func(m map[string]*node) { m[path.Base(name)] = n })
	return nil
}

func (d *disk) Mkdir(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.add(name, newDir())
}

func (d *disk) Create(name string) (nfsws.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := &node{}
	if err := d.add(name, n); err != nil {
		return nil, err
	}
	return &handle{d, n}, nil
}

func (d *disk) Open(name string) (nfsws.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, n, err := d.find(name)
	if err != nil {
		return nil, err
	}
	return &handle{d, n}, nil
}

func (d *disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	parent, n, err := d.find(from)
	if err != nil {
		return err
	}
	parent.change(func(m map[string]*node) {
		delete(m, path.Base(from))
		m[path.Base(to)] = n
	})
	return nil
}

func (d *disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	parent, n, err := d.find(name)
	switch {
	case err != nil:
		return err
	case len(n.now) > 0:
		return syscall.ENOTEMPTY
	}
	parent.change(func(m map[string]*node) { delete(m, path.Base(name)) })
	return nil
}

func (d *disk) ReadDir(name string) (all []fs.DirEntry, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, n, err := d.find(name)
	if err != nil {
		return nil, err
	}
	for name, n := range n.now {
		all = append(all, dirEntry{name, n})
	}
	return all, nil
}

func (d *disk) SyncDir(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, n, err := d.find(name)
	if err != nil {
		return err
	}
	n.durable, n.pending = maps.Clone(n.now), nil
	return nil
}

func (d *disk) Close() error { return nil }

// handle is an open file. The file may have been removed.
type handle struct {
	d *disk
	n *node
}

func (h *handle) Write(p []byte) (int, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if q := h.d.quota; q >= 0 && len(p) > q {
		h.n.data = append(h.n.data, p[:q]...)
		h.d.quota = 0
		return q, syscall.ENOSPC
	}
	if h.d.quota >= 0 {
		h.d.quota -= len(p)
	}
	h.n.data = append(h.n.data, p...)
	return len(p), nil
}

func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	return bytes.NewReader(h.n.data).ReadAt(p, off)
}

func (h *handle) Sync() error {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	h.n.synced = slices.Clone(h.n.data)
	return nil
}

func (h *handle) Size() (int64, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	return int64(len(h.n.data)), nil
}

func (h *handle) Close() error { return nil }

type dirEntry struct {
	name string
	n    *node
}

func (e dirEntry) Name() string               { return e.name }
func (e dirEntry) IsDir() bool                { return e.n.dir }
func (e dirEntry) Info() (fs.FileInfo, error) { return nil, fs.ErrInvalid }
func (e dirEntry) Type() fs.FileMode {
	if e.n.dir {
		return fs.ModeDir
	}
	return 0
}
