package gather

import (
	"context"

	"github.com/muster-pg/muster/internal/tree"
)

// Configs sends the config of each rank of the list to the first of them. A config consists of
// structs, maps and slices with tensors in their leaves; package tree splits and joins it. A rank
// that has none passes nil. Configs may differ in all that T allows.
func Configs[T any](ctx context.Context, ga *Gatherer, ranks []int, cfg *T) (*Result[*T], error) {
	p, err := configContribution(cfg)
	if err != nil {
		p = contribution{fault: err}
	}
	join := func(r received) (*T, error) {
		v := new(T)
		return v, tree.Join(r.config, r.tensors, v)
	}
	return run(ctx, ga, opConfigs, ranks, p, anyOffers, cfg, join)
}

func configContribution[T any](cfg *T) (p contribution, err error) {
	if cfg == nil {
		return contribution{absent: true}, nil
	}
	p.config, p.tensors, err = tree.Split(cfg)
	return p, err
}
