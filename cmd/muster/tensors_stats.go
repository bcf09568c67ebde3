package main

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
	statsBlock = 1 << 14 // elements in memory at a time
	statsBins  = 16
)

// tensorStats contains the statistics of the elements of one tensor.
type tensorStats struct {
	NaN   int64 `json:"nan"`
	Inf   int64 `json:"inf"`
	Zeros int64 `json:"zeros"`

	*spread // nil if no element is finite
}

// spread contains the statistics of the finite elements.
type spread struct {
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
	Mean float64 `json:"mean"`
	// the population standard deviation: the sum of squares is divided by n, not n-1
	Std float64 `json:"std"`
	// counts of the elements in equal parts of the range from Min to Max
	Bins [statsBins]int64 `json:"bins"`
}

// hasStats reports whether elements of a dtype can be ordered.
func hasStats(dt tensor.DType) bool { return dt != tensor.C64 }

// statsOf reads t block by block, once or twice. If the mapped file is truncated meanwhile, it
// returns an error instead of a fault.
func statsOf(ctx context.Context, e *elements, t *tensor.Tensor) (s *tensorStats, err error) {
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
	s = &tensorStats{}
	e.begin(t)
	if err := s.limits(ctx, e); err != nil || s.spread == nil {
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

// spread returns a spread with these limits, or nil if there were no elements.
func (l *limits) spread() *spread {
	if !l.some {
		return nil
	}
	return &spread{Min: l.lo, Max: l.hi}
}

// note counts n elements with the value x.
func (s *tensorStats) note(l *limits, x float64, n int64) {
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
func (s *tensorStats) limits(ctx context.Context, e *elements) error {
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
	s.spread = l.spread()
	return nil
}

// frame returns the middle of the range and half of its width. Elements are mapped with them to the
// range from -1 to 1, so that nothing overflows.
func (s *spread) frame() (mid, half float64) {
	if half = s.Max/2 - s.Min/2; half == 0 {
		return s.Min, 1
	}
	return s.Min/2 + s.Max/2, half
}

// binOf returns the bin of an element that was mapped to the range from -1 to 1.
func binOf(y float64) int { return max(0, min(statsBins-1, int((y+1)*(statsBins/2)))) }

// measure computes the mean, the standard deviation and the bins.
func (s *spread) measure(ctx context.Context, e *elements) error {
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

// elements reads the elements of a tensor as float64, block by block. One elements is used for many
// tensors.
type elements struct {
	t      *tensor.Tensor
	at     int
	codes  codeCounts
	narrow [statsBlock]float32
	wide   [statsBlock]float64
}

func (e *elements) begin(t *tensor.Tensor) { e.t, e.at = t, 0 }

// next returns the next block, which is valid until the next call and may be modified; it is empty
// at the end.
func (e *elements) next(ctx context.Context) ([]float64, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	n := min(statsBlock, e.t.Len()-e.at)
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
