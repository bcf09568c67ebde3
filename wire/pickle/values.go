package pickle

import (
	"github.com/muster-pg/muster/tensor"
)

type (
	// Tuple is a tuple.
	Tuple []any
	// ByteArray is a bytearray.
	ByteArray []byte
	// Dict is a dict, in its order.
	Dict []Item
	// Item is a key of a Dict and its value.
	Item struct{ Key, Value any }
	// Set is a set, in the order in which it came.
	Set []any
	// FrozenSet is a frozenset, in the order in which it came.
	FrozenSet []any
	// Array is a numpy.ndarray; a bare *tensor.Tensor is a torch.Tensor.
	Array struct{ *tensor.Tensor }
	// NcclUniqueID is vLLM's ncclUniqueId, a structure of ctypes.
	NcclUniqueID [128]byte
)

// Get returns the value of a key that is a str.
func (d Dict) Get(name string) (any, bool) {
	for _, item := range d {
		if key, ok := item.Key.(string); ok && key == name {
			return item.Value, true
		}
	}
	return nil, false
}

// What bounds a pickle.
const (
	maxDepth  = 1000     // how deep values nest
	maxShared = 1 << 20  // values more than bytes of the pickle, if those in several places are written out
	minRoom   = 64 << 20 // bytes that may be held
	roomEach  = 32       // bytes more for each byte of the pickle
	maxDigits = 4300     // of an int in decimal, as in CPython
	maxRank   = 64       // axes of an array, as in numpy
)
