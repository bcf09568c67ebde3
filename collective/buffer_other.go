//go:build !linux

package collective

import (
	"context"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
)

// sharedBuffers is never used: shared memory needs Linux, and ranks on other systems use TCP.
type sharedBuffers struct{ medium }

func newSharedBuffer(pgroup.SharedMemory) (*sharedBuffers, *shm.Ref) { return nil, nil }

func (m *sharedBuffers) discard() {}

func (m *sharedBuffers) connect(context.Context, *core, []int, int, []*shm.Ref) error {
	return shm.ErrUnsupported
}
