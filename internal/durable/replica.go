package durable

import (
	"fmt"
	"path/filepath"

	"github.com/muster-pg/muster/internal/core"
)

// Replica is a log that several processes can read, of which one at a time appends: it has a machine in the place of a directory.
type Replica struct {
	Incarnation uint64 // of the machine's state
	Fresh       bool   // the machine is new: it has no sessions to wait for
	Log         Records
	// Install makes a checkpoint, a sealed file that goes on with a segment of Log, the one that a start begins with.
	Install func(file string, segment uint64) error
	// Scratch is an empty directory of this process for checkpoints; the caller removes it after Close.
	Scratch string
	// Lost is closed when another process has taken Log over, or it cannot be reached: nothing is appended any more.
	Lost <-chan struct{}
}

// Continue has m, which has replayed all of r's log, go on with it.
func Continue(r *Replica, m *core.Machine, limits core.Limits, o *Options) (*Disk, error) {
	d := &Disk{Incarnation: r.Incarnation, dir: r.Scratch, options: o.withDefaults(), log: r.Log, replica: r, stop: make(chan struct{})}
	if err := d.goOn(m, limits, !r.Fresh); err != nil {
		return nil, fmt.Errorf("durable: %w", err)
	}
	return d, nil
}

// CheckpointOf is the checkpoint that Restore has put into dir.
func CheckpointOf(dir string) string { return filepath.Join(dir, checkpointName) }

// ReadCheckpoint makes a machine of a checkpoint, that Install was given or CheckpointOf names.
func ReadCheckpoint(file string) (m *core.Machine, incarnation, segment uint64, err error) {
	d := new(Disk)
	if m, segment, err = d.read(file); err != nil {
		return nil, 0, 0, fmt.Errorf("durable: %s: %w", file, err)
	}
	return m, d.Incarnation, segment, nil
}
