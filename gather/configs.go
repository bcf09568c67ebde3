package gather

import (
	"context"

	"github.com/muster-pg/muster/tensor/tree"
)

// Configs brings the config of each rank of the list to the first of them: structs, maps and slices with tensors in their leaves, as package
// tree parts and joins them; nil is "absent". They may differ in anything that T allows.
func Configs[T any](ctx context.Context, ga *Gatherer, ranks []int, cfg *T) (*Result[*T], error) {
	p, err := configParcel(cfg)
	if err != nil {
		p = parcel{fault: err}
	}
	join := func(r received) (*T, error) {
		v := new(T)
		return v, tree.Join(r.config, r.tensors, v)
	}
	return run(ctx, ga, opConfigs, ranks, p, anyOffers, cfg, join)
}

func configParcel[T any](cfg *T) (p parcel, err error) {
	if cfg == nil {
		return parcel{absent: true}, nil
	}
	p.config, p.tensors, err = tree.Split(cfg)
	return p, err
}
