// Package safetensors reads and writes the safetensors format. It validates strictly, reads without
// copies, and writes the same bytes for the same tensors.
//
//	f, err := safetensors.Open("model.safetensors") // mapped; its tensors end with Close
//	w, err := f.Tensor("decoder.weight")
//	err = safetensors.WriteFile("copy.safetensors", map[string]*tensor.Tensor{"decoder.weight": w}, f.Metadata)
//
// A file consists of the length n of its header (8 bytes, little-endian), the header (n bytes of
// JSON), and the tensors' bytes, one after the other. If a file is invalid, functions return a
// [FormatError], which matches [ErrFormat] and has the file, the tensor, the offset and the reason.
// In a valid file each byte of the data belongs to exactly one tensor, and no name occurs twice.
//
// The reference reader (PyPI safetensors 0.8.0) accepts whatever this package accepts. It also
// accepts a few things that this package rejects, since two readers could take them for different
// tensors: a name that occurs twice in a header or in its metadata, values that its decoder accepts
// as an object although they are not (an entry that is an array, a dtype that is an object,
// metadata that is null), and sizes that an int cannot hold. Both skip unknown fields of an entry,
// and both accept JSON white space around a header.
//
// [Write] writes the bytes of the reference writer, which orders tensors by alignment and then by
// name, with two differences. The reference writes metadata in no particular order; this package
// sorts its keys. If there are no tensors and the metadata is empty but not None, the reference
// writes an invalid file; this package does not.
//
// # Aliasing
//
// Tensors of a [File] share its memory: that given to [Parse], or the mapping of [Open]. The mapping
// is read-only: a write to it is a fault that ends the process, and so is a use after Close. Clone a
// tensor to modify or keep it. The functions that write keep no tensor after they return.
//
// If the length of a header is no multiple of 8, tensors begin at unaligned addresses; current
// writers do not make such files. The Data of these tensors is valid, but tensor.View rejects them; a
// Clone is aligned.
package safetensors
