package durable

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/journal"
	"github.com/muster-pg/muster/internal/journal/disk"
)

// powerDisk is a disk that loses power, including its checkpoints. bbolt writes and reads them in a
// real directory. When a checkpoint is opened to be sealed, it is copied to the disk as unsynced
// data; after a crash, what the disk has kept of it is copied back to the directory.
type powerDisk struct {
	*disk.Disk
	t *testing.T
}

func newPowerDisk(t *testing.T, rng *rand.Rand) *powerDisk { return &powerDisk{disk.New(rng), t} }

func isCheckpoint(name string) bool { return strings.HasPrefix(filepath.Base(name), "checkpoint.") }

func (d *powerDisk) Open(name string) (journal.File, error) {
	if !isCheckpoint(name) {
		return d.Disk.Open(name)
	}
	pages, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if _, ok := d.Files()[name]; ok {
		if err := d.Remove(name); err != nil {
			return nil, err
		}
	}
	f, err := d.Create(name)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(pages, 0); err != nil {
		return nil, err
	}
	return f, nil
}

func (d *powerDisk) Rename(from, to string) error {
	err := d.Disk.Rename(from, to)
	if err == nil {
		d.show(filepath.Dir(to))
	}
	return err
}

// crash is a power failure and a restart with the directory dir.
func (d *powerDisk) crash(dir string) {
	d.Crash()
	d.show(dir)
}

// show copies the checkpoints that are on the disk to the directory.
func (d *powerDisk) show(dir string) {
	seen := d.Files()
	for _, base := range []string{checkpointName, temporary} {
		name := filepath.Join(dir, base)
		if b, ok := seen[name]; ok {
			require.NoError(d.t, os.WriteFile(name, b, 0o600))
		} else {
			_ = os.Remove(name)
		}
	}
}
