package safetensors

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/muster-pg/muster/tensor"
)

// WriteSharded writes tensors as a model of several files, base-00001-of-0000N.safetensors, in dir.
// Files are filled in the order of the names, each with at most maxShardBytes of data, or with one
// tensor that is larger. Last it writes base.safetensors.index.json, without which OpenModel does
// not accept the files. Each file is written as by WriteFile and has the metadata. It returns
// fs.ErrExist if the model already exists, since old and new files could not be distinguished until
// the end. If it fails, it removes the files that it has written.
func WriteSharded(dir, base string, maxShardBytes int64, ts map[string]*tensor.Tensor, metadata map[string]string) (err error) {
	index := filepath.Join(dir, base+indexSuffix)
	switch _, err := os.Lstat(index); {
	case base == "" || base[0] == '.' || filepath.Base(base) != base || !filepath.IsLocal(base) || !utf8.ValidString(base):
		return fmt.Errorf("safetensors: base %q is not the beginning of a file's name", base)
	case maxShardBytes <= 0:
		return fmt.Errorf("safetensors: maxShardBytes is %d, not positive", maxShardBytes)
	case err == nil:
		return fmt.Errorf("safetensors: write %s: %w: remove that model first", index, fs.ErrExist)
	}
	if err := checkAll(ts, metadata); err != nil {
		return err
	}
	shards, total := split(ts, maxShardBytes)
	var written []string
	defer func() {
		if err != nil {
			for _, name := range slices.Backward(written) { // the index first
				_ = os.Remove(name) // the first error is returned
			}
		}
	}()
	files := map[string]string{}
	for i, part := range shards {
		file := fmt.Sprintf("%s-%05d-of-%05d%s", base, i+1, len(shards), suffix)
		written = append(written, filepath.Join(dir, file))
		if err := WriteFile(filepath.Join(dir, file), part, metadata); err != nil {
			return err
		}
		for name := range part {
			files[name] = file
		}
	}
	written = append(written, index)
	return writeIndex(index, total, files)
}

// checkAll rejects tensors that no file can hold, before any file is written.
func checkAll(ts map[string]*tensor.Tensor, metadata map[string]string) error {
	infos, err := infosOf(ts)
	if err != nil {
		return err
	}
	for name, info := range infos {
		if _, err := checkInfo(name, info); err != nil {
			return err
		}
	}
	return checkMetadata(metadata)
}

// split distributes tensors to shards, in the order of their names. There is at least one shard.
func split(ts map[string]*tensor.Tensor, most int64) (shards []map[string]*tensor.Tensor, total int64) {
	part, size := map[string]*tensor.Tensor{}, int64(0)
	for _, name := range slices.Sorted(maps.Keys(ts)) {
		n := int64(len(ts[name].Data))
		if len(part) > 0 && size+n > most {
			shards = append(shards, part)
			part, size = map[string]*tensor.Tensor{}, 0
		}
		part[name] = ts[name]
		size += n
		total += n
	}
	return append(shards, part), total
}

// writeIndex writes an index in the format of Hugging Face's libraries: indented by two spaces,
// keys sorted.
func writeIndex(name string, total int64, files map[string]string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(map[string]any{"metadata": map[string]int64{"total_size": total}, "weight_map": files})
	if err != nil {
		return &WriteError{File: name, Err: err}
	}
	return replace(name, func(w io.Writer) error {
		_, err := writeAll(w, b.Bytes())
		return err
	})
}
