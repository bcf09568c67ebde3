package main

import (
	"fmt"
	"math"
	"testing"
)

// same fails unless two figures are the same but for rounding.
func same(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*math.Max(1, math.Abs(want)) {
		t.Errorf("%s is %v, not %v", what, got, want)
	}
}

// TestClosedForms wants of each algorithm what the books say of p ranks, each on a host of its own.
func TestClosedForms(t *testing.T) {
	const s = 1 << 20
	for _, p := range []int{2, 4, 8, 16, 1024} {
		n, logP := float64(p), math.Log2(float64(p))
		pl := place{hosts: p, each: 1}
		for _, x := range []struct {
			algorithm             string
			steps, bytes, combine float64
		}{
			{ringName, 2 * (n - 1), 2 * (n - 1) / n * s, (n - 1) / n * s},
			{doublingName, logP, logP * s, logP * s},
			{halvingName, 2 * logP, 2 * (n - 1) / n * s, (n - 1) / n * s},
			{starName, 2, 2 * (n - 1) * s, (n - 1) * s},
		} {
			c := costOf(x.algorithm, pl, s)
			name := fmt.Sprint(x.algorithm, " of ", p)
			same(t, name+": steps", c.steps, x.steps)
			same(t, name+": bytes", c.bytes, x.bytes)
			same(t, name+": combined", c.combine, x.combine)
			same(t, name+": on the link", c.cross, c.bytes)
		}
	}
}

// TestFold adds what ranks do that are no power of two.
func TestFold(t *testing.T) {
	const s = 1 << 20
	for p, power := range map[int]int{3: 2, 6: 4, 12: 8, 1000: 512} {
		for _, name := range []string{doublingName, halvingName} {
			c, whole := costOf(name, place{hosts: p, each: 1}, s), costOf(name, place{hosts: power, each: 1}, s)
			same(t, name+": steps", c.steps, whole.steps+2)
			same(t, name+": bytes", c.bytes, whole.bytes+2*s)
		}
	}
}

// TestLinks wants of a host's link what its ranks send to other hosts together.
func TestLinks(t *testing.T) {
	const s = 1 << 20
	pl := place{hosts: 4, each: 8}
	same(t, "ring", costOf(ringName, pl, s).cross, 2*31.0/32*s) // one of the neighbours alone is on another host
	same(t, "doubling", costOf(doublingName, pl, s).cross, 8*2*s)
	same(t, "halving", costOf(halvingName, pl, s).cross, 8*2*3.0/4*s)
	same(t, "hierarchical", costOf(hierarchicalName, pl, s*8).cross, 2*3.0/4*s*8)
	same(t, "star", costOf(starName, pl, s).cross, 2*(32-8)*s)
	for _, name := range []string{doublingName, halvingName, ringName} {
		one := place{hosts: 1, each: 8}
		if c := costOf(name, one, s).cross; name != ringName && c != 0 {
			t.Errorf("%s within a host: %v bytes on a link", name, c)
		}
	}
}

func TestMemoryCost(t *testing.T) {
	same(t, "one rank", memoryCost(1, mib).copy, 0)
	same(t, "small: steps", memoryCost(4, 8*kib).meets, 1)
	same(t, "small: combined", memoryCost(4, 8*kib).combine, 3*8*kib)
	same(t, "a block", memoryCost(4, 64*kib).meets, 2)
	same(t, "16 MiB: steps", memoryCost(4, 16*mib).meets, 64)
	same(t, "16 MiB: copied", memoryCost(4, 16*mib).copy, 32*mib)
	same(t, "16 MiB: combined", memoryCost(4, 16*mib).combine, 12*mib)
}

// TestHierarchicalOfOneRankEach is what is among the hosts alone.
func TestHierarchicalOfOneRankEach(t *testing.T) {
	for s, name := range map[float64]string{kib: doublingName, 128 * kib: halvingName, 16 * mib: ringName} {
		pl := place{hosts: 8, each: 1}
		if a, b := costOf(hierarchicalName, pl, s), costOf(name, pl, s); a != b {
			t.Errorf("%v bytes: %v is not %v", s, a, b)
		}
	}
}

// TestTime: on an ideal network a ring takes 2(p−1) latencies and 2(p−1)/p of the bytes, whatever the cores do meanwhile.
func TestTime(t *testing.T) {
	pl := place{hosts: 16, each: 1, cores: 1, latency: 1e-5, link: 1e9}
	same(t, "ring", pl.time(costOf(ringName, pl, 1e9)), 30*1e-5+2*15.0/16)
	same(t, "doubling", pl.time(costOf(doublingName, pl, 8)), 4*1e-5+4*8e-9)
	pl.ByteWork = 3e-9 // of which a core can do less than the link
	same(t, "ring with work", pl.time(costOf(ringName, pl, 1e9)), 30*1e-5+3*2*15.0/16)
}

// TestCrowd has ranks share the cores of one machine: work takes longer, and waiting does not.
func TestCrowd(t *testing.T) {
	pl := place{speed: speed{Message: 3e-5, MessageWork: 1e-5}, hosts: 4, each: 1, cores: 2, shared: true}
	same(t, "4 ranks on 2 cores", pl.time(cost{steps: 10}), 10*3e-5)
	pl.hosts = 16
	same(t, "16 ranks on 2 cores", pl.time(cost{steps: 10}), 10*8*1e-5)
	pl.shared = false
	same(t, "each with 2 cores", pl.time(cost{steps: 10}), 10*3e-5)
	same(t, "combining", place{speed: speed{Combine: 1e-9}, hosts: 2, each: 8, cores: 4}.time(cost{combine: 1e9}), 2)
}

// TestStarOverLinks: a star moves (p−1) times as much through its root as a ring's busiest link has, but for the last pth.
func TestStarOverLinks(t *testing.T) {
	for _, p := range []int{4, 8, 64} {
		pl := place{hosts: p, each: 1, cores: 1, link: 1e9}
		star, ring := pl.time(costOf(starName, pl, 1e9)), pl.time(costOf(ringName, pl, 1e9))
		same(t, "star ÷ ring", star/ring, float64(p))
	}
}

func TestThresholds(t *testing.T) {
	pl := networks[0].place(speed{MessageWork: 1e-5}, 8, 1)
	halving, ring := thresholds(pl)
	if ring != 0 {
		t.Errorf("the ring is best from %v bytes on, though halving-doubling has fewer steps and moves as much", ring)
	}
	// 3 more steps of 60 µs for 3 − 2·7/8 of the bytes at 1.25 GB/s: from 180 KB on.
	if halving != 256*kib {
		t.Errorf("halving-doubling is best from %v bytes on", halving)
	}
	pl.hosts = 12
	if _, ring := thresholds(pl); ring == 0 {
		t.Error("12 ranks: the ring, which needs no power of two, is never best")
	}
	if name := best(pl, 8, doublingName, halvingName, ringName); name != doublingName {
		t.Errorf("8 bytes: %s", name)
	}
}

func TestAutoName(t *testing.T) {
	for name, ps := range map[string][][2]float64{
		doublingName: {{4, 8}, {3, 8}},
		halvingName:  {{4, autoHalving}, {4, autoRing}, {3, autoHalving}},
		ringName:     {{4, 4 * autoRing}, {3, 3 * autoRingOdd}},
	} {
		for _, c := range ps {
			if got := autoName(c[0], c[1]); got != name {
				t.Errorf("%v ranks, %v bytes: %s", c[0], c[1], got)
			}
		}
	}
}
