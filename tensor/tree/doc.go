// Package tree splits a config, a value with tensors in its leaves, into JSON and named tensors,
// and joins them again.
//
//	type Layer struct {
//		Name   string
//		Weight *tensor.Tensor
//		Scales map[string]*tensor.Tensor
//	}
//	config, tensors, err := tree.Split(layer)
//	// {"Name":"q","Weight":{"$tensor":"Weight"},"Scales":{…}}
//	var again Layer
//	err = tree.Join(config, tensors, &again)
//
// A config consists of structs, maps, slices, arrays, pointers and interfaces; its leaves are
// *tensor.Tensor and tensor.Tensor, and what encoding/json encodes: numbers, strings, bools, []byte
// (as base64), and types with a MarshalJSON or MarshalText. Struct tags and embedding are as in
// encoding/json, except that the option string is an error, and that an embedded type that is a
// leaf is a field. Names match exactly.
//
// Tensors are not copied: those of Split and of Join share their memory with the ones given. The
// name of each leaf is its path joined by dots, as "layers.0.weight"; a tensor that is in two
// leaves thus has two names. The bytes are deterministic: fields in their order, the keys of maps
// sorted.
//
// # The JSON
//
// A tensor is {"$tensor":"its name"}, and a NaN or an infinity {"$float":"NaN"}, "Infinity" or
// "-Infinity". A key that begins with "$" is written with one more "$", so that it is not mistaken
// for these. In a name, a dot or a percent sign within a key is "%2E" or "%25", and an empty key is
// "%". A float has a point or an exponent, so that it stays a float when it is joined into an
// interface.
//
// # What changes
//
// Joined into an interface, objects are map[string]any, arrays []any, tensors *tensor.Tensor, and
// numbers int64 if they are integers that fit and float64 if not; named types are lost. A nil
// tensor stays nil. As in encoding/json, a pointer to nil becomes nil, and a field that omitempty
// drops is zero afterwards. The payload of a NaN is not kept.
package tree
