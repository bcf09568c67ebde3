package collective

import (
	"slices"

	"github.com/muster-pg/muster/internal/reduce"
	"github.com/muster-pg/muster/tensor"
)

// Where an algorithm is better than the one before, of those that Auto chooses from
// (docs/explanation/benchmarks.md, docs/explanation/scale.md).
const (
	leastHalving = 128 << 10 // bytes
	leastRing    = 2 << 20   // bytes of each rank's chunk
	leastRingOdd = 128 << 10 // the same, of ranks that are no power of two, of which some wait for others in halving
)

// placement is the nodes of the ranks, as one of them sees it.
type placement struct {
	hosts   [][]int // the ranks of each node, both in order
	columns int     // how many ranks each node has at least
	place   int     // of this rank on its node
	node    int     // this rank's
	column  []int   // the rank of each node at this one's place, if all have one
	all     []int
}

func newSites(hosts [][]int, rank int) (s placement) {
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

// neighbours are the ranks of this one's node, itself among them.
func (s *placement) neighbours() []int { return s.hosts[s.node] }

// allReduce is AllReduce over connections, and within hosts if they have memory that they share.
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
		// A sum of float32s may be too large though the average is not. All ranks have the same
		// sum, and so divide first, all of them.
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

// reduceOnce has every rank combine a chunk of all ranks' x in one step: 16-bit floats are rounded
// once, and nothing between is too large for them.
func (c *call) reduceOnce(x vector) error {
	p, me := c.size(), c.rank()
	chunk := func(i int) vector { return c.chunk(x, i, p) }
	if err := c.direct(c.placement.all, me, chunk(me), chunk); err != nil {
		return err
	}
	return c.ringGather(c.placement.all, me, chunk)
}

// widen is x, of 16-bit floats, as float32.
func (c *call) widen(x vector) []byte {
	wide := c.wideBuffer(2 * x.n)
	for at, half := range x.slices() {
		reduce.Widen(c.dt16, wide[2*at:][:2*len(half)], half)
	}
	return wide
}

// flat is over connections among ranks that are all alike.
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

// best is what Auto takes among p ranks that share no memory, for n bytes.
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

// hierarchical splits x into chunks, one for each of the first ranks of every node, as many as all
// nodes have. These ranks combine their chunk within the node, then with the ranks at their place
// on other nodes, and copy it to all. It divides once, by the number of all ranks, so nodes may
// have different numbers of them.
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
