// Package reduce combines slices of numbers, element by element. The collectives use it.
//
// Sources are combined in the order in which they are given, so the result has the same bits
// however slices are split. Integers wrap around, and division truncates toward 0. A NaN makes the
// minimum and the maximum NaN. The 16-bit floats are combined as float32, and rounded once.
package reduce

import (
	"unsafe"

	"github.com/muster-pg/muster/tensor"
)

// Op is an operation that combines two elements.
type Op uint8

const (
	Sum Op = iota
	Product
	Min
	Max
)

// block is the number of elements that are combined at a time: they stay in the first-level cache
// until they are written to their destinations.
const block = 1024

// Scratch is a reusable buffer, for one goroutine at a time.
type Scratch [block]uint64

// Into sets dst, elements of dt, to the combination of srcs, divided by div. All have the same length,
// and there is at least one source. dst may be one of srcs; otherwise they must not overlap. It panics
// if Can(dt) is false.
func Into(s *Scratch, dt tensor.DType, op Op, div int, dst []byte, srcs [][]byte) {
	switch dt {
	case tensor.F32:
		into[float32](s, op, div, dst, srcs)
	case tensor.F64:
		into[float64](s, op, div, dst, srcs)
	case tensor.F16:
		into16(s, op, div, dst, srcs, tensor.Float16.Float32, tensor.Float16From)
	case tensor.BF16:
		into16(s, op, div, dst, srcs, tensor.BFloat16.Float32, tensor.BFloat16From)
	case tensor.I8:
		into[int8](s, op, div, dst, srcs)
	case tensor.I16:
		into[int16](s, op, div, dst, srcs)
	case tensor.I32:
		into[int32](s, op, div, dst, srcs)
	case tensor.I64:
		into[int64](s, op, div, dst, srcs)
	case tensor.U8:
		into[uint8](s, op, div, dst, srcs)
	case tensor.U16:
		into[uint16](s, op, div, dst, srcs)
	case tensor.U32:
		into[uint32](s, op, div, dst, srcs)
	case tensor.U64:
		into[uint64](s, op, div, dst, srcs)
	default:
		panic("reduce: " + dt.String())
	}
}

// Can reports whether elements of dt are numbers that can be combined.
func Can(dt tensor.DType) bool {
	switch dt {
	case tensor.F32, tensor.F64, tensor.F16, tensor.BF16, tensor.I8, tensor.I16, tensor.I32, tensor.I64, tensor.U8, tensor.U16, tensor.U32, tensor.U64:
		return true
	}
	return false
}

func into[T tensor.Number](s *Scratch, op Op, div int, dst []byte, srcs [][]byte) {
	all := as[T](dst)
	n := len(all)
	for at := 0; at < n; at += block {
		end := min(at+block, n)
		dst := all[at:end:end]
		combine(s, op, dst, part[T]{srcs, at, end})
		divide(dst, div)
	}
}

func into16[T tensor.Float16 | tensor.BFloat16](s *Scratch, op Op, div int, dst []byte, srcs [][]byte, float func(T) float32, from func(float32) T) {
	all := as[T](dst)
	n := len(all)
	for at := 0; at < n; at += block {
		end := min(at+block, n)
		dst := all[at:end:end]
		for i, v := range halves(s, op, div, part[T]{srcs, at, end}, float) {
			dst[i] = from(v)
		}
	}
}

// Widen converts src, 16-bit floats of dt, to float32s in dst. Narrow is the inverse, and rounds.
func Widen(dt tensor.DType, dst, src []byte) {
	if dt == tensor.F16 {
		widen(as[float32](dst), as[tensor.Float16](src), tensor.Float16.Float32)
		return
	}
	widen(as[float32](dst), as[tensor.BFloat16](src), tensor.BFloat16.Float32)
}

// Narrow rounds src, float32s, to 16-bit floats of dt in dst.
func Narrow(dt tensor.DType, dst, src []byte) {
	if dt == tensor.F16 {
		widen(as[tensor.Float16](dst), as[float32](src), tensor.Float16From)
		return
	}
	widen(as[tensor.BFloat16](dst), as[float32](src), tensor.BFloat16From)
}

func widen[D, S any](dst []D, src []S, as func(S) D) {
	for i, v := range src {
		dst[i] = as(v)
	}
}

// as returns b as a slice of elements.
func as[T any](b []byte) []T {
	var zero T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(zero)))
}

// part is a block of several slices: the elements from at to end.
type part[T any] struct {
	of      [][]byte
	at, end int
}

func (p part[T]) get(i int) []T { return as[T](p.of[i])[p.at:p.end:p.end] }

// halves combines 16-bit floats.
func halves[T tensor.Float16 | tensor.BFloat16](s *Scratch, op Op, div int, p part[T], float func(T) float32) []float32 {
	all := unsafe.Slice((*float32)(unsafe.Pointer(s)), 2*block)
	acc, one := all[:p.end-p.at], all[block:][:p.end-p.at]
	for i, v := range p.get(0) {
		acc[i] = float(v)
	}
	for k := 1; k < len(p.of); k++ {
		for i, v := range p.get(k) {
			one[i] = float(v)
		}
		combine2(op, acc, acc, one)
	}
	divide(acc, div)
	if div > 1 && op == Sum {
		for i, v := range acc {
			if !finite(v) { // the sum overflows, but the average does not
				acc[i] = 0
				for k := range p.of {
					acc[i] += float(p.get(k)[i]) / float32(div)
				}
			}
		}
	}
	return acc
}

// combine combines elements in their own type.
func combine[T tensor.Number](s *Scratch, op Op, dst []T, p part[T]) {
	switch len(p.of) {
	case 1:
		copy(dst, p.get(0))
	case 2:
		combine2(op, dst, p.get(0), p.get(1))
	case 3:
		combine3(op, dst, p.get(0), p.get(1), p.get(2))
	case 4:
		combine4(op, dst, p.get(0), p.get(1), p.get(2), p.get(3))
	default: // dst may be a source that has not been read yet
		acc := unsafe.Slice((*T)(unsafe.Pointer(s)), block)[:len(dst)]
		combine4(op, acc, p.get(0), p.get(1), p.get(2), p.get(3))
		k := 4
		for ; k+3 < len(p.of); k += 3 {
			combine4(op, acc, acc, p.get(k), p.get(k+1), p.get(k+2))
		}
		for ; k < len(p.of); k++ {
			combine2(op, acc, acc, p.get(k))
		}
		copy(dst, acc)
	}
}

// divide divides by n, as Go does.
func divide[T tensor.Number](x []T, n int) {
	switch {
	case n == 1:
	// a float and a power of two: multiplying by 1/n is exact, and much faster
	case T(1)/T(2) != 0 && n&(n-1) == 0:
		f := 1 / T(n)
		for i := range x {
			x[i] *= f
		}
	case int(T(n)) != n: // only in a narrow integer type
		for i := range x {
			x[i] = T(int64(x[i]) / int64(n))
		}
	default:
		d := T(n)
		for i := range x {
			x[i] /= d
		}
	}
}
