package gather_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/tensor"
)

func TestListRefuses(t *testing.T) {
	good := gather.List([]string{"a", "b"}, tensor.F32, 3, 4)
	for n := range good {
		_, _, err := gather.Relist(good[:n])
		assert.Error(t, err, "the first %d bytes", n)
	}
	for name, bad := range map[string][]byte{
		"bytes behind it": append(slices.Clone(good), 0),
		"twice":           gather.List([]string{"a", "a"}, tensor.F32, 1),
		"out of order":    gather.List([]string{"b", "a"}, tensor.F32, 1),
		"no dtype":        gather.List([]string{"a"}, tensor.Invalid, 1),
		"half a byte":     gather.List([]string{"a"}, tensor.F4, 3),
		"too large":       gather.List([]string{"a"}, tensor.F32, 1<<40, 1<<40),
		"many items":      {0xff, 0xff, 0xff, 0xff, 0x0f},
	} {
		_, _, err := gather.Relist(bad)
		assert.Error(t, err, name)
	}
}

// FuzzList checks that any input is a list or an error, and that an accepted list is in order.
func FuzzList(f *testing.F) {
	f.Add(gather.List(nil, tensor.F32))
	f.Add(gather.List([]string{"", "layer.0", "層"}, tensor.BF16, 3, 0, 5))
	f.Add(gather.List([]string{"a"}, tensor.F4, 1, 2, 3))
	f.Fuzz(func(t *testing.T, b []byte) {
		again, names, err := gather.Relist(b)
		if err != nil {
			return
		}
		assert.True(t, slices.IsSorted(names))
		twice, _, err := gather.Relist(again)
		assert.NoError(t, err)
		assert.Equal(t, again, twice)
	})
}

func TestOfferRefuses(t *testing.T) {
	for _, good := range gather.Offers() {
		again, err := gather.Reoffer(good)
		assert.NoError(t, err)
		assert.Equal(t, good, again)
		for n := range good {
			_, err := gather.Reoffer(good[:n])
			assert.Error(t, err, "the first %d bytes of %x", n, good)
		}
		_, err = gather.Reoffer(append(slices.Clip(good), 0))
		assert.Error(t, err, "bytes behind it")
	}
}

func FuzzOffer(f *testing.F) {
	for _, o := range gather.Offers() {
		f.Add(o)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		again, err := gather.Reoffer(b)
		if err != nil {
			return
		}
		twice, err := gather.Reoffer(again)
		assert.NoError(t, err)
		assert.Equal(t, again, twice)
	})
}
