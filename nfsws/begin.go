package nfsws

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/muster-pg/muster/internal/blocking"
)

// Begin begins a generation in dir that is newer than all that exist, and returns its number: one
// process of a job calls it, and sends the number to the others, which open that generation. It
// reads no clock, and no two processes begin the same generation. The directory is made if its
// parent exists.
func Begin(ctx context.Context, dir string) (generation uint64, err error) {
	if dir == "" {
		return 0, fmt.Errorf("nfsws: begin a generation: %w", errNoDir)
	}
	generation, err = blocking.Do(ctx, func() (uint64, error) {
		generation, err := begin(dir)
		if errors.Is(err, fs.ErrNotExist) { // the last rank of another job has just removed it
			return begin(dir)
		}
		return generation, err
	})
	if err != nil {
		return 0, fmt.Errorf("nfsws: begin a generation in %s: %w", dir, err)
	}
	return generation, nil
}

func begin(dir string) (generation uint64, err error) {
	v, err := openVolume(dir)
	if err != nil {
		return 0, err
	}
	defer v.Close()
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

// RemoveUnused removes the workspace in dir, which exists, if nothing was made, published or removed
// in it for the time age. Files of other programs stay.
func RemoveUnused(ctx context.Context, dir string, age time.Duration) error {
	if dir == "" {
		return fmt.Errorf("nfsws: remove: %w", errNoDir)
	}
	_, err := blocking.Do(ctx, func() (struct{}, error) { return struct{}{}, removeUnused(dir, age) })
	if err != nil {
		return fmt.Errorf("nfsws: remove %s: %w", dir, err)
	}
	return nil
}

func removeUnused(dir string, age time.Duration) error {
	v, err := openDir(dir)
	if err != nil {
		return err
	}
	defer v.Close()
	all, err := v.ReadDir(".")
	if err != nil {
		return err
	}
	last, err := v.Stat(".")
	if err != nil {
		return err
	}
	newest := last.ModTime()
	var generations []uint64
	for _, d := range all {
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.ModTime().After(newest) {
			newest = info.ModTime()
		}
		if g, ours := parseGeneration(d.Name()); ours {
			generations = append(generations, g)
		}
	}
	if time.Since(newest) < age {
		return nil
	}
	w := &Workspace{volume: v, dir: dir, logger: slog.New(slog.DiscardHandler)}
	w.collect(generations)
	if err := os.Remove(v.path); !errors.Is(err, fs.ErrExist) { // ENOTEMPTY
		return err
	}
	return nil
}
