package safetensors

import (
	"bytes"
	"encoding/json"
)

// IndexName is the name of the index of a model of several files.
const IndexName = "model" + indexSuffix

// Index returns the index of a model, as HuggingFace writes it: the file of each tensor, by its name, and the
// number of bytes of all tensors.
func Index(files map[string]string, size int64) []byte {
	var index struct {
		Metadata struct {
			Size int64 `json:"total_size"`
		} `json:"metadata"`
		Files map[string]string `json:"weight_map"`
	}
	index.Metadata.Size, index.Files = size, files
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(index) // strings, to memory
	return b.Bytes()
}
