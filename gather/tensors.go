package gather

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/muster-pg/muster/tensor"
)

// Tensors sends the t of each rank of the list to the first of them; a rank that has none passes
// nil. All tensors have the same dtype and shape.
func Tensors(ctx context.Context, ga *Gatherer, ranks []int, t *tensor.Tensor) (*Result[*tensor.Tensor], error) {
	single := func(r received) (*tensor.Tensor, error) { return r.tensors[unnamed], nil }
	return run(ctx, ga, opTensors, ranks, contributionOf(t), sameTensors, t, single)
}

// contributionOf returns a contribution of one tensor, or of none.
func contributionOf(t *tensor.Tensor) contribution {
	return contribution{absent: t == nil, tensors: map[string]*tensor.Tensor{unnamed: t}}
}

// TensorMaps is like Tensors for many named tensors at once; a rank that has none passes a nil map.
// All ranks have the same names, and the same dtype and shape for each. Ranks with other tensors
// pass their maps to Configs.
func TensorMaps(ctx context.Context, ga *Gatherer, ranks []int, ts map[string]*tensor.Tensor) (*Result[map[string]*tensor.Tensor], error) {
	all := func(r received) (map[string]*tensor.Tensor, error) { return r.tensors, nil }
	return run(ctx, ga, opTensorMaps, ranks, contribution{absent: ts == nil, tensors: ts}, sameTensors, ts, all)
}

// run runs a verb: it sends p, or receives and converts the received items to values.
func run[T any](ctx context.Context, ga *Gatherer, op string, ranks []int, p contribution, agree check, own T, value func(received) (T, error)) (res *Result[T], err error) {
	ctx, cancel := ga.bound(ctx)
	defer cancel()
	v, err := ga.begin(ctx, op, ranks)
	if err != nil {
		return nil, err
	}
	if v == nil {
		return &Result[T]{Outside: true}, nil
	}
	defer func() { v.end(ctx, err) }()
	if !v.first() {
		l, err := v.send(ctx, p, agree)
		if err != nil {
			return nil, err
		}
		return &Result[T]{resources: l}, nil
	}
	res = &Result[T]{First: true}
	res.resources, err = v.receive(ctx, p, agree, func(got allReceived) error {
		for i, r := range got {
			it := Item[T]{Rank: v.ranks[i], Absent: r.absent}
			switch {
			case r.absent:
			case i == 0:
				it.Value = own
			default:
				if it.Value, err = value(r); err != nil {
					return failed(i, err)
				}
			}
			res.Items = append(res.Items, it)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

func anyOffers(*verb, []offer) error { return nil }

// sameTensors fails unless all ranks that send offer the same tensors.
func sameTensors(v *verb, offers []offer) error {
	first := slices.IndexFunc(offers, func(o offer) bool { return !o.Absent })
	if first < 0 {
		return nil
	}
	for i := first + 1; i < len(offers); i++ {
		if offers[i].Absent {
			continue
		}
		if err := v.same(first, i, &offers[first], &offers[i]); err != nil {
			return err
		}
	}
	return nil
}

// same compares the offers of the ranks with indexes i and j. Both lists are sorted.
func (v *verb) same(i, j int, a, b *offer) error {
	x, y := a.items, b.items
	for len(x) > 0 || len(y) > 0 {
		switch c := compareFirst(x, y); {
		case c < 0:
			return mismatch(j, "rank %d has tensor %q, and rank %d has not", v.ranks[i], x[0].Name, v.ranks[j])
		case c > 0:
			return mismatch(j, "rank %d has tensor %q, and rank %d has not", v.ranks[j], y[0].Name, v.ranks[i])
		case !x[0].equal(&y[0]):
			return mismatch(j, "%srank %d has %v, and rank %d %v; in gather.Configs they may differ", prefix(y[0].Name), v.ranks[j], &y[0], v.ranks[i], &x[0])
		}
		x, y = x[1:], y[1:]
	}
	return nil
}

// compareFirst compares the first names of two lists: -1 means that only x has the lower one, 1
// only y, 0 both.
func compareFirst(x, y []item) int {
	switch {
	case len(x) == 0:
		return 1
	case len(y) == 0:
		return -1
	}
	return cmp.Compare(x[0].Name, y[0].Name)
}

// prefix returns the text that names a tensor, if the caller has named it.
func prefix(name string) string {
	if name == unnamed {
		return ""
	}
	return fmt.Sprintf("tensor %q: ", name)
}

// begin returns the verb of a call on the list's subgroup, or nil if this rank is not in the list.
// ctx must have a deadline.
func (ga *Gatherer) begin(ctx context.Context, op string, ranks []int) (*verb, error) {
	c, err := ga.subgroup(op, ranks)
	if c == nil || err != nil {
		return nil, err
	}
	return c.begin(ctx, op)
}
