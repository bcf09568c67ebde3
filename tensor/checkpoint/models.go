package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/muster-pg/muster/internal/blocks"
	"github.com/muster-pg/muster/internal/joint"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// openModels opens models, and joins those of their tensors that have an axis.
func (s *Set) openModels(o *Options, paths []string) error {
	if len(paths) == 0 {
		return &Error{Err: errors.New("no path of a checkpoint")}
	}
	if o.Shards > 0 && len(paths) != o.Shards {
		return &Error{Err: fmt.Errorf("there are %d models, not %d", len(paths), o.Shards)}
	}
	if err := checkNumbered(paths); err != nil {
		return err
	}
	plan := joint.Plan{
		Joints: map[string]*joint.Joint{}, Who: func(i int) string { return paths[i] },
		Axis: o.Axis,
	}
	if plan.Axis == nil {
		plan.Axis = func(string) (int, bool) { return 0, false }
	}
	parts := map[string][]blocks.Part{} // of each tensor, in the order of the paths
	for i, path := range paths {
		if err := s.model(i, path, &plan, parts); err != nil {
			return err
		}
	}
	if name, err := plan.Check(); err != nil {
		return &Error{Tensor: name, Err: err}
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		j, of := plan.Joints[name], parts[name]
		var copies []blocks.Part
		if j.Axis < 0 {
			of, copies = of[:1], of[1:]
		}
		for i, at := 1, 0; i < len(of); i++ {
			at += of[i-1].Shape[j.Axis]
			of[i].Start[j.Axis] = at
		}
		if err := s.join(name, j.DType, j.Shape, of); err != nil {
			return err
		}
		for _, p := range copies {
			if e := s.tensors[name]; len(e.Parts) > 0 {
				p.Array = e.Parts[0].Array
				e.Copies = append(e.Copies, p)
			}
		}
	}
	return nil
}

// model adds the tensors of one model.
func (s *Set) model(i int, path string, plan *joint.Plan, parts map[string][]blocks.Part) error {
	dir := path
	st, statErr := os.Stat(path)
	if statErr == nil && !st.IsDir() {
		dir = filepath.Dir(path)
	}
	m, err := safetensors.OpenModel(path)
	if parts, _ := filepath.Glob(filepath.Join(dir, "*.distcp")); err != nil && len(parts) > 0 {
		return &Error{File: path, Err: errors.New("it has .distcp files and no .metadata, which is written last: the save has not finished")}
	}
	if errors.Is(err, fs.ErrNotExist) && statErr == nil && st.IsDir() {
		return &Error{File: path, Err: fmt.Errorf("it has no .metadata and no safetensors files, or its index lists one that is missing: %w", err)}
	}
	if err != nil {
		return err
	}
	defer m.Close()
	for name, of := range m.Files() {
		f, err := s.open(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		s.metadata(of.Metadata)
		for name, info := range of.Infos() {
			if err := plan.Add(i, name, info); err != nil {
				return &Error{Tensor: name, Err: err}
			}
			parts[name] = append(parts[name], newPart(f, blocks.Whole(info.Shape), info.Begin))
		}
	}
	return nil
}

// numberedName is the form of the name of a file of several, which an index lists: its number, and theirs.
var numberedName = regexp.MustCompile(`^(.*)-(\d{5,})-of-(\d{5,})\.safetensors$`)

// checkNumbered returns an error if a file is one of several by its name, and another of them is missing.
func checkNumbered(paths []string) error {
	all := map[string]bool{}
	for _, path := range paths {
		all[filepath.Clean(path)] = true
	}
	for _, path := range paths {
		m := numberedName.FindStringSubmatch(filepath.Clean(path))
		if m == nil {
			continue
		}
		total, _ := strconv.Atoi(m[3])
		for i := 1; i <= total; i++ {
			if other := fmt.Sprintf("%s-%0*d-of-%s.safetensors", m[1], len(m[2]), i, m[3]); !all[other] {
				return &Error{File: path, Err: fmt.Errorf("it is one of %d files, and %s is missing: give all of them, or their index", total, other)}
			}
		}
	}
	return nil
}
