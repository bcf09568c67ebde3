package vllm

import "github.com/muster-pg/muster/internal/pickle"

// The Go values of Python's objects. None is nil; bool, str and bytes are bool, string and []byte; an int is an
// int64, or a *big.Int if that is too small; float is float64, list []any, and torch.Tensor *tensor.Tensor.
type (
	Tuple        = pickle.Tuple
	Dict         = pickle.Dict
	Set          = pickle.Set
	Array        = pickle.Array        // numpy.ndarray
	NcclUniqueID = pickle.NcclUniqueID // vLLM's
)

// PickleError is the error of an object that is not a plain value, with its offset. It wraps ErrRefused if the
// object would import or call something.
type PickleError = pickle.Error

// ErrRefused means that a pickle would import or call something: nothing was run.
var ErrRefused = pickle.ErrRefused
