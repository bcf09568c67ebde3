package transport_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/transport"
)

// gate is a log that a test commits.
type gate struct {
	committed uint64
	held      int
	awaits    map[*transport.Outbox]uint64
}

func (g *gate) Committed() uint64 { return g.committed }
func (g *gate) AddHeld(n int)     { g.held += n }

func (g *gate) Await(o *transport.Outbox, pos uint64) bool {
	if pos <= g.committed {
		return false
	}
	g.awaits[o] = pos
	return true
}

// commit commits up to pos, and flushes the outboxes that wait for a commit.
func (g *gate) commit(pos uint64) {
	g.committed = pos
	awaits := g.awaits
	g.awaits = map[*transport.Outbox]uint64{}
	for o := range awaits {
		o.Flush()
	}
}

func gated(p *pipe, limit int) (*transport.Outbox, *gate) {
	g := &gate{awaits: map[*transport.Outbox]uint64{}}
	o := transport.NewOutbox(p, limit)
	o.Gate = g
	return o, g
}

func appendAt(o *transport.Outbox, pos uint64, s string) int {
	return o.AppendAt(pos, func(b []byte) []byte { return append(b, s...) })
}

// TestGateIsPassed checks that an urgent frame overtakes held ones, and that Release moves only the
// frames up to its offset.
func TestGateIsPassed(t *testing.T) {
	p := &pipe{take: 1 << 20}
	o, g := gated(p, 100)
	appendAt(o, 1, "welcome ")
	end := o.Held()
	appendAt(o, 1, "answer ")
	appendAt(o, 2, "another")
	o.AppendUrgent(func(b []byte) []byte { return append(b, "probe "...) })
	o.Flush()
	require.Equal(t, "probe ", p.got.String())
	o.Release(end)
	o.Release(end)
	o.Flush()
	require.Equal(t, "probe welcome ", p.got.String())
	g.commit(1)
	o.Release(end)
	require.Equal(t, "probe welcome answer ", p.got.String())
	g.commit(2)
	require.Equal(t, "probe welcome answer another", p.got.String())
}

// TestGateCountsNoPeerAsSlow checks that held frames do not make a peer slow, and that reading from
// the peer is paused until all of them are written.
func TestGateCountsNoPeerAsSlow(t *testing.T) {
	p := &pipe{take: 1 << 20}
	o, g := gated(p, 5)
	o.Budget = transport.NewBudget(1000)
	drained := 0
	o.Drained = func() { drained++ }
	for range 10 {
		appendAt(o, 1, strings.Repeat("x", 10))
	}
	o.Flush()
	require.NoError(t, o.Err())
	require.EqualValues(t, 100, o.Budget.Used())
	waiting, _ := o.Backlog()
	require.Zero(t, waiting)
	require.True(t, o.Blocked(20))
	require.Zero(t, drained)
	g.commit(1)
	require.Equal(t, 1, drained)
	require.Equal(t, 100, p.got.Len())
	require.Zero(t, o.Budget.Used())
}

// TestGateOfAConnectionThatEnds checks that the end of a connection returns the bytes of its held
// frames to the budget.
func TestGateOfAConnectionThatEnds(t *testing.T) {
	o, g := gated(&pipe{take: 1 << 20}, 100)
	o.Budget = transport.NewBudget(1 << 20)
	appendAt(o, 1, "held")
	o.AppendShared(1, []byte("head"), &transport.Body{Bytes: make([]byte, transport.ShareFrom)})
	require.EqualValues(t, transport.ShareFrom+8, o.Budget.Used())
	o.Discard()
	require.Zero(t, o.Budget.Used())
	require.Zero(t, g.held)
	o.Release(1000)
	g.commit(1)
	require.EqualValues(t, 0, appendAt(o, 9, "late"))
}

// TestGateOfAnyFrames checks that frames of any sizes, shared or not, arrive complete, in order,
// and never before their position is committed, through a pipe that accepts any number of bytes.
func TestGateOfAnyFrames(t *testing.T) {
	for seed := range uint64(200) {
		chance := rand.New(rand.NewPCG(seed, 0))
		p := &pipe{}
		o, g := gated(p, 1<<30)
		o.Budget = transport.NewBudget(1 << 40)
		var want strings.Builder
		var begins []int
		var needs []uint64 // position of each frame
		pos, highest := uint64(0), uint64(0)
		for step := range 200 {
			switch chance.IntN(6) {
			case 0, 1, 2:
				uncopied := chance.IntN(8) == 0
				pos += uint64(chance.IntN(3))
				highest = max(highest, pos)
				frame := fmt.Sprintf("<%d %s>", step, strings.Repeat("x", chance.IntN(30)*chance.IntN(30)))
				if uncopied {
					body := frame + strings.Repeat("z", transport.ShareFrom)
					o.AppendUncopied(pos, []byte("head"), []byte(body))
					frame = "head" + body
				} else if chance.IntN(4) == 0 {
					body := frame + strings.Repeat("y", chance.IntN(2)*transport.ShareFrom)
					o.AppendShared(pos, []byte("head"), &transport.Body{Bytes: []byte(body)})
					frame = "head" + body
				} else {
					appendAt(o, pos, frame)
				}
				begins, needs = append(begins, want.Len()), append(needs, highest)
				want.WriteString(frame)
			case 3:
				g.commit(g.committed + uint64(chance.IntN(3)))
			case 4:
				o.Flush()
			case 5:
				p.more(chance.IntN(20_000))
			}
			if i := slices.IndexFunc(needs, func(pos uint64) bool { return pos > g.committed }); i >= 0 {
				require.LessOrEqual(t, p.got.Len(), begins[i], "seed %d: frame %d needs %d, %d is committed", seed, i, needs[i], g.committed)
			}
		}
		o.Flush()
		g.commit(highest)
		p.more(1 << 30)
		o.Flush()
		require.Equal(t, want.String(), p.got.String(), "seed %d", seed)
		require.Zero(t, g.held)
		require.Zero(t, o.Budget.Used())
	}
}

// racing is a gate that commits between Committed and Await.
type racing struct{ *gate }

func (g racing) Await(o *transport.Outbox, pos uint64) bool {
	g.committed = pos
	return g.gate.Await(o, pos)
}

// TestGateThatCommitsMeanwhile checks that a frame is written at once if its position is committed
// between Committed and Await: no later commit may flush it.
func TestGateThatCommitsMeanwhile(t *testing.T) {
	p := &pipe{take: 1 << 20}
	o, g := gated(p, 100)
	o.Gate = racing{g}
	appendAt(o, 1, "held")
	o.Flush()
	require.Equal(t, "held", p.got.String())
	require.Empty(t, g.awaits)
}

// TestGateAndBudget checks that a peer for which no bytes wait is not slow, even if frames held for
// other peers use up the budget.
func TestGateAndBudget(t *testing.T) {
	budget := transport.NewBudget(10)
	holder, g := gated(&pipe{take: 1 << 20}, 100)
	reader, _ := gated(&pipe{take: 1 << 20}, 100)
	holder.Budget, reader.Budget = budget, budget
	appendAt(holder, 1, strings.Repeat("x", 20))
	add(reader, "small")
	add(reader, "small") // of two requests in one batch: nothing was written yet
	require.NoError(t, reader.Err())
	reader.Flush()
	add(reader, "small")
	require.NoError(t, reader.Err())
	add(reader, strings.Repeat("x", 65<<10))
	add(reader, "more than a few small answers")
	require.ErrorIs(t, reader.Err(), transport.ErrSlow)
	g.commit(1)
	require.NoError(t, holder.Err())
}
