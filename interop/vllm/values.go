package vllm

import "github.com/muster-pg/muster/internal/pickle"

// Go values of Python's objects. None is nil; bool, str and bytes are bool, string and []byte; an int is an int64,
// or a *big.Int if that is too small; float is float64, list []any, and torch.Tensor *tensor.Tensor. An int of Go is
// sent as well, and received if the T of a call is int. Other types are refused: make a Dict of a map, a []any of
// another slice.
type (
	// Tuple is a tuple.
	Tuple = pickle.Tuple
	// Dict is a dict.
	Dict = pickle.Dict
	// Array is a numpy.ndarray.
	Array = pickle.Array
	// NcclUniqueID is vLLM's ncclUniqueId.
	NcclUniqueID = pickle.NcclUniqueID
)

// PickleError is the error of an object that is not a plain value, with its offset. It wraps ErrRefused if the
// object would import or call something.
type PickleError = pickle.Error

// ErrRefused means that a pickle would import or call something: nothing was run.
var ErrRefused = pickle.ErrRefused
