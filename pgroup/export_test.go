package pgroup

import (
	"io"
	"log/slog"
	"os"

	"github.com/muster-pg/muster/internal/hostmem"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/trace"
)

// These expose internals to the tests.
var (
	FirstHost = firstHost
	Clip      = clip
)

// KillHost ends the server of a group's store without a proper shutdown, as the end of its process
// does.
func KillHost(g *Group) { _ = g.shared.server.Close() }

// ShareMemory makes ranks of one process share the memory that ranks of several processes would.
func ShareMemory(gs []*Group) error {
	m, ref, err := hostmem.Create(0, len(gs), gs[0].cfg.Timeout)
	if err != nil {
		return err
	}
	gs[0].mem.opened.Store(m)
	for _, g := range gs[1:] {
		if m, err = hostmem.Open(ref, g.rank, len(gs), g.cfg.Timeout); err != nil {
			return err
		}
		g.mem.opened.Store(m)
	}
	return nil
}

// DecidedInMemory returns how many operations of g were decided in shared memory.
func DecidedInMemory(g *Group) int { return g.mem.decided }

// PassedInMemory returns how many messages of g were passed in shared memory.
func PassedInMemory(g *Group) uint64 { return g.mem.passed.Load() }

// StoreOf returns the store of g, without a prefix.
func StoreOf(g *Group) *store.Store { return g.store }

// EndTrace ends the trace file of a group, as its last handle does, with w in place of the file for
// the writes.
func EndTrace(f *os.File, w io.Writer, l *slog.Logger) {
	(&traceFile{ChromeWriter: trace.Chrome(w), f: f}).release(&Config{Logger: l})
}

// Seq returns the number of the last collective operation of g.
func Seq(g *Group) uint64 { return g.seq.Load() }
