// Package safetensors reads and writes the safetensors format: strict, without copies, the same
// bytes each time.
//
//	f, err := safetensors.Open("model.safetensors") // mapped; its tensors end with Close
//	w, err := f.Tensor("decoder.weight")
//	err = safetensors.WriteFile("copy.safetensors", map[string]*tensor.Tensor{"decoder.weight": w}, f.Metadata)
//
// A file is the length n of its header, 8 bytes, little-endian; the header, n bytes of JSON; and
// the tensors' bytes, one after the other. What is wrong with a file is told by a [FormatError],
// which is [ErrFormat]: the file, the tensor, the place and the reason. A file that passes has all
// its bytes in exactly one tensor each, and no name twice.
//
// The reference reader (PyPI safetensors 0.8.0) accepts whatever this package accepts. It also
// accepts a few things that are refused here, since two readers could take them for different
// tensors: a name twice in a header or in its metadata, and what its decoder lets pass as an object
// without being one (an entry that is an array, a dtype that is an object, metadata that is null),
// and sizes that an int cannot hold. Fields of an entry that are not known are skipped by both, and
// both accept JSON's white space around a header.
//
// What [Write] writes has the bytes of the reference writer, which orders tensors by alignment and
// then name. That one writes metadata in no order, this package sorts its keys; and that one writes
// a broken file if there are no tensors and metadata are empty but not None, this package does not.
//
// # Aliasing
//
// Tensors of a [File] share its memory: that given to [Parse], or that of [Load] and [Read], or the
// mapping of [Open], which is read-only: a write to it is a fault that ends the process, and so is
// a use after Close. Clone a tensor to change or to keep it. Nothing that is written is kept after
// the call that writes it.
//
// A header whose length is no multiple of 8 makes tensors begin at odd addresses; no writer of
// today makes such files. Their Data are right, but tensor.View refuses them in a File of Parse or
// Open. A Clone is aligned, and so is everything in a File of Load or Read if the data are in the
// reference order.
package safetensors
