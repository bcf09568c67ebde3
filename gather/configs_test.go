package gather_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/gather"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/internal/tree"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

// model is a config with tensors at several depths. What else a config may have is up to package tree.
type model struct {
	Name   string
	Layers []layer
	Shared map[string]*tensor.Tensor
	Extra  map[string]any
}

type layer struct {
	Weight *tensor.Tensor
	Scale  tensor.Tensor // not a pointer
}

// model returns a rank's config. Some of its tensors are in the arena, if there is one.
func (r *rank) model(of int) *model {
	return &model{
		Name:   fmt.Sprint("of rank ", of),
		Layers: []layer{{Weight: r.tensor(of, 7, 3), Scale: *filled(of+1, 2)}, {Weight: filled(of+2, 50_000)}, {}},
		Shared: map[string]*tensor.Tensor{"": filled(of+4, 3), "none": nil, "tensor": r.tensor(of+6, 8)},
		Extra:  map[string]any{"$odd": "key", "deep": []any{map[string]any{"t": filled(of+7, 2, 2)}, int64(of), 0.5, nil, true}},
	}
}

// plain returns r without an arena: it builds the config that a rank is expected to have passed.
func (r *rank) plain() *rank { return &rank{T: r.T} }

// sameModel compares configs: their JSON and their tensors.
func sameModel(t *testing.T, want, got *model) {
	t.Helper()
	wantText, wantTensors, err := tree.Split(want)
	require.NoError(t, err)
	gotText, gotTensors, err := tree.Split(got)
	require.NoError(t, err)
	assert.Equal(t, string(wantText), string(gotText))
	assert.Len(t, gotTensors, len(wantTensors))
	for name, w := range wantTensors {
		equal(t, w, gotTensors[name])
	}
}

// TestConfigs also checks that Release releases the tensors of the other ranks, and none that the
// rank itself has passed.
func TestConfigs(t *testing.T) {
	overAll(t, 4, func(r *rank) {
		for range 2 {
			mine := r.model(10 * r.me())
			res, err := gather.Configs(r.ctx, r.ga, list, mine)
			require.NoError(r, err, "rank %d", r.me())
			assert.Equal(r, r.me() == 1, res.Outside)
			if !res.First {
				assert.Empty(r, res.Items)
				assert.NoError(r, res.WaitReleased(r.ctx))
				sameModel(r.T, r.plain().model(10*r.me()), mine)
				continue
			}
			require.Len(r, res.Items, len(list))
			assert.Same(r, mine, res.Items[0].Value, "its own is what it passed")
			for i, it := range res.Items {
				assert.Equal(r, list[i], it.Rank)
				sameModel(r.T, r.plain().model(10*it.Rank), it.Value)
			}
			theirs := res.Items[1].Value
			res.Release()
			for _, leaf := range []*tensor.Tensor{theirs.Layers[0].Weight, theirs.Layers[1].Weight, theirs.Shared["tensor"]} {
				assert.Nil(r, leaf.Data, "it must not be touched")
			}
			sameModel(r.T, r.plain().model(10*r.me()), mine)
		}
	})
}

// TestConfigsAreLarge gathers a config with several hundred KiB of JSON, or several MiB with MUSTER_SOAK, and one that is JSON alone.
func TestConfigsAreLarge(t *testing.T) {
	count := testcluster.Form(20_000, 200_000)
	build := func(of int) *map[string][]string {
		words := make([]string, count)
		for i := range words {
			words[i] = fmt.Sprintf("%d \u2028 %s", of, strings.Repeat("x", i%37))
		}
		return &map[string][]string{"words": words}
	}
	overAll(t, 3, func(r *rank) {
		res, err := gather.Configs(r.ctx, r.ga, []int{2, 1, 0}, build(r.me()))
		require.NoError(r, err)
		for rank, cfg := range res.Present() {
			assert.True(r, slices.Equal((*build(rank))["words"], (*cfg)["words"]), "rank %d", rank)
		}
		res.Release()
	})
}

// TestConfigsOfAnyShape gathers configs that are a single leaf, nil, or empty.
func TestConfigsOfAnyShape(t *testing.T) {
	// a program, to a reader that executes what it reads
	evil := map[string]any{"__reduce__": []any{"os.system", "exit 1"}, "$tensor": "../../../etc/passwd", "$float": "NaN", "py": "\x00cos\nsystem"}
	overAll(t, 2, func(r *rank) {
		one, err := gather.Configs(r.ctx, r.ga, []int{0, 1}, r.tensor(r.me(), 3))
		require.NoError(r, err)
		for rank, got := range one.Present() {
			equal(r.T, filled(rank, 3), got)
		}
		one.Release()
		for _, cfg := range []any{nil, evil, map[string]any{}, []any{tensor.New(tensor.F32, 0, 3)}} {
			res, err := gather.Configs(r.ctx, r.ga, []int{0, 1}, &cfg)
			require.NoError(r, err, "%T", cfg)
			if res.First && assert.False(r, res.Items[1].Absent, "a config that is nil is there") {
				assert.Equal(r, cfg, *res.Items[1].Value)
			}
			res.Release()
		}
	})
}

// TestConfigsRefused has one rank whose config cannot be split into JSON and tensors: all ranks get
// an error that names the rank and the position in the config.
func TestConfigsRefused(t *testing.T) {
	t.Parallel()
	overAll(t, 4, func(r *rank) {
		for _, broken := range list {
			mine := map[string]any{"more": "fine"}
			if r.me() == broken {
				mine["more"] = map[string]any{"c": make(chan int)}
			}
			res, err := gather.Configs(r.ctx, r.ga, list, &mine)
			if r.me() == 1 {
				assert.NoError(r, err)
				continue
			}
			assert.Nil(r, res)
			assert.ErrorIs(r, err, pgroup.ErrFailed)
			assert.Equal(r, broken, r.rankError(err).By)
			assert.ErrorContains(r, err, "more.c: a chan int cannot be split")
		}
	})
}

// TestConfigsOfOtherTypes has a rank whose config does not fit into the first rank's type.
func TestConfigsOfOtherTypes(t *testing.T) {
	type ours struct{ Weight *tensor.Tensor }
	type theirs struct {
		Weight *tensor.Tensor
		Bias   string
	}
	overAll(t, 4, func(r *rank) {
		for range 2 {
			var err error
			if r.me() == 3 {
				_, err = gather.Configs(r.ctx, r.ga, list, &theirs{r.tensor(3, 4), "odd"})
			} else {
				_, err = gather.Configs(r.ctx, r.ga, list, &ours{r.tensor(r.me(), 4)})
			}
			if r.me() == 1 {
				assert.NoError(r, err)
				continue
			}
			assert.ErrorIs(r, err, pgroup.ErrFailed)
			assert.Equal(r, 3, r.rankError(err).By)
			assert.ErrorContains(r, err, "Bias")
		}
		res, err := gather.Configs(r.ctx, r.ga, list, &ours{r.tensor(r.me(), 4)})
		require.NoError(r, err)
		res.Release()
	})
}
