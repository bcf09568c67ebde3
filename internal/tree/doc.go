// Package tree splits a config, which is a value with tensors in its leaves, into JSON and named
// tensors, and joins them again.
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
// A config consists of structs, maps, slices, arrays, pointers and interfaces. Its leaves are
// *tensor.Tensor and tensor.Tensor, and what encoding/json encodes: numbers, strings, bools, []byte
// (as base64), and types with a MarshalJSON or MarshalText. Struct tags and embedding are as in
// encoding/json, except that omitempty and omitzero have no effect, that the option string and two
// fields of one name are errors, and that an embedded type that is a leaf is a field. Names match
// exactly.
//
// Split and Join do not copy tensors: the resulting tensors share memory with the given ones. The
// name of each leaf is its path joined by dots, such as "layers.0.weight"; a tensor that is in two
// leaves has two names. The JSON is deterministic: struct fields are in their order, and map keys
// are sorted.
//
// # The JSON
//
// A tensor is {"$tensor":"its name"}. A NaN or an infinity is {"$float":"NaN"}, with "Infinity" or
// "-Infinity" for infinities. A key that begins with "$" is written with one more "$", to
// distinguish it from these. In a name, a dot or a percent sign within a key is "%2E" or "%25", and
// an empty key is "%". A float has a point or an exponent, so that it stays a float when it is
// joined into an interface.
//
// # What changes
//
// When a value is joined into an interface, objects become map[string]any, arrays []any, tensors
// *tensor.Tensor, and numbers int64 if they are integers that fit, and float64 otherwise; named
// types are lost. A nil tensor stays nil. As in encoding/json, a pointer to nil becomes nil. The
// payload of a NaN is not kept.
package tree
