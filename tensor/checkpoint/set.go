package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/muster-pg/muster/internal/blocks"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// Set is the tensors of a checkpoint, wherever its files have their parts. It is safe for concurrent use
// until Close.
type Set struct {
	// Metadata has the keys of the files' metadata on whose value all files that have them agree.
	Metadata map[string]string
	// Differ are the keys on which they do not agree.
	Differ []string
	// Others are the names of values that are no tensors, as checkpoints of PyTorch have them.
	Others []string
	// Saved is set if torch.distributed.checkpoint.save wrote it: its tensors are PyTorch's.
	Saved bool
	// Assumed says what the files do not tell; empty if they tell everything.
	Assumed string

	path    string // that was opened, if it is one
	files   []*file
	tensors map[string]*entry
}

// entry is one tensor.
type entry struct {
	blocks.Tensor
	dtype tensor.DType
}

// newPart returns the part that a file has from an offset on.
func newPart(f *file, b blocks.Box, from int64) blocks.Part {
	return blocks.Part{Array: blocks.Array{Box: b}, Who: f.name, Read: func(b []byte, at int64) error {
		_, err := f.ReadAt(b, from+at)
		return err
	}}
}

// file is a file of the checkpoint, and how it was when it was opened.
type file struct {
	*os.File
	name   string
	opened fs.FileInfo
}

func (f *file) size() int64 { return f.opened.Size() }

// Error is what is wrong with a checkpoint.
type Error struct {
	File   string // the file or directory at fault; empty if there is no one
	Tensor string // the tensor at fault; empty if there is none
	Err    error
}

func (e *Error) Error() string {
	text := "checkpoint: "
	if e.File != "" {
		text += e.File + ": "
	}
	if e.Tensor != "" {
		text += fmt.Sprintf("tensor %.200q: ", e.Tensor)
	}
	return text + e.Err.Error()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Names returns the names of the tensors, sorted.
func (s *Set) Names() []string {
	names := make([]string, 0, len(s.tensors))
	for name := range s.tensors {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Info returns the dtype and the shape of a tensor. Its End is the number of its bytes.
func (s *Set) Info(name string) (info safetensors.Info, ok bool) {
	t, ok := s.tensors[name]
	if !ok {
		return info, false
	}
	n, _ := tensor.Size(t.dtype, t.Shape...) // checked by join
	return safetensors.Info{DType: t.dtype, Shape: t.Shape, End: int64(n)}, true
}

// Close closes all files.
func (s *Set) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Files yields the paths of all files, and a text that differs if a file has changed, or is another one.
func (s *Set) Files() iter.Seq2[string, string] {
	return func(yield func(path, version string) bool) {
		for _, f := range s.files {
			if !yield(f.name, versionOf(f.opened)) {
				return
			}
		}
	}
}

func versionOf(st fs.FileInfo) string {
	return fmt.Sprint(st.Size(), st.ModTime().UnixNano(), inodeOf(st))
}

// open opens a regular file and adds it.
func (s *Set) open(path string) (*file, error) {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() { // opening a pipe would block
		return nil, &Error{File: path, Err: errors.New("no regular file")}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, &Error{Err: err}
	}
	return s.add(path, f)
}

func (s *Set) add(path string, f *os.File) (*file, error) {
	st, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, &Error{Err: err}
	}
	for _, other := range s.files {
		if os.SameFile(other.opened, st) {
			_ = f.Close()
			return nil, &Error{File: path, Err: fmt.Errorf("%s is the same file: name it once", other.name)}
		}
	}
	added := &file{f, path, st}
	s.files = append(s.files, added)
	return added, nil
}

// CheckUnchanged returns an error if a file is not what it was when it was opened: what was read may be
// of two checkpoints then.
func (s *Set) CheckUnchanged() error {
	for _, f := range s.files {
		st, err := f.Stat()
		if err != nil {
			return &Error{File: f.name, Err: err}
		}
		if versionOf(st) != versionOf(f.opened) {
			return &Error{File: f.name, Err: errors.New("the file has changed since it was opened")}
		}
	}
	return nil
}

// join makes a tensor of its parts, each a block of elements. Their strides are those of elements, or nil
// where they are row-major.
func (s *Set) join(name string, dt tensor.DType, shape []int, parts []blocks.Part) error {
	e := &entry{blocks.Tensor{Name: name, Shape: shape, Bits: dt.Bits()}, dt}
	if _, err := tensor.Size(dt, shape...); err != nil {
		return &Error{File: s.path, Tensor: name, Err: err}
	}
	parts = slices.DeleteFunc(parts, func(p blocks.Part) bool { return p.Size() == 0 })
	if err := blocks.Cover(shape, parts); err != nil {
		return &Error{File: s.path, Tensor: name, Err: err}
	}
	for _, p := range parts {
		var err error
		if p.Array, err = p.ToBytes(dt.Bits()); err != nil {
			return &Error{File: p.Who, Tensor: name, Err: err}
		}
		e.Parts = append(e.Parts, p)
	}
	s.tensors[name] = e
	return nil
}

// metadata adds the metadata of a file, except the keys that describe its parts.
func (s *Set) metadata(of map[string]string) {
	if s.Metadata == nil && of != nil {
		s.Metadata = map[string]string{}
	}
	for k, v := range of {
		switch old, ok := s.Metadata[k]; {
		case k == shardingKey || k == versionKey || slices.Contains(s.Differ, k):
		case ok && old != v:
			delete(s.Metadata, k)
			s.Differ = append(s.Differ, k)
		default:
			s.Metadata[k] = v
		}
	}
}

// Open opens the checkpoint in a directory, or the files of one:
//
//   - shards of PyTorch's HuggingFaceStorageWriter, which say how they fit;
//   - what torch.distributed.checkpoint.save wrote, a directory with the file .metadata;
//   - models: safetensors files, indexes of several, and directories with one of these. Tensors are
//     joined as Options.Axis says.
func Open(o *Options, paths ...string) (*Set, error) {
	s := &Set{tensors: map[string]*entry{}}
	if len(paths) == 1 {
		s.path = paths[0]
	}
	if err := s.openAll(o, paths); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Options describe what files do not tell.
type Options struct {
	// Axis returns the axis along which the tensors of a name are joined, in the order of the models, and
	// whether they are; otherwise all models that have one have the same. Nil: none are.
	Axis func(name string) (axis int, joined bool)
	// Shards is how many shards, or models, there must be. 0: any number.
	Shards int
}

var errSaysHow = errors.New("its parts say how they fit: axes are for models")

func (s *Set) openAll(o *Options, paths []string) error {
	if o == nil {
		o = new(Options)
	}
	var shards []string
	model := "" // that is no shard
	for _, path := range paths {
		if filepath.Base(path) == metadataFile {
			path = filepath.Dir(path)
		}
		if _, err := os.Lstat(filepath.Join(path, metadataFile)); err == nil {
			if len(paths) > 1 {
				return &Error{File: path, Err: errors.New("a checkpoint with .metadata is whole: open it alone")}
			}
			return s.openSaved(o, path)
		}
		files, err := shardsIn(path)
		if err != nil {
			return err
		}
		if len(files) == 0 {
			model = path
		}
		shards = append(shards, files...)
	}
	if len(shards) > 0 && model != "" {
		return &Error{File: model, Err: fmt.Errorf("it does not say how it fits, and %s does: open them apart", shards[0])}
	}
	if len(shards) > 0 {
		if o.Axis != nil {
			return &Error{File: shards[0], Err: errSaysHow}
		}
		return s.openShards(o, shards, paths)
	}
	return s.openModels(o, paths)
}

// isShard reports whether a name is that of a safetensors file.
func isShard(name string) bool {
	return strings.HasSuffix(name, ".safetensors") && !strings.HasPrefix(name, ".")
}
