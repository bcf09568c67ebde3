//go:build !linux

package collective

import (
	"context"

	"github.com/muster-pg/muster/shm"
)

// boards is a medium that this system does not have.
type boards struct{ medium }

func newBoard() (*boards, *shm.Ref) { return nil, nil }

func (m *boards) discard() {}

func (m *boards) connect(context.Context, *core, []int, int, []*shm.Ref) error {
	return shm.ErrUnsupported
}
