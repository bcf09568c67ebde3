package nfsws

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
)

// Begin begins a generation in dir that is newer than all that exist, and returns its number: one
// process of a job calls it, and sends the number to the others, which open that generation. It
// reads no clock, and no two processes begin the same generation. The directory is made if its
// parent exists.
func Begin(dir string) (generation uint64, err error) {
	v, err := openVolume(dir)
	if err != nil {
		return 0, fmt.Errorf("nfsws: begin a generation in %s: %w", dir, err)
	}
	defer v.Close()
	generation, err = begin(v)
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
