package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func newTensors() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "tensors FILE…",
		Short: "List the tensors of safetensors files",
		Long: `List the tensors of safetensors files: name, dtype, shape and size, and the metadata of the files.
FILE is a .safetensors file, the index of a model in several files, as
model.safetensors.index.json, or a directory with one of them. Only headers are read.`,
		Example: `  muster tensors model.safetensors
  muster tensors model.safetensors.index.json
  muster tensors model.safetensors --json | jq -r .name   # one object a line`,
		Args: operands("FILE…"),
		RunE: func(cmd *cobra.Command, args []string) error { return listTensors(cmd, args, asJSON) },
	}
	cmd.ValidArgsFunction = completeModels
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line, for each tensor")
	return cmd
}

func listTensors(cmd *cobra.Command, paths []string, asJSON bool) error {
	models, err := openModels(paths)
	if err != nil {
		return err
	}
	defer closeModels(models)
	out := bufio.NewWriter(cmd.OutOrStdout())
	k := inkOf(cmd.OutOrStdout())
	for i, m := range models {
		if asJSON {
			if err := printTensorsJSON(out, rowsOf(m)); err != nil {
				return err
			}
			continue
		}
		if len(models) > 1 {
			fmt.Fprintf(out, "%s%s\n", strings.Repeat("\n", min(i, 1)), k.bold(printable(m.path)))
		}
		if err := (&tensorTable{out, k}).print(m, rowsOf(m)); err != nil {
			return err
		}
	}
	return nil
}

// tensorJSON is the JSON form of a tensor.
type tensorJSON struct {
	File       string `json:"file"`
	Name       string `json:"name"`
	DType      string `json:"dtype"`
	Shape      []int  `json:"shape"`
	Parameters int64  `json:"parameters"`
	Bytes      int64  `json:"bytes"`
}

func printTensorsJSON(out *bufio.Writer, rows []*tensorRow) error {
	enc := json.NewEncoder(plainJSON{out})
	for _, r := range rows {
		j := tensorJSON{r.file, r.name, r.info.DType.String(), r.info.Shape, r.elements, r.bytes()}
		if j.Shape == nil {
			j.Shape = []int{}
		}
		if err := enc.Encode(j); err != nil {
			return err
		}
	}
	return out.Flush()
}
