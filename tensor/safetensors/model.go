package safetensors

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/muster-pg/muster/tensor"
)

const (
	suffix      = ".safetensors"
	indexSuffix = ".safetensors.index.json"
)

// Model is the tensors of one file, or of several files that an index lists. It is safe for
// concurrent use.
type Model struct {
	files []shard
	index map[string]int // index in files, by the tensor's name
}

type shard struct {
	name string // name in the index
	*File
}

// OpenModel opens a file, an index, or a directory that contains one of them. If a directory
// contains several, it opens the one called model; shards count as part of their index. Each file
// is opened as by Open.
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
		return openIndex(path)
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

// find returns the path to open in a directory.
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

// openIndex opens all files that an index, such as model.safetensors.index.json, lists. Their names
// must be local to the index's directory; they may be links to other directories, as in caches. It
// returns an error if a file is missing, lacks a tensor that the index lists, or has a tensor that
// the index does not list. It reads weight_map alone: writers differ in what they count as total_size.
func openIndex(name string) (*Model, error) {
	m := &Model{index: map[string]int{}}
	files, err := readIndex(name)
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

// readIndex reads an index, and returns the names of the tensors of each file.
func readIndex(name string) (map[string]map[string]bool, error) {
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
	err = ix.read(s)
	return ix.files, err
}

// index is the parsed index.
type index struct {
	tensors map[string]bool
	files   map[string]map[string]bool // nil until weight_map has been read
}

func (ix *index) read(s *scanner) error {
	err := s.object("the index", func(key string, at int) error {
		switch {
		case key == "weight_map" && ix.files == nil:
			ix.files = map[string]map[string]bool{}
			return s.object("weight_map", func(name string, at int) error { return ix.weight(s, name, at) })
		case key == "weight_map":
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

// weight parses the file name of a tensor.
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

// open adds a file that must have exactly the tensors in want.
func (m *Model) open(index, file string, want map[string]bool) error {
	local, _ := filepath.Localize(file) // checked when the index was read
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

// Names returns the tensors' names: file by file, in the order of their data.
func (m *Model) Names() []string {
	names := make([]string, 0, len(m.index))
	for _, f := range m.files {
		names = append(names, f.names...)
	}
	return names
}

// Len returns the number of tensors.
func (m *Model) Len() int { return len(m.index) }

// Tensor returns the tensor called name, as File.Tensor does.
func (m *Model) Tensor(name string) (*tensor.Tensor, error) {
	i, ok := m.index[name]
	if !ok {
		return nil, fmt.Errorf("safetensors: tensor %s: %w in the model", quote(name), ErrNoTensor)
	}
	return m.files[i].Tensor(name)
}

// All yields the tensors in the order of Names, as File.All does.
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

// Files yields the model's files by name, in the order of the names. Closing the model closes them.
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
