package nfsws

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"

	"github.com/muster-pg/muster/internal/blocking"
)

// Begin begins a generation in dir that is newer than all that exist, and returns its number: one
// process of a job calls it, and sends the number to the others, which open that generation. It
// reads no clock, and no two processes begin the same generation. The directory is made if its
// parent exists.
func Begin(ctx context.Context, dir string) (generation uint64, err error) {
	generation, err = blocking.Do(ctx, func() (uint64, error) {
		v, err := openVolume(dir)
		if err != nil {
			return 0, err
		}
		defer v.Close()
		return begin(v)
	})
	if err != nil {
		return 0, fmt.Errorf("nfsws: begin a generation in %s: %w", dir, err)
	}
	return generation, nil
}

func begin(v volume) (generation uint64, err error) {
	all, err := v.ReadDir(".")
	if err != nil {
		return 0, err
	}
	for _, d := range all {
		if g, ours := parseGeneration(d.Name()); ours {
			generation = max(generation, g)
		}
	}
	for generation < math.MaxUint64 {
		generation++
		if err := v.Mkdir(generationName(generation)); !errors.Is(err, fs.ErrExist) { // the listing may have been cached
			return generation, err
		}
	}
	return 0, fmt.Errorf("generation %d is the last that there can be: remove it", generation)
}
