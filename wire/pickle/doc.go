// Package pickle reads and writes plain values of Python's pickle.
//
//	b, err := pickle.Append(nil, pickle.Dict{{"rank", 3}, {"shape", pickle.Tuple{2, 4}}})
//	v, err := pickle.Parse(b)
//
// A pickle is a program that can import any module and call anything in it. Parse runs none of that: it knows the few
// names that plain values are made with, and makes their Go values itself. Every other name, and every other way of
// making an object, is refused with ErrRefused and an Error that has the name and where it is.
//
// # Values
//
//	Python                       Parse gives         Append also takes
//	None                         nil                 nil pointers
//	bool                         bool
//	int                          int64, *big.Int     all integers
//	float                        float64             float32
//	str                          string
//	bytes                        []byte              [N]byte
//	bytearray                    ByteArray
//	list                         []any               slices, arrays
//	tuple, torch.Size            Tuple
//	dict, OrderedDict            Dict                maps, in the order of their keys
//	set                          Set
//	frozenset                    FrozenSet
//	numpy.ndarray                Array
//	scalars of numpy             bool, int64, *big.Int, float64
//	torch.Tensor, Parameter      *tensor.Tensor
//	vLLM's ncclUniqueId          NcclUniqueID
//
// An int is an int64 if it fits. Pointers, and types with one of these underneath, are written as what they are. A str
// is UTF-8: one with lone surrogates is refused. The keys of dicts and sets are what Python can hash; numbers that are
// equal are one key, and NaN is none. Arrays have the dtypes of package tensor that numpy or torch has too, are
// row-major, and arrive so however their strides were. What a tensor was besides its numbers is lost: device, gradient.
//
// Parse reads protocols 0 to 5, but no buffers that travel apart. Append writes protocol 4, which every Python from 3.4
// on reads, with names that every numpy and torch since 1.13 has; uint16, uint32, uint64 and the float8s need torch 2.3.
// Equal values have equal bytes.
//
// # Limits
//
// Whatever the bytes, what Parse holds is bounded by 64 MiB and 32 times their number, and so is its work. Values nest 1,000 deep. A list
// may be in several places, as in Python, and is then the same slice in each; one that holds itself is refused, and so
// is one that would be millions of values if each were written out.
//
// # Why not og-rek
//
// github.com/kisielk/og-rek v1.3.0 was tried first. It has no BUILD, which every array of numpy in protocols 2 to 4
// needs; no EMPTY_SET, ADDITEMS and FROZENSET, so no sets in protocol 4, which is Python's default; no BINBYTES8 and no
// LONG4. It keeps a list by value when it is remembered, so that the second a of [a, a] is empty, without an error. It
// has no hook at a name and no limit on memory, and its errors have no name and no offset.
package pickle
