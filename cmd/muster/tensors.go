package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// listing holds the options of tensors.
type listing struct {
	asJSON bool
	match  []string
}

func newTensors() *cobra.Command {
	o := &listing{}
	cmd := &cobra.Command{
		Use:   "tensors FILE…",
		Short: "List the tensors of safetensors files",
		Long: `List the tensors of safetensors files: name, dtype, shape and size, and the metadata of the files.
FILE is a .safetensors file, the index of a model in several files, as
model.safetensors.index.json, or a directory with one of them. Only headers are read. In a GLOB,
* is any text; quote it for the shell.`,
		Example: `  muster tensors model.safetensors
  muster tensors checkpoint/ --match '*.q_proj.weight' --match '*norm*'
  muster tensors model.safetensors.index.json
  muster tensors model.safetensors --json | jq -r .name   # one object a line`,
		Args: operands("FILE…"),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	cmd.ValidArgsFunction = completeModels
	f := cmd.Flags()
	f.BoolVar(&o.asJSON, "json", false, "one JSON object a line, for each tensor")
	f.StringArrayVar(&o.match, "match", nil, "only tensors whose name a `GLOB` fits; may be repeated")
	return cmd
}

func (o *listing) run(cmd *cobra.Command, paths []string) error {
	models, err := openModels(paths)
	if err != nil {
		return err
	}
	defer closeModels(models)
	lists, err := o.lists(models)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	if o.asJSON {
		return printTensorsJSON(out, slices.Concat(lists...))
	}
	for i, m := range models {
		if len(models) > 1 {
			fmt.Fprintf(out, "%s%s\n", strings.Repeat("\n", min(i, 1)), inkOf(cmd.OutOrStdout()).bold(printable(m.path)))
		}
		if err := (&tensorTable{out, inkOf(cmd.OutOrStdout())}).print(m, lists[i]); err != nil {
			return err
		}
	}
	return nil
}

// lists returns the rows of each model, in the order of its files.
func (o *listing) lists(models []*model) (lists [][]*tensorRow, err error) {
	used := map[string]bool{}
	for _, m := range models {
		lists = append(lists, rowsOf(m, o.match, used))
	}
	for _, p := range o.match {
		if !used[p] {
			return nil, &exit{code: exitFailed, text: fmt.Sprintf("--match %s: no tensor has a name that this fits; without --match, all are listed", printable(p))}
		}
	}
	return lists, nil
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
