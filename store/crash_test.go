package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// process is a durable server in a separate process, which can be killed and started again at the
// same address.
type process struct {
	*launch.Process
	addr, arg string
}

func newProcess(t *testing.T) *process {
	t.Helper()
	p := &process{addr: testcluster.Port(t)}
	p.arg = t.TempDir() + " " + p.addr
	p.start(t)
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.Process, _ = testcluster.Addressed(t, "server", p.arg)
}

func (p *process) kill(t *testing.T) { testcluster.Kill(t, p.Process) }

// TestKillNine kills a durable server again and again while a group works. No call of a rank fails, each
// change is made exactly once, and a lease lives.
func TestKillNine(t *testing.T) {
	t.Parallel()
	const kills, ranks = 6, 8
	p := newProcess(t)
	ctx := bounded(t)
	var stores []*store.Store
	for range ranks {
		stores = append(stores, dial(t, p.addr))
	}
	g := teamOf(t, stores...)
	holder, watcher := dial(t, p.addr), dial(t, p.addr)
	lease, err := holder.Lease(ctx, 10*time.Second)
	require.NoError(t, err)
	require.NoError(t, holder.Set(ctx, "held", []byte("by lease"), &store.SetOptions{Lease: lease}))
	sum := func() int64 {
		n, err := watcher.Add(ctx, "sum", 0)
		assert.NoError(t, err)
		return n
	}
	g.rounds(func() {
		for range kills {
			before := sum()
			for ctx.Err() == nil && sum() < before+10*ranks { // some work between two kills
			}
			p.kill(t)
			p.start(t)
		}
	})
	holds(t, holder, "held", "by lease")
	require.NoError(t, lease.Err())
	require.NoError(t, lease.Close(ctx))
	absent(t, holder, "held")
}
