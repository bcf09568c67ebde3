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

// Model is the tensors of one file, or of several files that an index lists. Many goroutines may
// use it at once.
type Model struct {
	TotalSize int64 // metadata.total_size of the index, unchecked, since writers differ in what they count; 0 if it is not there

	files  []shard
	index  map[string]int     // the tensor's file
	listed map[string]string  // in a lenient mode, of all tensors that the index lists, the file
	report func(*FormatError) // nil: strict
}

type shard struct {
	name string // as in the index
	*File
}

// OpenModel opens a file, an index, or a directory that has one of them. In a directory with
// several it takes that called model, and shards count as part of their index. Each file is opened
// as by Open.
func OpenModel(path string) (*Model, error) { return openModel(path, nil) }

// OpenLenient is OpenModel for a model whose index is not as it should be, as long as it leaves no
// doubt about the bytes of any tensor. It calls report for each of these faults, and goes on:
//
//   - a file has a tensor that the index does not list for any file: it is part of the model
//   - metadata is not an object, as null: it is passed over
//   - metadata.total_size is no number of bytes: TotalSize is the number if it is one as text, and 0 otherwise
//
// All else is an error, as of OpenModel: a file that is missing or broken, a tensor that is not
// where the index says, or is in two files.
func OpenLenient(path string, report func(*FormatError)) (*Model, error) {
	if report == nil {
		report = func(*FormatError) {}
	}
	return openModel(path, report)
}

func openModel(path string, report func(*FormatError)) (*Model, error) {
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
		return openIndex(path, report)
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

// OpenIndex opens all files that an index, as model.safetensors.index.json, lists. Their names must
// be local to the index's directory; a link there may lead elsewhere, as they do in caches. It is
// an error if a file is missing, if it does not have a tensor that the index says it has, or has
// another one.
func OpenIndex(name string) (*Model, error) { return openIndex(name, nil) }

func openIndex(name string, report func(*FormatError)) (*Model, error) {
	m := &Model{index: map[string]int{}, listed: map[string]string{}, report: report}
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
	ix := index{tensors: map[string]bool{}, lenient: m.report != nil}
	if err := ix.read(s); err != nil {
		return nil, err
	}
	for _, fault := range ix.faults {
		fault.File = name
		m.report(fault)
	}
	for file, tensors := range ix.files {
		for tensor := range tensors {
			m.listed[tensor] = file
		}
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

	lenient bool
	faults  []*FormatError // that are passed over
}

func (ix *index) read(s *scanner) error {
	err := s.object("the index", func(key string, at int) error {
		switch {
		case key == "weight_map" && ix.files == nil:
			ix.files = map[string]map[string]bool{}
			return s.object("weight_map", func(name string, at int) error { return ix.weight(s, name, at) })
		case key == "metadata" && !ix.metadata:
			ix.metadata = true
			if ix.lenient && s.peek() != '{' {
				ix.tolerate(s, s.pos, "metadata is no object")
				return s.skip()
			}
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
	first := s.peek()
	at := s.pos
	if ix.lenient && first != '-' && (first < '0' || first > '9') {
		ix.tolerate(s, at, "total_size is no number")
		if first != '"' {
			return s.skip()
		}
		text, err := s.string("total_size")
		if n, bad := totalSize(text); bad == nil {
			ix.total = n
		}
		return err
	}
	text, err := s.number("total_size")
	if err != nil {
		return err
	}
	n, err := totalSize(text)
	switch {
	case err != nil && ix.lenient:
		ix.tolerate(s, at, err.Error())
	case err != nil:
		return s.fail(at, "%v", err)
	default:
		ix.total = n
	}
	return nil
}

// tolerate notes a fault that is passed over.
func (ix *index) tolerate(s *scanner, at int, reason string) {
	ix.faults = append(ix.faults, invalid(s.base+int64(at), "%s", reason))
}

func totalSize(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		f, err := strconv.ParseFloat(text, 64)
		if n = int64(f); err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return 0, fmt.Errorf("total_size is %s, which is no number of bytes", shorten(text))
		}
	}
	if n < 0 {
		return 0, fmt.Errorf("total_size is %d, which is no number of bytes", n)
	}
	return n, nil
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
	err = m.unlisted(index, path, f, want)
	m.add(file, f)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if _, ok := f.Info(name); !ok {
			return &FormatError{File: index, Tensor: name, Reason: fmt.Sprintf("is said to be in %s, which does not have it", quote(file))}
		}
	}
	return nil
}

// unlisted looks for tensors of a file that the index does not list there. In a lenient mode they
// are part of the model, unless another file has one of that name too.
func (m *Model) unlisted(index, path string, f *File, want map[string]bool) error {
	for name := range f.Infos() {
		if want[name] {
			continue
		}
		fault := &FormatError{File: path, Tensor: name, Reason: fmt.Sprintf("%s does not say that it is in this file", index)}
		_, elsewhere := m.listed[name]
		_, twice := m.index[name]
		if m.report == nil || elsewhere || twice {
			return fault
		}
		m.report(fault)
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

// Files are the model's files under their names, in the order of the names. They close with the
// model.
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
