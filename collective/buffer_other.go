//go:build !linux

package collective

import (
	"context"

	"github.com/muster-pg/muster/shm"
)

// sharedBuffers is a medium that is not implemented on this system.
type sharedBuffers struct{ medium }

func newSharedBuffer() (*sharedBuffers, *shm.Ref) { return nil, nil }

func (m *sharedBuffers) discard() {}

func (m *sharedBuffers) connect(context.Context, *core, []int, int, []*shm.Ref) error {
	return shm.ErrUnsupported
}
