package tensorstats

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/muster-pg/muster/tensor"
)

// codeCounts counts how often each code of a dtype of one or two bytes occurs in a tensor. The
// statistics follow from the counts, so that each element is read only once, without arithmetic.
// Most of a model has such dtypes.
type codeCounts [1 << 16]int64

// hasCodes reports whether codes can be counted. It is false for Bool, of which most codes are
// invalid; the general method detects that.
func hasCodes(dt tensor.DType) bool {
	return dt != tensor.Bool && (dt.Bits() == 8 || dt.Bits() == 16)
}

// of counts the codes of t.
func (c *codeCounts) of(ctx context.Context, t *tensor.Tensor) error {
	clear(c[:])
	for data := t.Data; len(data) > 0; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		block := data[:min(len(data), blockLen)]
		data = data[len(block):]
		if t.DType.Bits() == 8 {
			for _, code := range block {
				c[code]++
			}
			continue
		}
		for i := 0; i+1 < len(block); i += 2 {
			c[binary.LittleEndian.Uint16(block[i:])]++
		}
	}
	return nil
}

// codeValues returns the values of all codes of a dtype.
func codeValues(dt tensor.DType) ([]float32, error) {
	size := dt.Bits() / 8
	codes := make([]byte, size<<dt.Bits())
	for i := range 1 << dt.Bits() {
		codes[i*size] = byte(i)
		if size == 2 {
			codes[i*size+1] = byte(i >> 8)
		}
	}
	all, err := tensor.Wrap(codes, dt, 1<<dt.Bits())
	if err != nil {
		return nil, err
	}
	return all.AppendFloat32s(nil)
}

// statsOfCodes is like Of, for a dtype with codes.
func statsOfCodes(ctx context.Context, c *codeCounts, t *tensor.Tensor) (*Stats, error) {
	values, err := codeValues(t.DType)
	if err != nil {
		return nil, err
	}
	if err := c.of(ctx, t); err != nil {
		return nil, err
	}
	s := &Stats{}
	var l limits
	for code, x := range values {
		if n := c[code]; n > 0 {
			s.note(&l, float64(x), n)
		}
	}
	if s.Spread = l.spread(); s.Spread == nil {
		return s, nil
	}
	mid, half := s.frame()
	var count, sum, squares float64
	each := func(f func(y, n float64)) {
		for code, x := range values {
			if n := c[code]; n > 0 && x-x == 0 {
				f((float64(x)-mid)/half, float64(n))
			}
		}
	}
	each(func(y, n float64) { s.Bins[binOf(y)] += int64(n); sum += n * y; count += n })
	mean := sum / count
	each(func(y, n float64) { squares += n * (y - mean) * (y - mean) })
	s.Mean, s.Std = mid+half*mean, half*math.Sqrt(squares/count)
	return s, nil
}
