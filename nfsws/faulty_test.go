package nfsws_test

import (
	"io"
	"io/fs"
	"path"
	"sync"

	"github.com/muster-pg/muster/nfsws"
)

// fault is what happens to an operation.
type fault struct {
	err    error
	done   bool // the operation is done nevertheless
	short  bool // half of the data is read or written
	stale  bool // a listing, or a size, is an earlier one
	change bool // one bit of the data that is read is changed

	hangs <-chan struct{} // the operation begins only when this is closed
}

// faulty is a volume with faults.
type faulty struct {
	nfsws.Volume

	mu   sync.Mutex
	on   func(op string) *fault // by kind and file, as "create .json.tmp"; nil: no fault
	seen []string               // operations, while on is set
	old  []fs.DirEntry          // the contents of a stale listing
}

// arm sets on, which selects the fault of each later operation, and forgets the earlier operations.
func (f *faulty) arm(on func(op string) *fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.on, f.seen = on, nil
}

// always lets x happen to each operation of one kind.
func (f *faulty) always(kind string, x fault) {
	f.arm(func(op string) *fault {
		if op == kind {
			return &x
		}
		return nil
	})
}

// operations returns the operations since arm.
func (f *faulty) operations() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen
}

func (f *faulty) next(op, name string) *fault {
	x := f.faultOf(op, name)
	if x != nil && x.hangs != nil {
		<-x.hangs
		return nil
	}
	return x
}

func (f *faulty) faultOf(op, name string) *fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.on == nil {
		return nil
	}
	kind := "dir"
	if base := path.Base(name); path.Ext(base) != "" && base != "." {
		kind = path.Ext(base)
	}
	if name == "." {
		kind = "root"
	}
	f.seen = append(f.seen, op+" "+kind)
	return f.on(op + " " + kind)
}

// do does an operation, or what its fault says.
func (f *faulty) do(op, name string, act func() error) error {
	x := f.next(op, name)
	if x == nil {
		return act()
	}
	if x.done || x.err == nil {
		if err := act(); err != nil {
			return err
		}
	}
	return x.err
}

func (f *faulty) Mkdir(name string) error {
	return f.do("mkdir", name, func() error { return f.Volume.Mkdir(name) })
}

func (f *faulty) Rename(from, to string) error {
	return f.do("rename", to, func() error { return f.Volume.Rename(from, to) })
}

func (f *faulty) Remove(name string) error {
	return f.do("remove", name, func() error { return f.Volume.Remove(name) })
}

func (f *faulty) SyncDir(name string) error {
	return f.do("syncdir", name, func() error { return f.Volume.SyncDir(name) })
}

func (f *faulty) Create(name string) (file nfsws.File, err error) {
	err = f.do("create", name, func() (err error) { file, err = f.Volume.Create(name); return err })
	return &faultyFile{file, f, name, "close"}, err
}

func (f *faulty) Open(name string) (nfsws.File, int64, error) {
	x := f.next("open", name)
	if x != nil && x.err != nil {
		return nil, 0, x.err
	}
	file, size, err := f.Volume.Open(name)
	if x != nil && x.stale {
		size /= 2
	}
	return &faultyFile{file, f, name, "release"}, size, err
}

func (f *faulty) ReadDir(name string) (all []fs.DirEntry, err error) {
	x := f.next("readdir", name)
	if x != nil && x.stale {
		return f.old, nil
	}
	if x != nil && x.err != nil {
		return nil, x.err
	}
	return f.Volume.ReadDir(name)
}

type faultyFile struct {
	nfsws.File
	f    *faulty
	name string
	end  string // the name of Close as an operation
}

func (h *faultyFile) Sync() error  { return h.f.do("sync", h.name, h.File.Sync) }
func (h *faultyFile) Close() error { return h.f.do(h.end, h.name, h.File.Close) }

func (h *faultyFile) Write(p []byte) (n int, err error) {
	x := h.f.next("write", h.name)
	if x == nil {
		return h.File.Write(p)
	}
	if x.short {
		n, _ = h.File.Write(p[:len(p)/2])
	}
	return n, x.err
}

func (h *faultyFile) ReadAt(p []byte, off int64) (n int, err error) {
	x := h.f.next("read", h.name)
	switch {
	case x == nil:
		return h.File.ReadAt(p, off)
	case x.err != nil:
		return 0, x.err
	case x.short:
		n, _ = h.File.ReadAt(p[:len(p)/2], off)
		return n, io.EOF
	}
	n, err = h.File.ReadAt(p, off)
	if x.change && n > 0 {
		p[n/2] ^= 1
	}
	return n, err
}
