// Package joint plans how tensors of several parts, such as the ranks of a group or the shards of a
// model, become one. Those that were split are joined along an axis, from all parts that have them,
// in the order of the parts. Any other is the same in each part that has it.
package joint

import (
	"fmt"
	"math"
	"slices"

	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// Joint is one tensor of the result.
type Joint struct {
	safetensors.Info
	Axis  int   // along which it is joined; -1: all parts have the same tensor
	From  []int // the indexes of the parts that have it
	Outer int   // how many runs of bytes each part contributes, in turn

	first safetensors.Info // of the first part
}

// Plan has the tensors of the result.
type Plan struct {
	Joints map[string]*Joint                         // by name
	Axis   func(name string) (axis int, joined bool) // along which a tensor is joined, if it was split
	Who    func(part int) string                     // names a part in errors
}

// Add adds a tensor of a part, of which it compares the dtype and the shape with those of earlier
// parts. Parts are added in their order.
func (p *Plan) Add(part int, name string, info safetensors.Info) error {
	axis, joined := p.Axis(name)
	switch {
	case !joined:
		axis = -1
	case axis < 0 || axis >= len(info.Shape):
		return fmt.Errorf("%s has %v, which has no axis %d to join along", p.Who(part), info, axis)
	}
	j := p.Joints[name]
	if j == nil {
		j = newJoint(info, axis)
		p.Joints[name] = j
	}
	if !j.fits(info) {
		rule := "they are not joined along an axis, so they must be the same"
		if joined {
			rule = fmt.Sprintf("they may differ along axis %d only", axis)
		}
		return fmt.Errorf("%s has %v, and %s has %v; %s", p.Who(part), info, p.Who(j.From[0]), j.first, rule)
	}
	j.From = append(j.From, part)
	if !joined {
		return nil
	}
	if info.Shape[axis] > math.MaxInt-j.Shape[axis] {
		return fmt.Errorf("all lengths along axis %d are more than there are numbers for", axis)
	}
	j.Shape[axis] += info.Shape[axis]
	if j.Outer > 1 && (info.End-info.Begin)%int64(j.Outer) != 0 { // of packed elements
		return fmt.Errorf("%s has %v, whose rows along axis %d are no whole bytes", p.Who(part), info, axis)
	}
	return nil
}

// newJoint returns a Joint of no parts, with the dtype and the shape of info, but for the axis.
func newJoint(info safetensors.Info, axis int) *Joint {
	j := &Joint{Info: info, Axis: axis, Outer: 1, first: info}
	j.Shape = slices.Clone(info.Shape)
	if axis >= 0 {
		j.Outer = (&tensor.Tensor{Shape: info.Shape[:axis]}).Len()
		j.Shape[axis] = 0
	}
	return j
}

// fits reports whether info has j's dtype, and j's shape except along the axis.
func (j *Joint) fits(info safetensors.Info) bool {
	if info.DType != j.DType || len(info.Shape) != len(j.Shape) {
		return false
	}
	for i := range info.Shape {
		if i != j.Axis && info.Shape[i] != j.Shape[i] {
			return false
		}
	}
	return true
}

// Check returns an error, with the name of the tensor, if one of the result is too large.
func (p *Plan) Check() (name string, err error) {
	for name, j := range p.Joints {
		if _, err := tensor.Size(j.DType, j.Shape...); err != nil {
			return name, err
		}
	}
	return "", nil
}
