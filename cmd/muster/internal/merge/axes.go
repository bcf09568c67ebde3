// Package merge reads the rules by which models are merged.
package merge

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Axis says that the tensors of a name are joined along an axis. In the name, * stands for any text.
type Axis struct {
	Name string
	Axis int

	glob *regexp.Regexp
	used bool
}

// Axes is the value of a flag NAME=AXIS that may be repeated.
type Axes []Axis

// Set implements pflag.Value.
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
	*rs = append(*rs, Axis{Name: text[:i], Axis: axis, glob: Glob(text[:i])})
	return nil
}

// String implements pflag.Value.
func (rs *Axes) String() string { return "" }

// Type implements pflag.Value.
func (rs *Axes) Type() string { return "NAME=AXIS" }

// Of returns the axis of a tensor, if it has one: from the rule with its exact name, or else from the
// first whose name fits.
func (rs Axes) Of(name string) (axis int, ok bool) {
	best := -1
	for i := range rs {
		if !rs[i].glob.MatchString(name) {
			continue
		}
		rs[i].used = true
		if best < 0 || rs[i].Name == name {
			best = i
		}
	}
	if best < 0 {
		return 0, false
	}
	return rs[best].Axis, true
}

// CheckUsed returns an error if a rule has fitted no tensor.
func (rs Axes) CheckUsed() error {
	for _, r := range rs {
		if !r.used {
			return fmt.Errorf("--axis %s=%d: no model has a tensor with such a name: \"muster tensors\" lists them", r.Name, r.Axis)
		}
	}
	return nil
}

// Glob returns what a name fits in which * stands for any text.
func Glob(name string) *regexp.Regexp {
	name = regexp.QuoteMeta(strings.ToValidUTF8(name, "\uFFFD")) // names are valid
	return regexp.MustCompile("(?s)^" + strings.ReplaceAll(name, `\*`, ".*") + "$")
}
