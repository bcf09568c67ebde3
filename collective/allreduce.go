package collective

import (
	"slices"

	"github.com/muster-pg/muster/internal/reduce"
	"github.com/muster-pg/muster/tensor"
)

// The sizes from which on Auto uses an algorithm instead of the one before
// (docs/explanation/benchmarks.md, docs/explanation/scale.md).
const (
	leastHalving = 128 << 10 // bytes
	leastRing    = 2 << 20   // bytes of each rank's chunk
	// the same, if the number of ranks is no power of two: then some wait for others in halving
	leastRingOdd = 128 << 10
)

// placement is the hosts of the ranks, from the view of one rank.
type placement struct {
	hosts   [][]int // the ranks of each host; hosts and ranks in order
	columns int     // the minimum number of ranks of a host
	place   int     // index of this rank on its host
	node    int     // index of this rank's host
	column  []int   // the rank of each host at the same place, if all have one
	all     []int
}

func newPlacement(hosts [][]int, rank int) (s placement) {
	s.hosts, s.columns = hosts, len(hosts[0])
	for i, ranks := range hosts {
		s.columns = min(s.columns, len(ranks))
		s.all = append(s.all, ranks...)
		if at := slices.Index(ranks, rank); at >= 0 {
			s.node, s.place = i, at
		}
	}
	slices.Sort(s.all)
	for _, ranks := range hosts {
		if s.place < s.columns {
			s.column = append(s.column, ranks[s.place])
		}
	}
	return s
}

// neighbours returns the ranks of this rank's host, including itself.
func (s *placement) neighbours() []int { return s.hosts[s.node] }

// allReduce runs AllReduce over connections, and within hosts over shared memory if they have it.
func (c *call) allReduce(x vector) error {
	alg := c.opts.Algorithm
	hierarchical := c.shared && (alg == Auto || alg == Hierarchical)
	if c.dt != tensor.F16 && c.dt != tensor.BF16 {
		return c.reduceWith(alg, hierarchical, x)
	}
	if x.n >= leastHalving && alg == Auto && !hierarchical {
		return c.reduceOnce(x)
	}
	c.dt16, c.dt, c.elem = c.dt, tensor.F32, 4
	wide := c.widen(x)
	if err := c.reduceWith(alg, hierarchical, one(wide)); err != nil {
		return err
	}
	if c.div > 1 && c.dt16 == tensor.BF16 && reduce.Overflows(wide) {
		// A sum of float32s may overflow although the average does not. All ranks have the same
		// sum, so all of them decide alike to divide first.
		wide = c.widen(x)
		reduce.Scale(wide, c.div)
		c.div = 1
		if err := c.reduceWith(alg, hierarchical, one(wide)); err != nil {
			return err
		}
	}
	for at, half := range x.slices() {
		reduce.Narrow(c.dt16, half, wide[2*at:][:2*len(half)])
	}
	return nil
}

func (c *call) reduceWith(alg Algorithm, hierarchical bool, x vector) error {
	if hierarchical {
		return c.hierarchical(x)
	}
	return c.flat(alg, c.placement.all, c.rank(), x)
}

// reduceOnce makes every rank combine one chunk of all ranks' x in one step. So 16-bit floats are
// rounded once, and no intermediate sum overflows.
func (c *call) reduceOnce(x vector) error {
	p, me := c.size(), c.rank()
	chunk := func(i int) vector { return c.chunk(x, i, p) }
	if err := c.direct(c.placement.all, me, chunk(me), chunk); err != nil {
		return err
	}
	return c.ringGather(c.placement.all, me, chunk)
}

// widen returns x, of 16-bit floats, as float32.
func (c *call) widen(x vector) []byte {
	wide := c.wideBuffer(2 * x.n)
	for at, half := range x.slices() {
		reduce.Widen(c.dt16, wide[2*at:][:2*len(half)], half)
	}
	return wide
}

// flat reduces over connections, without regard to hosts.
func (c *call) flat(alg Algorithm, ranks []int, me int, x vector) error {
	if alg == Auto || alg == Hierarchical {
		alg = best(len(ranks), x.n)
	}
	switch alg {
	case RecursiveDoubling:
		return c.doubling(ranks, me, x)
	case HalvingDoubling:
		return c.halving(ranks, me, x)
	}
	return c.ring(ranks, me, x)
}

// best returns the algorithm that Auto chooses for p ranks without shared memory and n bytes.
func best(p, n int) Algorithm {
	ring := leastRing
	if p&(p-1) != 0 {
		ring = leastRingOdd
	}
	switch {
	case n < leastHalving:
		return RecursiveDoubling
	case n/p < ring:
		return HalvingDoubling
	}
	return Ring
}

// hierarchical splits x into chunks, one for each of the first ranks of every host. The number of
// chunks is the smallest number of ranks of a host. These ranks combine their chunk within the
// host, then with the ranks at the same place on other hosts, and then all ranks of the host get
// it. It divides once, by the total number of ranks, so hosts may have different numbers of them.
func (c *call) hierarchical(x vector) error {
	s := &c.placement
	var mine vector
	if s.place < s.columns {
		mine = c.chunk(x, s.place, s.columns)
	}
	if c.local != nil {
		if err := c.local.scatter(c, x, s.columns, 1, mine); err != nil {
			return err
		}
	}
	if s.place < s.columns {
		if err := c.flat(Auto, s.column, s.node, mine); err != nil {
			return err
		}
	}
	if c.local == nil {
		return nil
	}
	return c.local.gather(c, x, s.columns)
}
