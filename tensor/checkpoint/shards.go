package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"github.com/muster-pg/muster/internal/blocks"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// Keys in the metadata of shards of HuggingFaceStorageWriter (torch.distributed.checkpoint._hf_utils).
const (
	shardingKey = "DCP_SHARDING_INFO"
	versionKey  = "DCP_VERSION"
)

// shardName is the form of their names: the number of the rank, that of the file of the model, and the
// number of those.
var shardName = regexp.MustCompile(`^shard-(\d{5,})-model-(\d{5,})-of-(\d{5,})\.safetensors$`)

// shardsIn returns the files of a path if they say how they fit. Either all of a directory do, or none.
func shardsIn(path string) (files []string, err error) {
	all := []string{path}
	if entries, err := os.ReadDir(path); err == nil {
		all = nil
		for _, e := range entries {
			if isShard(e.Name()) {
				all = append(all, filepath.Join(path, e.Name()))
			}
		}
	}
	without := ""
	for _, name := range all {
		if !isShard(filepath.Base(name)) {
			continue
		}
		says, err := saysHow(name)
		switch {
		case err != nil:
			return nil, err
		case says:
			files = append(files, name)
		default:
			without = name
		}
	}
	if without != "" && len(files) > 0 {
		return nil, &Error{File: path, Err: fmt.Errorf("%s says how it fits (%s), and %s does not", filepath.Base(files[0]), shardingKey, filepath.Base(without))}
	}
	return files, nil
}

// saysHow reports whether a file is a shard that says how it fits.
func saysHow(path string) (bool, error) {
	var s Set
	f, err := s.open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	h, err := f.header()
	if err != nil {
		return false, err
	}
	_, ok := h.Metadata[shardingKey]
	return ok, nil
}

// header reads the header of a safetensors file.
func (f *file) header() (*safetensors.Header, error) {
	h, err := safetensors.ReadHeader(f, f.size())
	if bad, ok := errors.AsType[*safetensors.FormatError](err); ok {
		bad.File = f.name
		return nil, err
	}
	if err != nil {
		return nil, &Error{File: f.name, Err: err}
	}
	return h, nil
}

// placed is a tensor that parts make up, as far as they say: its shape is the least that has them all.
type placed struct {
	info  safetensors.Info // of the first part, with the shape of all
	parts []blocks.Part
}

// openShards opens shards that say how they fit.
func (s *Set) openShards(o *Options, files, paths []string) error {
	tensors := map[string]*placed{}
	for _, path := range files {
		f, err := s.open(path)
		if err != nil {
			return err
		}
		if err := s.shard(f, tensors); err != nil {
			return err
		}
	}
	if err := checkNames(o, files); err != nil {
		return &Error{File: paths[0], Err: err}
	}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		t := tensors[name]
		if err := s.join(name, t.info.DType, t.info.Shape, t.parts); err != nil {
			return err
		}
	}
	if o.Shards == 0 {
		s.Assumed = fmt.Sprintf("there are no more than these %d shards; if the last is missing, tensors end early", len(files))
	}
	return nil
}

// shard adds the tensors of one shard.
func (s *Set) shard(f *file, tensors map[string]*placed) error {
	h, err := f.header()
	if err != nil {
		return err
	}
	if v := h.Metadata[versionKey]; v != "1.0" {
		return &Error{File: f.name, Err: fmt.Errorf("its %s is %.40q, and 1.0 is known", versionKey, v)}
	}
	var starts map[string]struct {
		Offsets []int `json:"saved_offsets"`
	}
	if err := json.Unmarshal([]byte(h.Metadata[shardingKey]), &starts); err != nil {
		return &Error{File: f.name, Err: fmt.Errorf("its %s: %w", shardingKey, err)}
	}
	s.metadata(h.Metadata)
	for name := range starts {
		if _, ok := h.Info(name); !ok {
			return &Error{File: f.name, Tensor: name, Err: fmt.Errorf("its %s has it, and the file has not", shardingKey)}
		}
	}
	for name, info := range h.Infos() {
		start, ok := starts[name]
		p := newPart(f, blocks.Box{Start: start.Offsets, Shape: info.Shape}, info.Begin)
		if !ok {
			err = fmt.Errorf("its %s lacks it", shardingKey)
		}
		unpair(info.DType, p.Start)
		if err == nil {
			err = p.Check(len(info.Shape))
		}
		if err == nil {
			err = place(tensors, name, info, p)
		}
		if err != nil {
			return &Error{File: f.name, Tensor: name, Err: err}
		}
	}
	return nil
}

// place adds a part to its tensor.
func place(tensors map[string]*placed, name string, info safetensors.Info, p blocks.Part) error {
	t := tensors[name]
	if t == nil {
		t = &placed{info: info}
		t.info.Shape = make([]int, len(info.Shape))
		tensors[name] = t
	}
	if info.DType != t.info.DType || len(info.Shape) != len(t.info.Shape) {
		return fmt.Errorf("it has %v, which is no part of what %s has, of %v and %d axes", info, t.parts[0].Who, t.info.DType, len(t.info.Shape))
	}
	for i := range info.Shape {
		t.info.Shape[i] = max(t.info.Shape[i], p.End(i))
	}
	t.parts = append(t.parts, p)
	return nil
}

// checkNames checks what the names of shards say: they are of one save, of which none is missing.
func checkNames(o *Options, files []string) error {
	ranks, models, of := map[int]bool{}, map[int]bool{}, ""
	for _, path := range files {
		m := shardName.FindStringSubmatch(filepath.Base(path))
		if m == nil {
			if o.Shards > 0 {
				return fmt.Errorf("%s is not named shard-…-model-…-of-…, so that shards can be counted", filepath.Base(path))
			}
			continue
		}
		if of != "" && of != m[3] {
			return fmt.Errorf("%s is a shard of a model of %s files, and others are of one of %s: they are of two saves", filepath.Base(path), m[3], of)
		}
		of = m[3]
		rank, _ := strconv.Atoi(m[1])
		model, _ := strconv.Atoi(m[2])
		ranks[rank], models[model] = true, true
	}
	total, _ := strconv.Atoi(of)
	for i := 1; i <= total; i++ {
		if !models[i] {
			return fmt.Errorf("no shard is of file %d of the model's %d", i, total)
		}
	}
	for i := 1; i <= o.Shards; i++ {
		if !ranks[i] {
			return fmt.Errorf("there is no shard %d of %d; a rank that has no parts writes none, and the number cannot be checked then", i, o.Shards)
		}
	}
	if o.Shards > 0 && len(ranks) > o.Shards {
		return fmt.Errorf("there are shards of %d ranks, not of %d", len(ranks), o.Shards)
	}
	return nil
}
