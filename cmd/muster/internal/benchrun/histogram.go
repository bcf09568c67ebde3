package benchrun

import (
	"maps"
	"math/bits"
	"slices"
	"time"
)

// Histogram counts durations in buckets that are less than 1 % wide.
type Histogram struct {
	Buckets map[int]int
	Count   int
	Sum     time.Duration
}

const fine = 8 // leading bits of a duration that determine its bucket

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	if h.Buckets == nil {
		h.Buckets = map[int]int{}
	}
	v := uint64(max(d, 0))
	shift := max(0, bits.Len64(v)-fine)
	h.Buckets[shift<<fine|int(v>>shift)]++
	h.Count++
	h.Sum += d
}

// Merge adds the counts of o.
func (h *Histogram) Merge(o Histogram) {
	if h.Buckets == nil {
		h.Buckets = map[int]int{}
	}
	for b, n := range o.Buckets {
		h.Buckets[b] += n
	}
	h.Count += o.Count
	h.Sum += o.Sum
}

// Quantile returns the duration that a fraction q of all durations do not exceed.
func (h *Histogram) Quantile(q float64) time.Duration {
	left := int(q * float64(h.Count))
	for _, b := range slices.Sorted(maps.Keys(h.Buckets)) {
		if left -= h.Buckets[b]; left < 0 {
			shift := b >> fine
			return time.Duration(b&(1<<fine-1)<<shift + 1<<shift>>1)
		}
	}
	return 0
}

// Mean returns the mean of all durations.
func (h *Histogram) Mean() time.Duration { return h.Sum / time.Duration(max(h.Count, 1)) }
