package safetensors

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/tensor"
)

const (
	suffix      = ".safetensors"
	indexSuffix = ".safetensors.index.json"
)

// Model is the tensors of one file, or of several files that an index lists. Many goroutines may use it at once.
type Model struct {
	TotalSize int64 // metadata.total_size of the index, unchecked, since writers differ in what they count; 0 if it is not there

	files []shard
	index map[string]int // the tensor's file
}

type shard struct {
	name string // as in the index
	*File
}

// OpenModel opens a file, an index, or a directory that has one of them. In a directory with several it takes that
// called model, and shards count as part of their index. Each file is opened as by Open.
func OpenModel(path string) (*Model, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	if st.IsDir() {
		if path, err = find(path); err != nil {
			return nil, err
		}
	}
	if strings.HasSuffix(path, ".json") {
		return OpenIndex(path)
	}
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	m := &Model{index: map[string]int{}}
	m.add(filepath.Base(path), f)
	return m, nil
}

var shardName = regexp.MustCompile(`-\d{5,}-of-\d{5,}\.safetensors$`)

// find finds what to open in a directory.
func find(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("safetensors: %w", err)
	}
	var names, model []string
	shards := 0
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasPrefix(name, "."), e.IsDir():
		case shardName.MatchString(name):
			shards++
		case name == "model"+suffix || name == "model"+indexSuffix:
			model = append(model, name)
		case strings.HasSuffix(name, suffix) || strings.HasSuffix(name, indexSuffix):
			names = append(names, name)
		}
	}
	if len(model) > 0 {
		names = model
	}
	switch {
	case len(names) == 1:
		return filepath.Join(dir, names[0]), nil
	case len(names) > 1:
		return "", fmt.Errorf("safetensors: %s has %s: say which", dir, strings.Join(names, " and "))
	case shards > 0:
		return "", fmt.Errorf("safetensors: %s has %d shards but no index, which is written last: the model is not complete", dir, shards)
	}
	return "", fmt.Errorf("safetensors: %s has no *%s and no *%s: %w", dir, suffix, indexSuffix, os.ErrNotExist)
}

// OpenIndex opens all files that an index, as model.safetensors.index.json, lists. Their names must be local to the
// index's directory; a link there may lead elsewhere, as they do in caches. It is an error if a file is missing, if it
// does not have a tensor that the index says it has, or has another one.
func OpenIndex(name string) (*Model, error) {
	m := &Model{index: map[string]int{}}
	files, err := m.readIndex(name)
	if err != nil {
		return nil, inFile(name, err)
	}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if err := m.open(name, file, files[file]); err != nil {
			m.Close()
			return nil, err
		}
	}
	return m, nil
}

// readIndex reads an index: the names of the tensors of each file.
func (m *Model) readIndex(name string) (map[string]map[string]bool, error) {
	r, _, err := openFile(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxHeader+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("safetensors: %w", err)
	case len(b) > maxHeader:
		return nil, invalid(maxHeader, "the index has more than %d bytes", maxHeader)
	}
	s, err := newScanner(string(b), 0)
	if err != nil {
		return nil, err
	}
	ix := index{tensors: map[string]bool{}}
	if err := ix.read(s); err != nil {
		return nil, err
	}
	m.TotalSize = ix.total
	return ix.files, nil
}

// index is what an index says.
type index struct {
	tensors  map[string]bool
	files    map[string]map[string]bool // nil until weight_map was there
	metadata bool                       // was there
	total    int64
}

func (ix *index) read(s *scanner) error {
	err := s.object("the index", func(key string, at int) error {
		switch {
		case key == "weight_map" && ix.files == nil:
			ix.files = map[string]map[string]bool{}
			return s.object("weight_map", func(name string, at int) error { return ix.weight(s, name, at) })
		case key == "metadata" && !ix.metadata:
			ix.metadata = true
			return s.object("metadata", func(key string, _ int) error { return ix.number(s, key) })
		case key == "weight_map" || key == "metadata":
			return s.fail(at, "%s is there twice", key)
		}
		return s.skip()
	})
	switch {
	case err != nil:
		return err
	case ix.files == nil:
		return s.fail(0, "has no weight_map: this is no index of a model")
	}
	return s.end()
}

// weight reads a tensor's file.
func (ix *index) weight(s *scanner, name string, at int) error {
	if ix.tensors[name] {
		return inTensor(name, s.fail(at, "is there twice"))
	}
	ix.tensors[name] = true
	file, err := s.string("the name of a file")
	if err != nil {
		return inTensor(name, err)
	}
	if _, err := filepath.Localize(file); err != nil || file == "." {
		return inTensor(name, s.fail(at, "%s is not the name of a file in the directory of the index", quote(file)))
	}
	if ix.files[file] == nil {
		ix.files[file] = map[string]bool{}
	}
	ix.files[file][name] = true
	return nil
}

// number reads a field of metadata: total_size is a whole number, though some write it as a float.
func (ix *index) number(s *scanner, key string) error {
	if key != "total_size" {
		return s.skip()
	}
	s.peek()
	at := s.pos
	text, err := s.number("total_size")
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		f, err := strconv.ParseFloat(text, 64)
		if n = int64(f); err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return s.fail(at, "total_size is %s, which is no number of bytes", shorten(text))
		}
	}
	if n < 0 {
		return s.fail(at, "total_size is %d, which is no number of bytes", n)
	}
	ix.total = n
	return nil
}

// open adds a file that must have exactly the tensors in want.
func (m *Model) open(index, file string, want map[string]bool) error {
	local, _ := filepath.Localize(file) // it was one when the index was read
	path := filepath.Join(filepath.Dir(index), local)
	first := slices.Min(slices.Collect(maps.Keys(want)))
	f, err := Open(path)
	if _, bad := errors.AsType[*FormatError](err); bad {
		return err
	} else if err != nil {
		return fmt.Errorf("safetensors: %s: tensor %s is said to be in %s: %w", index, quote(first), quote(file), err)
	}
	m.add(file, f)
	for name := range f.Infos() {
		if !want[name] {
			return &FormatError{File: path, Tensor: name, Reason: fmt.Sprintf("%s does not say that it is in this file", index)}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if _, ok := f.Info(name); !ok {
			return &FormatError{File: index, Tensor: name, Reason: fmt.Sprintf("is said to be in %s, which does not have it", quote(file))}
		}
	}
	return nil
}

func (m *Model) add(name string, f *File) {
	for tensor := range f.Infos() {
		m.index[tensor] = len(m.files)
	}
	m.files = append(m.files, shard{name, f})
}

// Names are the tensors' names: file by file, in the order of their data.
func (m *Model) Names() []string {
	names := make([]string, 0, len(m.index))
	for _, f := range m.files {
		names = append(names, f.names...)
	}
	return names
}

// Len is the number of tensors.
func (m *Model) Len() int { return len(m.index) }

// Tensor is the tensor called name, as File.Tensor.
func (m *Model) Tensor(name string) (*tensor.Tensor, error) {
	i, ok := m.index[name]
	if !ok {
		return nil, fmt.Errorf("safetensors: tensor %s: %w in the model", quote(name), ErrNoTensor)
	}
	return m.files[i].Tensor(name)
}

// All are the tensors in the order of Names, as File.All.
func (m *Model) All() iter.Seq2[string, *tensor.Tensor] {
	return func(yield func(string, *tensor.Tensor) bool) {
		for _, f := range m.files {
			for name, t := range f.All() {
				if !yield(name, t) {
					return
				}
			}
		}
	}
}

// Files are the model's files under their names, in the order of the names. They close with the model.
func (m *Model) Files() iter.Seq2[string, *File] {
	return func(yield func(string, *File) bool) {
		for _, f := range m.files {
			if !yield(f.name, f.File) {
				return
			}
		}
	}
}

// Close closes all files: see File.Close.
func (m *Model) Close() error {
	var errs []error
	for _, f := range m.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
