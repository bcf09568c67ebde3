package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
	"github.com/spf13/cobra"
)

// model is the model in a file, index or directory of the command line.
type model struct {
	*safetensors.Model
	path string // as it was given
	dir  string // of its files
}

func openModel(path string) (*model, error) {
	m, err := safetensors.OpenModel(path)
	if err != nil {
		return nil, err
	}
	dir := path
	if st, err := os.Stat(path); err == nil && !st.IsDir() {
		dir = filepath.Dir(path)
	}
	return &model{m, path, dir}, nil
}

// pathOf returns the path of a file of the model.
func (m *model) pathOf(file string) string { return filepath.Join(m.dir, filepath.FromSlash(file)) }

// closeModels closes all models.
func closeModels(models []*model) {
	for _, m := range models {
		_ = m.Close() // nothing was written
	}
}

func openModels(paths []string) (models []*model, err error) {
	for _, path := range paths {
		m, err := openModel(path)
		if err != nil {
			closeModels(models)
			return nil, err
		}
		models = append(models, m)
	}
	return models, nil
}

// tensorRow is one tensor of a file.
type tensorRow struct {
	file, name string
	info       safetensors.Info
	elements   int64
}

func (r *tensorRow) bytes() int64 { return r.info.End - r.info.Begin }

// rowsOf returns the tensors of a model, in the order of the files.
func rowsOf(m *model) (rows []*tensorRow) {
	for file, f := range m.Files() {
		for name, info := range f.Infos() {
			elements := (&tensor.Tensor{Shape: info.Shape}).Len()
			rows = append(rows, &tensorRow{file: m.pathOf(file), name: name, info: info, elements: int64(elements)})
		}
	}
	return rows
}

// completeModels completes the names of files and directories that may contain tensors.
func completeModels(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"safetensors", "json"}, cobra.ShellCompDirectiveFilterFileExt
}

// bytesText formats a number of bytes with three digits.
func bytesText(n int64) string {
	for _, u := range units {
		if u.bytes > 1 && n >= u.bytes {
			return digits(float64(n)/float64(u.bytes)) + " " + u.name
		}
	}
	return fmt.Sprintf("%d B", n)
}
