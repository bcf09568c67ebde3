package main

import "math/bits"

// The model of docs/scale.md: what an all-reduce of so many bytes costs, by algorithm, and how long that takes at a place.

// Names of algorithms.
const (
	ringName         = "ring"
	doublingName     = "recursive doubling"
	halvingName      = "halving-doubling"
	hierarchicalName = "hierarchical"
	memoryName       = "shared memory"
	starName         = "star"
)

// speed is what a machine can do, in seconds: how long something takes, and how long it keeps a core at work.
type speed struct {
	Message, MessageWork float64 // a step in which a rank sends and receives a little, over a connection
	Byte, ByteWork       float64 // a byte that a rank sends, while it receives another
	Meet, MeetWork       float64 // a step over shared memory
	Combine, Copy        float64 // a byte of a sum of two, and one that is copied: work alone
}

// place is where ranks are: on hosts of so many each.
type place struct {
	speed
	hosts, each int
	cores       float64 // of a host
	latency     float64 // of the network, one way, in seconds
	link        float64 // bytes a second, each way, of a host's link; 0: there is no network
	shared      bool    // hosts are names only: all ranks share one machine's cores
}

func (pl place) ranks() int { return pl.hosts * pl.each }

// crowd is by how much work takes longer because ranks share cores.
func (pl place) crowd() float64 {
	n := pl.each
	if pl.shared {
		n = pl.ranks()
	}
	return max(1, float64(n)/pl.cores)
}

// cost is what one rank does in an all-reduce; all do about as much.
type cost struct {
	steps   float64 // one after the other, over connections
	bytes   float64 // that it sends
	cross   float64 // that a host's link brings, each way, for all of its ranks
	meets   float64 // steps over shared memory
	combine float64 // bytes
	copy    float64 // bytes
}

func (c cost) plus(o cost) cost {
	return cost{c.steps + o.steps, c.bytes + o.bytes, c.cross + o.cross, c.meets + o.meets, c.combine + o.combine, c.copy + o.copy}
}

// time is how long a cost takes, in seconds. Messages of a step wait for each other. Bytes flow in pieces: a link brings the next one while a
// core works on the one before.
func (pl place) time(c cost) float64 {
	crowd := pl.crowd()
	step := max(pl.Message, pl.MessageWork*crowd)
	flow := c.bytes * pl.Byte
	if pl.link > 0 {
		step = pl.latency + pl.MessageWork*crowd
		flow = c.cross / pl.link
	}
	work := (c.bytes*pl.ByteWork + c.combine*pl.Combine + c.copy*pl.Copy) * crowd
	return c.steps*step + max(flow, work) + c.meets*max(pl.Meet, pl.MeetWork*crowd)
}

// costOf is what an algorithm makes ranks do with s bytes.
func costOf(algorithm string, pl place, s float64) cost {
	switch algorithm {
	case ringName:
		return ringCost(pl, s)
	case doublingName:
		return doublingCost(pl, s)
	case halvingName:
		return halvingCost(pl, s)
	case hierarchicalName:
		return hierarchicalCost(pl, s)
	case memoryName:
		return memoryCost(float64(pl.ranks()), s)
	}
	return starCost(pl, s)
}

// ringCost has neighbours that are on one host, but for one of each: so a link brings as much as one rank sends.
func ringCost(pl place, s float64) cost {
	p := float64(pl.ranks())
	moved := 2 * (p - 1) / p * s
	return cost{steps: 2 * (p - 1), bytes: moved, cross: moved, combine: (p - 1) / p * s}
}

// foldCost is of ranks that are no power of two: some give all to another one before, and get it back after, while each link goes one way.
func foldCost(p int, s float64) (power int, c cost) {
	power = 1 << (bits.Len(uint(p)) - 1)
	if power < p {
		c = cost{steps: 2, bytes: 2 * s, cross: 2 * s, combine: s}
	}
	return power, c
}

func logOf(p int) float64 { return float64(bits.Len(uint(p)) - 1) }

// doublingCost has all ranks of a host send all over its link, in each step to another host.
func doublingCost(pl place, s float64) cost {
	p, c := foldCost(pl.ranks(), s)
	n, far := logOf(p), logOf(p)-logOf(min(p, pl.each))
	return c.plus(cost{steps: n, bytes: n * s, cross: float64(pl.each) * far * s, combine: n * s})
}

// halvingCost goes to other hosts first, with the most.
func halvingCost(pl place, s float64) cost {
	p, c := foldCost(pl.ranks(), s)
	part := func(n int) float64 { return float64(n-1) / float64(n) * s }
	far := part(max(1, p/pl.each))
	return c.plus(cost{steps: 2 * logOf(p), bytes: 2 * part(p), cross: 2 * float64(pl.each) * far, combine: part(p)})
}

// What Auto goes by, and how collective parts what is shared: as in its source.
const (
	autoHalving = 128 << 10
	autoRing    = 2 << 20   // of each rank's part
	autoRingOdd = 128 << 10 // the same, of ranks that are no power of two
	smallShared = 8 << 10
	sharedSlot  = 512 << 10
)

// autoName is what Auto takes among ranks that share no memory.
func autoName(p, s float64) string {
	ring := float64(autoRing)
	if n := int(p); n&(n-1) != 0 {
		ring = autoRingOdd
	}
	switch {
	case s < autoHalving:
		return doublingName
	case s/p < ring:
		return halvingName
	}
	return ringName
}

// memoryCost is of p ranks of one host.
func memoryCost(p, s float64) cost {
	if p == 1 {
		return cost{}
	}
	if s <= smallShared {
		return cost{meets: 1, copy: s, combine: (p - 1) * s}
	}
	return cost{meets: 2 * blocks(s), copy: 2 * s, combine: (p - 1) / p * s}
}

func blocks(s float64) float64 { return max(1, float64(int((s+sharedSlot-1)/sharedSlot))) }

// hierarchicalCost is within hosts, then among those with the same place on each, of which each has its part, then within hosts again.
func hierarchicalCost(pl place, s float64) cost {
	if pl.hosts == 1 {
		return memoryCost(float64(pl.each), s)
	}
	k := float64(pl.each)
	column := place{hosts: pl.hosts, each: 1}
	among := costOf(autoName(float64(pl.hosts), s/k), column, s/k)
	among.cross *= k
	if pl.each == 1 {
		return among
	}
	scatter := cost{meets: blocks(s), copy: s, combine: (k - 1) / k * s}
	gather := cost{meets: blocks(s / k), copy: s/k + s}
	return scatter.plus(among).plus(gather)
}

// starCost is of a root that gets everything of everybody, and gives it to everybody.
func starCost(pl place, s float64) cost {
	p := float64(pl.ranks())
	moved := 2 * (p - 1) * s
	return cost{steps: 2, bytes: moved, cross: 2 * (p - float64(pl.each)) * s, combine: (p - 1) * s}
}

// best is the algorithm of names that takes the least time.
func best(pl place, s float64, names ...string) (name string) {
	for _, n := range names {
		if name == "" || pl.time(costOf(n, pl, s)) < pl.time(costOf(name, pl, s)) {
			name = n
		}
	}
	return name
}

// thresholds are the bytes, powers of two, from which on ranks that share no memory do best with halving-doubling, and with the ring; 0: never.
func thresholds(pl place) (halving, ring float64) {
	for s := float64(1 << 30); s >= 64; s /= 2 {
		switch best(pl, s, doublingName, halvingName, ringName) {
		case ringName:
			ring = s
		case halvingName:
			halving = s
		}
	}
	return halving, ring
}
