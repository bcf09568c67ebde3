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
	statsBlock = 1 << 14 // elements that are in memory at a time
	statsBins  = 16
)

// tensorStats is about the elements of one tensor.
type tensorStats struct {
	NaN   int64 `json:"nan"`
	Inf   int64 `json:"inf"`
	Zeros int64 `json:"zeros"`

	*spread // nil if no element is finite
}

// spread is about those that are finite.
type spread struct {
	Min  float64          `json:"min"`
	Max  float64          `json:"max"`
	Mean float64          `json:"mean"`
	Std  float64          `json:"std"`  // of all there are: the squares are divided by their number, not by one less
	Bins [statsBins]int64 `json:"bins"` // how many are in each part of Min to Max, which are equally wide
}

// hasStats reports whether elements of a dtype can be put in an order.
func hasStats(dt tensor.DType) bool { return dt != tensor.C64 }

// statsOf reads t block by block, once or twice. A file that is cut off meanwhile is an error, not a fault.
func statsOf(ctx context.Context, e *elements, t *tensor.Tensor) (s *tensorStats, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // of a fault in the mapping
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

// limits are of the elements that are finite, by now.
type limits struct {
	some   bool
	lo, hi float64
}

// spread has them; nil if there were no elements.
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

// limits counts what is special, and finds Min and Max.
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
			if !(x > l.lo && x < l.hi && x != 0) { // most are between the limits
				s.note(&l, x, 1)
			}
		}
	}
	s.spread = l.spread()
	return nil
}

// frame is the middle of all, and half of how far they are apart: elements are moved by them to -1 to 1, so that nothing overflows.
func (s *spread) frame() (mid, half float64) {
	if half = s.Max/2 - s.Min/2; half == 0 {
		return s.Min, 1
	}
	return s.Min/2 + s.Max/2, half
}

// binOf is the bin of an element that was moved.
func binOf(y float64) int { return max(0, min(statsBins-1, int((y+1)*(statsBins/2)))) }

// measure does the rest.
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

// moments are the mean of n numbers, and the sum of the squares of how far they are from it.
type moments struct{ n, mean, squares float64 }

// add adds a block: by its own mean, so that no digits are lost where numbers are close to each other.
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

// elements are those of a tensor as float64, block by block. One of them is used for many tensors.
type elements struct {
	t      *tensor.Tensor
	at     int
	codes  codeCounts
	narrow [statsBlock]float32
	wide   [statsBlock]float64
}

func (e *elements) begin(t *tensor.Tensor) { e.t, e.at = t, 0 }

// next is the next block, which is good until the call after it and may be changed; empty at the end.
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

// wideOf is how to read elements that a float32 would round; nil for others.
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
