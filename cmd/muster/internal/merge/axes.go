package merge

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Axis says along which axis tensors are joined: those with this name, which may be a glob.
type Axis struct {
	Name string
	Axis int
}

// Axes is the value of a flag that may be repeated.
type Axes []Axis

// Set implements pflag.Value. The name may contain "=".
func (rs *Axes) Set(text string) error {
	i := strings.LastIndexByte(text, '=')
	if i < 1 {
		return fmt.Errorf("it is not NAME=AXIS, as '*.q_proj.weight=0'")
	}
	axis, err := strconv.Atoi(text[i+1:])
	if err != nil || axis < 0 {
		return fmt.Errorf("the axis %q is not a number from 0 on", text[i+1:])
	}
	for _, r := range *rs {
		if r.Name == text[:i] {
			return fmt.Errorf("%q is there twice", r.Name)
		}
	}
	*rs = append(*rs, Axis{text[:i], axis})
	return nil
}

// String implements pflag.Value.
func (rs *Axes) String() string { return "" }

// Type implements pflag.Value.
func (rs *Axes) Type() string { return "NAME=AXIS" }

// Of returns the axis of each tensor that has one: from the rule with its exact name, or else from
// the first glob that matches.
func (rs Axes) Of(shards []Shard) (map[string]int, error) {
	axes, used := map[string]int{}, map[string]bool{}
	for _, s := range shards {
		for _, name := range s.Model.Names() {
			if _, ok := axes[name]; ok {
				continue
			}
			if r, ok := rs.fit(name, used); ok {
				axes[name] = r.Axis
			}
		}
	}
	for _, r := range rs {
		if !used[r.Name] {
			return nil, fmt.Errorf("--axis %s=%d: no shard has a tensor with such a name: \"muster tensors\" lists them", r.Name, r.Axis)
		}
	}
	return axes, nil
}

// fit returns the rule for a name, and records all rules that match it in used.
func (rs Axes) fit(name string, used map[string]bool) (best Axis, ok bool) {
	for _, r := range rs {
		if !Match(r.Name, name) {
			continue
		}
		used[r.Name] = true
		if !ok || r.Name == name {
			best, ok = r, true
		}
	}
	return best, ok
}

// Metadata returns the metadata of the merged model, which consists of the keys whose value
// is the same in all files that have them. It returns the keys whose values differ in differ.
func Metadata(shards []Shard) (same map[string]string, differ []string) {
	odd := map[string]bool{}
	for _, s := range shards {
		for _, f := range s.Model.Files() {
			for k, v := range f.Metadata {
				if old, ok := same[k]; ok && old != v {
					odd[k] = true
				}
				if same == nil {
					same = map[string]string{}
				}
				same[k] = v
			}
		}
	}
	for k := range odd {
		delete(same, k)
	}
	return same, slices.Sorted(maps.Keys(odd))
}
