// Package tensorstats computes how the elements of a tensor are spread: minimum, maximum, mean,
// standard deviation, and counts of the finite ones, and the numbers of the special ones.
package tensorstats

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime/debug"

	"github.com/muster-pg/muster/tensor"
)

const (
	blockLen = 1 << 14 // elements in memory at a time
	binCount = 16
)

// Stats contains the statistics of the elements of one tensor.
type Stats struct {
	NaN   int64 `json:"nan"`
	Inf   int64 `json:"inf"`
	Zeros int64 `json:"zeros"`

	*Spread // nil if no element is finite
}

// Spread contains the statistics of the finite elements.
type Spread struct {
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
	Mean float64 `json:"mean"`
	// the population standard deviation: the sum of squares is divided by n, not n-1
	Std float64 `json:"std"`
	// counts of the elements in equal parts of the range from Min to Max
	Bins [binCount]int64 `json:"bins"`
}

// Ordered reports whether elements of a dtype can be ordered.
func Ordered(dt tensor.DType) bool { return dt != tensor.C64 }

// Of returns the statistics of t, which it reads with e block by block, once or twice. If the mapped
// file is truncated meanwhile, it returns an error instead of a fault.
func Of(ctx context.Context, e *Reader, t *tensor.Tensor) (s *Stats, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // a fault in the mapping
			s, err = nil, errors.New("the file was cut off, or cannot be read any more")
		default:
			panic(r)
		}
	}()
	if hasCodes(t.DType) {
		return statsOfCodes(ctx, &e.codes, t)
	}
	s = &Stats{}
	e.begin(t)
	if err := s.limits(ctx, e); err != nil || s.Spread == nil {
		return s, err
	}
	e.begin(t)
	return s, s.measure(ctx, e)
}

// limits are the minimum and maximum of the finite elements seen so far.
type limits struct {
	some   bool
	lo, hi float64
}

// spread returns a Spread with these limits, or nil if there were no elements.
func (l *limits) spread() *Spread {
	if !l.some {
		return nil
	}
	return &Spread{Min: l.lo, Max: l.hi}
}

// note counts n elements with the value x.
func (s *Stats) note(l *limits, x float64, n int64) {
	switch {
	case math.IsNaN(x):
		s.NaN += n
		return
	case math.IsInf(x, 0):
		s.Inf += n
		return
	case x == 0:
		s.Zeros += n
		x = 0 // not -0
	}
	if !l.some {
		*l = limits{true, x, x}
	}
	l.lo, l.hi = min(l.lo, x), max(l.hi, x)
}

// limits counts NaN, infinite and zero elements, and finds Min and Max.
func (s *Stats) limits(ctx context.Context, e *Reader) error {
	var l limits
	for {
		block, err := e.next(ctx)
		if err != nil {
			return err
		}
		if len(block) == 0 {
			break
		}
		for _, x := range block {
			if !(x > l.lo && x < l.hi && x != 0) { // most elements are within the limits
				s.note(&l, x, 1)
			}
		}
	}
	s.Spread = l.spread()
	return nil
}

// frame returns the middle of the range and half of its width. Elements are mapped with them to the
// range from -1 to 1, so that nothing overflows.
func (s *Spread) frame() (mid, half float64) {
	if half = s.Max/2 - s.Min/2; half == 0 {
		return s.Min, 1
	}
	return s.Min/2 + s.Max/2, half
}

// binOf returns the bin of an element that was mapped to the range from -1 to 1.
func binOf(y float64) int { return max(0, min(binCount-1, int((y+1)*(binCount/2)))) }

// measure computes the mean, the standard deviation and the bins.
func (s *Spread) measure(ctx context.Context, e *Reader) error {
	mid, half := s.frame()
	var all moments
	for {
		block, err := e.next(ctx)
		if err != nil {
			return err
		}
		if len(block) == 0 {
			break
		}
		moved := block[:0]
		for _, x := range block {
			if x-x == 0 {
				y := (x - mid) / half
				moved = append(moved, y)
				s.Bins[binOf(y)]++
			}
		}
		all.add(moved)
	}
	s.Mean, s.Std = mid+half*all.mean, half*math.Sqrt(all.squares/all.n)
	return nil
}

// moments are the mean of n numbers, and the sum of the squares of their distances from it.
type moments struct{ n, mean, squares float64 }

// add adds a block of numbers by combining its mean with that of the previous numbers, so that no
// digits are lost if the numbers are close to each other.
func (m *moments) add(block []float64) {
	n := float64(len(block))
	if n == 0 {
		return
	}
	sum, squares := 0.0, 0.0
	for _, y := range block {
		sum += y
	}
	mean := sum / n
	for _, y := range block {
		squares += (y - mean) * (y - mean)
	}
	far, total := mean-m.mean, m.n+n
	m.squares += squares + far*far*m.n*n/total
	m.mean += far * n / total
	m.n = total
}

// Reader reads the elements of a tensor as float64, block by block. One Reader is used for many
// tensors.
type Reader struct {
	t      *tensor.Tensor
	at     int
	codes  codeCounts
	narrow [blockLen]float32
	wide   [blockLen]float64
}

func (e *Reader) begin(t *tensor.Tensor) { e.t, e.at = t, 0 }

// next returns the next block, which is valid until the next call and may be modified; it is empty
// at the end.
func (e *Reader) next(ctx context.Context) ([]float64, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	n := min(blockLen, e.t.Len()-e.at)
	from := e.at
	e.at += n
	if wide := wideOf(e.t.DType); wide != nil {
		size := e.t.DType.Bits() / 8
		wide(e.wide[:n], e.t.Data[from*size:])
		return e.wide[:n], nil
	}
	if _, err := e.t.Float32sAt(e.narrow[:n], from); err != nil {
		return nil, fmt.Errorf("elements from %d on: %w", from, err)
	}
	for i, x := range e.narrow[:n] {
		e.wide[i] = float64(x)
	}
	return e.wide[:n], nil
}

// wideOf returns a function that decodes elements that a float32 would round, or nil for other
// dtypes.
func wideOf(dt tensor.DType) func(dst []float64, data []byte) {
	le := binary.LittleEndian
	switch dt {
	case tensor.F64:
		return func(dst []float64, data []byte) {
			for i := range dst {
				dst[i] = math.Float64frombits(le.Uint64(data[8*i:]))
			}
		}
	case tensor.I64:
		return func(dst []float64, data []byte) {
			for i := range dst {
				dst[i] = float64(int64(le.Uint64(data[8*i:])))
			}
		}
	case tensor.U64:
		return func(dst []float64, data []byte) {
			for i := range dst {
				dst[i] = float64(le.Uint64(data[8*i:]))
			}
		}
	case tensor.I32:
		return func(dst []float64, data []byte) {
			for i := range dst {
				dst[i] = float64(int32(le.Uint32(data[4*i:])))
			}
		}
	case tensor.U32:
		return func(dst []float64, data []byte) {
			for i := range dst {
				dst[i] = float64(le.Uint32(data[4*i:]))
			}
		}
	}
	return nil
}
