package pickle

import (
	"github.com/muster-pg/muster/tensor"
)

type (
	// Tuple is a Python tuple.
	Tuple []any
	// ByteArray is a Python bytearray.
	ByteArray []byte
	// Dict is a Python dict, in its order.
	Dict []Item
	// Item is a key of a Dict and its value.
	Item struct{ Key, Value any }
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

// Limits of a pickle.
const (
	maxDepth = 1000 // nesting of values
	// number of values beyond the pickle's bytes, if a value in several places counts in each
	maxShared     = 1 << 20
	minBudget     = 64 << 20 // bytes that may be allocated
	budgetPerByte = 32       // additional bytes for each byte of the pickle
	maxRank       = 64       // axes of an array, as in numpy
)
