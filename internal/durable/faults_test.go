package durable_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/internal/durable"
	"github.com/muster-pg/muster/internal/durable/logtest"
	"github.com/muster-pg/muster/internal/journal"
	"github.com/muster-pg/muster/internal/testcluster"
)

// directory is a logtest.Store.
type directory string

// Open implements logtest.Store.
func (d directory) Open(_ *testing.T, f *logtest.Faults) (*durable.Disk, *core.Machine, error) {
	return durable.Open(string(d), core.Limits{}, &durable.Options{FS: faultyFS{journal.OS, f}})
}

// faultyFS is a file system whose steps go through Faults.
type faultyFS struct {
	journal.FS
	f *logtest.Faults
}

func (s faultyFS) Create(name string) (journal.File, error) { return s.file(s.FS.Create, name) }

func (s faultyFS) Open(name string) (journal.File, error) { return s.file(s.FS.Open, name) }

func (s faultyFS) file(open func(string) (journal.File, error), name string) (f journal.File, err error) {
	err = s.f.Step(func() (err error) {
		f, err = open(name)
		return err
	})
	if err != nil {
		if f != nil {
			_ = f.Close()
		}
		return nil, err
	}
	return faultyFile{f, s.f}, nil
}

func (s faultyFS) Remove(name string) error {
	return s.f.Step(func() error { return s.FS.Remove(name) })
}

func (s faultyFS) Rename(from, to string) error {
	return s.f.Step(func() error { return s.FS.Rename(from, to) })
}

func (s faultyFS) SyncDir(dir string) error {
	return s.f.Step(func() error { return s.FS.SyncDir(dir) })
}

func (s faultyFS) ReadDir(dir string) (names []string, err error) {
	err = s.f.Step(func() (err error) {
		names, err = s.FS.ReadDir(dir)
		return err
	})
	return names, err
}

// faultyFile is a file of a faultyFS.
type faultyFile struct {
	journal.File
	f *logtest.Faults
}

func (x faultyFile) ReadAt(b []byte, at int64) (n int, err error) {
	err = x.f.Step(func() (err error) {
		n, err = x.File.ReadAt(b, at)
		return err
	})
	return n, err
}

func (x faultyFile) WriteAt(b []byte, at int64) (n int, err error) {
	err = x.f.Step(func() (err error) {
		n, err = x.File.WriteAt(b, at)
		return err
	})
	return n, err
}

func (x faultyFile) Truncate(size int64) error {
	return x.f.Step(func() error { return x.File.Truncate(size) })
}

func (x faultyFile) Sync() error { return x.f.Step(x.File.Sync) }

// TestFaults runs the contract of all durable stores in directories.
func TestFaults(t *testing.T) {
	logtest.RunFaults(t, testcluster.Form(8, 16), func(t *testing.T) logtest.Store { return directory(t.TempDir() + "/d") })
}
