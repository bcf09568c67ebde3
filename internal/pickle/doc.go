// Package pickle reads and writes plain values of Python's pickle.
//
//	b, err := pickle.Append(nil, pickle.Dict{{"rank", 3}, {"shape", pickle.Tuple{2, 4}}})
//	v, err := pickle.Parse(b)
//
// A pickle is a program that can import any module and call anything in it. Parse runs no such
// code: it knows the few names that plain values are made with, and makes their Go values itself.
// For every other name, and every other way of making an object, it returns an Error that wraps
// ErrRefused, with the name and its offset.
//
// # Values
//
//	None                         nil
//	bool                         bool
//	int                          int64, *big.Int; Append also takes an int
//	float                        float64
//	str                          string
//	bytes                        []byte
//	bytearray                    ByteArray
//	list                         []any
//	tuple                        Tuple
//	dict, OrderedDict            Dict
//	numpy.ndarray                Array
//	torch.Tensor                 *tensor.Tensor
//	vLLM's ncclUniqueId          NcclUniqueID
//
// An int is an int64 if it fits. A str is UTF-8: one with lone surrogates is refused. The keys of a dict are numbers, str, bytes
// and tuples of them; equal numbers are one key, and NaN is not a key. Arrays are little-endian, and have
// the dtypes that both package tensor and numpy or torch have. Parse makes them row-major, whatever their strides
// were, and drops the other properties of a tensor (device, gradient).
//
// ParseObjects also accepts objects of classes that its caller names, as what the pickle says about them.
//
// Parse reads protocols 2 to 5 without out-of-band buffers; in protocol 2 bytes are a call, which is
// refused. Append writes protocol 4, which Python
// reads since 3.4, with names that numpy and torch have since 1.13; uint16, uint32, uint64 and the
// float8 types need torch 2.3. Equal values have equal bytes.
//
// # Limits
//
// For any input, the memory and the work of Parse are bounded by 64 MiB plus 32 times the length of
// the input. Values may nest 1,000 deep. A list may be in several places, as in Python, and is the
// same slice in each. A list that contains itself is refused, and so is one that would expand to
// millions of values.
//
// # Why not og-rek
//
// github.com/kisielk/og-rek v1.3.0 was tried first. It has no BUILD, which arrays of numpy need in
// protocols 3 and 4; no BINBYTES8 and no LONG4. It memoizes a list by value, so that the second a of
// [a, a] is empty, without an error. It has no hook for names and no memory limit, and its errors
// have no name and no offset.
package pickle
