package gather

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/muster-pg/muster/internal/blocks"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
)

// exportPlan says who writes which tensors, and who sends what to whom. All ranks make the same one of the
// same lists.
type exportPlan struct {
	tensors map[int][]*exportTensor // by their owner
	owners  []int                   // in the order of their files
	tied    map[string]string       // tensors that are not written, and what they are the same as
}

// exportTensor is one tensor.
type exportTensor struct {
	name  string
	DType tensor.DType
	Shape []int
	size  int64
	held  []*heldBox
	owner int
	same  string // what it is the same as on each rank that has a part; else empty
}

// heldBox is a part, and the ranks that have it.
type heldBox struct {
	blocks.Box
	ranks []int
	from  int // the one whose part is written
}

// planExport plans what to do with the parts of all ranks.
func planExport(all []exportList) (*exportPlan, error) {
	tensors := map[string]*exportTensor{}
	for rank, l := range all {
		for _, p := range l.Parts {
			t := tensors[p.Name]
			if t == nil {
				t = &exportTensor{name: p.Name, DType: p.DType, Shape: p.Whole, same: p.Same}
				tensors[p.Name] = t
			}
			if err := t.add(rank, p); err != nil {
				return nil, err
			}
		}
	}
	if len(tensors) == 0 {
		return nil, failed(0, fmt.Errorf("no rank has a tensor: %w", pgroup.ErrInvalid))
	}
	p := &exportPlan{tensors: map[int][]*exportTensor{}, tied: map[string]string{}}
	inOrder := slices.SortedFunc(maps.Values(tensors), func(a, b *exportTensor) int {
		return cmp.Or(cmp.Compare(b.size, a.size), cmp.Compare(a.name, b.name)) // the largest first
	})
	load := make([]int64, len(all))
	for _, t := range inOrder {
		if err := t.check(); err != nil {
			return nil, err
		}
		if _, ok := tensors[t.same]; ok && t.same != "" && t.same < t.name {
			p.tied[t.name] = t.same
			continue
		}
		t.own(load)
		p.tensors[t.owner] = append(p.tensors[t.owner], t)
	}
	p.owners = slices.Sorted(maps.Keys(p.tensors))
	return p, nil
}

// add adds a part.
func (t *exportTensor) add(rank int, p exportPart) error {
	if p.DType != t.DType || !slices.Equal(p.Whole, t.Shape) {
		mine, its := safetensors.Info{DType: p.DType, Shape: p.Whole}, safetensors.Info{DType: t.DType, Shape: t.Shape}
		return mismatch(rank, "tensor %q: rank %d has a part of %v, and rank %d of %v", t.name, rank, mine, t.held[0].ranks[0], its)
	}
	if p.Same != t.same {
		t.same = ""
	}
	for _, h := range t.held {
		if slices.Equal(h.Start, p.Start) && slices.Equal(h.Shape, p.Shape) {
			h.ranks = append(h.ranks, rank)
			return nil
		}
	}
	t.held = append(t.held, &heldBox{p.box(), []int{rank}, rank})
	return nil
}

// check returns an error unless each element is in one part.
func (t *exportTensor) check() error {
	size, err := tensor.Size(t.DType, t.Shape...)
	t.size = int64(size)
	if err != nil {
		return mismatch(t.held[0].ranks[0], "tensor %q: %v", t.name, err)
	}
	var parts []blocks.Part
	for _, h := range t.held {
		if h.Size() > 0 || size == 0 {
			parts = append(parts, blocks.Part{Array: blocks.Array{Box: h.Box}, Who: fmt.Sprint("rank ", h.ranks[0])})
		}
	}
	if size == 0 {
		t.held = t.held[:1]
		return nil
	}
	first := t.held[0].ranks[0]
	t.held = slices.DeleteFunc(t.held, func(h *heldBox) bool { return h.Size() == 0 })
	if err := blocks.Cover(t.Shape, parts); err != nil {
		return mismatch(first, "tensor %q: %v", t.name, err)
	}
	return nil
}

// own makes the rank the owner that has the fewest bytes to write, of those that have a part.
func (t *exportTensor) own(load []int64) {
	t.owner = t.held[0].ranks[0]
	for _, h := range t.held {
		for _, rank := range h.ranks {
			if load[rank] < load[t.owner] {
				t.owner = rank
			}
		}
	}
	load[t.owner] += t.size
	for i, h := range t.held {
		h.from = h.ranks[i%len(h.ranks)] // not always the first one
		if slices.Contains(h.ranks, t.owner) {
			h.from = t.owner
		}
	}
}

// boxOf returns the part that a rank sends, or writes.
func (t *exportTensor) boxOf(rank int) (b blocks.Box) {
	for _, h := range t.held {
		if h.from == rank {
			return h.Box
		}
	}
	return b
}

// sends reports whether a rank sends a part to the owner.
func (t *exportTensor) sends(rank int) bool {
	return rank != t.owner && slices.ContainsFunc(t.held, func(h *heldBox) bool { return h.from == rank })
}

// ranksOf returns an owner, and the ranks that send to it.
func (p *exportPlan) ranksOf(owner int) []int {
	senders := map[int]bool{}
	for _, t := range p.tensors[owner] {
		for _, h := range t.held {
			senders[h.from] = true
		}
	}
	delete(senders, owner)
	return append([]int{owner}, slices.Sorted(maps.Keys(senders))...)
}

// infos returns the tensors of an owner's file.
func (p *exportPlan) infos(owner int) map[string]safetensors.Info {
	infos := map[string]safetensors.Info{}
	for _, t := range p.tensors[owner] {
		infos[t.name] = safetensors.Info{DType: t.DType, Shape: t.Shape}
	}
	return infos
}

// metadata returns that of an owner's file: what the user gives, and the tied tensors of its tensors.
func (p *exportPlan) metadata(owner int, given map[string]string) map[string]string {
	all := map[string]string{}
	for tied, name := range p.tied {
		if slices.ContainsFunc(p.tensors[owner], func(t *exportTensor) bool { return t.name == name }) {
			all[tied] = name
		}
	}
	maps.Copy(all, given)
	return all
}

// index returns the index of all files.
func (p *exportPlan) index(fileOf func(owner int) string) []byte {
	files, size := map[string]string{}, int64(0)
	for owner, ts := range p.tensors {
		for _, t := range ts {
			files[t.name] = fileOf(owner)
			size += t.size
		}
	}
	return safetensors.Index(files, size)
}
