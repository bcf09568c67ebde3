package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/muster-pg/muster/internal/blocks"
	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/tensor"
)

// Names that torch.distributed.checkpoint.save writes into .metadata, as of torch 2.6 to 2.15.
const (
	metadataModule = "torch.distributed.checkpoint.metadata."
	storageInfo    = "torch.distributed.checkpoint.filesystem._StorageInfo"
	metadataFile   = ".metadata"
)

var metadataNames = namesOf(
	metadataModule+"Metadata", metadataModule+"TensorStorageMetadata", metadataModule+"BytesStorageMetadata",
	metadataModule+"TensorProperties", metadataModule+"ChunkStorageMetadata", metadataModule+"MetadataIndex",
	metadataModule+"StorageMeta", metadataModule+"_MEM_FORMAT_ENCODING", storageInfo,
	"torch.serialization._get_layout", "torch.Size", float4Pair,
	"pathlib.PosixPath", "pathlib._local.PosixPath", "pathlib.PurePosixPath", "pathlib._local.PurePosixPath",
)

// float4Pair is the dtype whose elements are two of F4. The last axis of its shapes counts pairs.
const float4Pair = "torch.float4_e2m1fn_x2"

func dtypeOfClass(v any) tensor.DType {
	class, _ := v.(pickle.Class)
	if class.Name == float4Pair {
		return tensor.F4
	}
	return class.DType
}

// unpair counts elements of F4 where numbers of an axis count pairs.
func unpair(dt tensor.DType, ns []int) {
	if dt == tensor.F4 && len(ns) > 0 {
		ns[len(ns)-1] *= 2
	}
}

func namesOf(names ...string) map[string]bool {
	set := map[string]bool{}
	for _, name := range names {
		set[name] = true
	}
	return set
}

// maxPickle bounds a pickle that is read.
const maxPickle = 1 << 30

// saved is a directory that torch.distributed.checkpoint.save wrote.
type saved struct {
	*Set
	path  string
	files map[string]*file
}

// openSaved opens the checkpoint in a directory.
func (s *Set) openSaved(o *Options, path string) error {
	if o.Shards > 0 {
		return &Error{File: path, Err: errors.New("its .metadata says how many parts there are: do not give their number")}
	}
	if o.Axis != nil {
		return &Error{File: path, Err: errSaysHow}
	}
	s.Saved = true
	d := &saved{s, path, map[string]*file{}}
	f, err := d.file(metadataFile)
	if err != nil {
		return err
	}
	v, err := unpickle(io.NewSectionReader(f, 0, f.size()), f.size(), metadataNames)
	if err == nil {
		err = d.read(v)
	}
	if _, ok := errors.AsType[*Error](err); err != nil && !ok {
		err = &Error{File: f.name, Err: err}
	}
	return err
}

// file opens a file of the directory, once.
func (d *saved) file(name string) (*file, error) {
	if f := d.files[name]; f != nil {
		return f, nil
	}
	if !filepath.IsLocal(name) {
		return nil, &Error{File: d.path, Err: fmt.Errorf("it has a part in %.200q, which is not in the directory", name)}
	}
	f, err := d.open(filepath.Join(d.path, name))
	d.files[name] = f
	return f, err
}

func unpickle(r io.Reader, size int64, names map[string]bool) (any, error) {
	if size > maxPickle {
		return nil, fmt.Errorf("a pickle of %d bytes", size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	return pickle.ParseObjects(b, names)
}

// stored is where a part is.
type stored struct {
	file         string
	offset, size int64
}

// read reads the value of .metadata.
func (d *saved) read(v any) error {
	fields, err := fieldsOf(v, metadataModule+"Metadata")
	if err != nil {
		return err
	}
	tensors, ok := fields["state_dict_metadata"].(pickle.Dict)
	if !ok {
		return errors.New("it has no state_dict_metadata")
	}
	places, err := placesOf(fields["storage_data"])
	if err != nil {
		return err
	}
	for _, item := range tensors {
		name, ok := item.Key.(string)
		if !ok {
			return errors.New("a name in state_dict_metadata is no string")
		}
		if is(item.Value, metadataModule+"BytesStorageMetadata") {
			d.Others = append(d.Others, name)
			continue
		}
		if err := d.tensor(name, item.Value, places[name]); err != nil {
			if e, ok := errors.AsType[*Error](err); ok {
				e.Tensor = name
				return err
			}
			return &Error{File: filepath.Join(d.path, metadataFile), Tensor: name, Err: err}
		}
		delete(places, name)
	}
	for _, name := range d.Others {
		delete(places, name)
	}
	if len(places) > 0 {
		return fmt.Errorf("storage_data has parts of %.200q, which state_dict_metadata lacks", slices.Min(slices.Collect(maps.Keys(places))))
	}
	slices.Sort(d.Others)
	return nil
}

// placesOf returns where the parts of each name are, by the text of their first index.
func placesOf(v any) (map[string]map[string]stored, error) {
	items, ok := v.(pickle.Dict)
	if !ok {
		return nil, errors.New("it has no storage_data")
	}
	all := map[string]map[string]stored{}
	for _, item := range items {
		index, err := fieldsOf(item.Key, metadataModule+"MetadataIndex")
		if err != nil {
			return nil, err
		}
		name, ok := index["fqn"].(string)
		if !ok {
			return nil, errors.New("a part in storage_data has no name")
		}
		start := []int{} // None for a value that is no tensor
		if index["offset"] != nil {
			if start, err = sizesOf(index["offset"]); err != nil {
				return nil, err
			}
		}
		place, err := placeOf(item.Value)
		if err != nil {
			return nil, fmt.Errorf("a part of %.200q: %w", name, err)
		}
		if all[name] == nil {
			all[name] = map[string]stored{}
		}
		if _, twice := all[name][blocks.Numbers(start)]; twice {
			return nil, fmt.Errorf("the part of %.200q at [%s] is there twice", name, blocks.Numbers(start))
		}
		all[name][blocks.Numbers(start)] = place
	}
	return all, nil
}

func placeOf(v any) (s stored, err error) {
	info, err := fieldsOf(v, storageInfo)
	if err != nil {
		return s, err
	}
	if t, ok := info["transform_descriptors"]; ok && t != nil {
		if list, ok := t.([]any); !ok || len(list) > 0 {
			return s, errors.New("it is transformed, such as compressed, by an extension of its writer")
		}
	}
	name, ok := info["relative_path"].(string)
	offset, also := info["offset"].(int64)
	size, too := info["length"].(int64)
	if !ok || !also || !too || offset < 0 || size < 0 || offset > math.MaxInt64-size {
		return s, errors.New("its place is no file, offset and length")
	}
	return stored{name, offset, size}, nil
}

// tensor adds a tensor, whose parts are in places.
func (d *saved) tensor(name string, v any, places map[string]stored) error {
	fields, err := fieldsOf(v, metadataModule+"TensorStorageMetadata")
	if err != nil {
		return err
	}
	dt, err := dtypeOf(fields["properties"])
	if err != nil {
		return err
	}
	shape, err := sizesOf(fields["size"])
	if err != nil {
		return err
	}
	chunks, ok := fields["chunks"].([]any)
	if !ok {
		return errors.New("it has no chunks")
	}
	var parts []blocks.Part
	for _, c := range chunks {
		b, err := chunkOf(c)
		if err == nil {
			err = b.Check(len(shape))
		}
		if err != nil {
			return err
		}
		place, ok := places[blocks.Numbers(b.Start)]
		if !ok {
			return fmt.Errorf("storage_data lacks its part %v", b)
		}
		delete(places, blocks.Numbers(b.Start))
		p, err := d.part(place, dt, b)
		if err != nil {
			return err
		}
		unpair(dt, p.Start)
		unpair(dt, p.Shape)
		parts = append(parts, p)
	}
	for start := range places {
		return fmt.Errorf("storage_data has a part of it at [%s], which its chunks lack", start)
	}
	unpair(dt, shape)
	return d.join(name, dt, shape, parts)
}

func chunkOf(v any) (b blocks.Box, err error) {
	fields, err := fieldsOf(v, metadataModule+"ChunkStorageMetadata")
	if err != nil {
		return b, err
	}
	if b.Start, err = sizesOf(fields["offsets"]); err != nil {
		return b, err
	}
	b.Shape, err = sizesOf(fields["sizes"])
	return b, err
}

// dtypeOf returns the dtype in a TensorProperties, whose state is a tuple with the dtype first.
func dtypeOf(v any) (tensor.DType, error) {
	o, ok := v.(*pickle.Object)
	if ok && o.Name == metadataModule+"TensorProperties" {
		if state, ok := o.State.(pickle.Tuple); ok && len(state) > 0 {
			if dt := dtypeOfClass(state[0]); dt.Valid() {
				return dt, nil
			}
		}
	}
	return tensor.Invalid, errors.New("its properties have no dtype that is known")
}

// fieldsOf returns the fields of a data class.
func fieldsOf(v any, name string) (map[string]any, error) {
	o, ok := v.(*pickle.Object)
	if !ok || o.Name != name {
		return nil, fmt.Errorf("no %s where one must be", name[strings.LastIndexByte(name, '.')+1:])
	}
	state, ok := o.State.(pickle.Dict)
	if !ok {
		return nil, fmt.Errorf("a %s without its fields", name[strings.LastIndexByte(name, '.')+1:])
	}
	fields := make(map[string]any, len(state))
	for _, item := range state {
		if key, ok := item.Key.(string); ok {
			fields[key] = item.Value
		}
	}
	return fields, nil
}

func is(v any, name string) bool {
	o, ok := v.(*pickle.Object)
	return ok && o.Name == name
}

// sizesOf returns the numbers of a torch.Size, or of a tuple.
func sizesOf(v any) ([]int, error) {
	if o, ok := v.(*pickle.Object); ok && o.Name == "torch.Size" && len(o.Args) == 1 {
		v = o.Args[0]
	}
	t, ok := v.(pickle.Tuple)
	if !ok || len(t) > 64 {
		return nil, errors.New("no torch.Size where one must be")
	}
	ns := make([]int, len(t))
	for i, x := range t {
		n, ok := x.(int64)
		if !ok || n < 0 || n > math.MaxInt {
			return nil, errors.New("a torch.Size of no natural numbers")
		}
		ns[i] = int(n)
	}
	return ns, nil
}
