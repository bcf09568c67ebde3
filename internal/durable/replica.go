package durable

import (
	"fmt"
	"path/filepath"

	"github.com/muster-pg/muster/internal/core"
)

// Replica is a log that several processes can read, and one at a time can append to. It takes the
// place of a directory.
type Replica struct {
	Incarnation uint64 // of the machine's state
	New         bool   // the machine is new: it has no sessions that may reconnect
	Log         Log
	// Install makes a checkpoint current. file is sealed, and segment is the log segment that
	// follows it.
	Install func(file string, segment uint64) error
	// Failed is closed when another process has taken Log over, or it cannot be reached: nothing
	// more can be appended.
	Failed <-chan struct{}
}

// Continue returns a Disk for m, which has replayed all of r's log.
func Continue(r *Replica, m *core.Machine, limits core.Limits, o *Options) (*Disk, error) {
	d := &Disk{Incarnation: r.Incarnation, options: o.withDefaults(), log: r.Log, replica: r, stop: make(chan struct{})}
	if err := d.resume(m, limits, !r.New); err != nil {
		return nil, fmt.Errorf("durable: %w", err)
	}
	return d, nil
}

// CheckpointOf returns the path of the checkpoint in dir.
func CheckpointOf(dir string) string { return filepath.Join(dir, checkpointName) }

// ReadCheckpoint reads a checkpoint file, as Install gets it or CheckpointOf names it, into a new
// machine.
func ReadCheckpoint(file string) (m *core.Machine, incarnation, segment uint64, err error) {
	d := new(Disk)
	if m, segment, err = d.read(file); err != nil {
		return nil, 0, 0, fmt.Errorf("durable: %s: %w", file, err)
	}
	return m, d.Incarnation, segment, nil
}
