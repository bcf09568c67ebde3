package main

import (
	"context"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

//go:embed python/ranks.py
var torchScript string

// hasTorch reports whether an interpreter can import torch, and adds a note if not.
func hasTorch(ctx context.Context, python string, rep *report) bool {
	if python == "" {
		return false
	}
	out, err := exec.CommandContext(ctx, python, "-c", "import torch; print(torch.__version__)").CombinedOutput()
	if err != nil {
		rep.note("NO TORCH: %s cannot import torch: install it (pip install torch), or give -python: %v", python, err)
		return false
	}
	rep.note("torch %s", strings.TrimSpace(string(out)))
	return true
}

// spawnTorch starts torch's ranks: each gets its number, the number of ranks, and the name of a file by which
// they meet. It returns nil if torch is missing.
func spawnTorch(ctx context.Context, python string, size int, rep *report) (*team, error) {
	if !hasTorch(ctx, python, rep) {
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "muster-bench-")
	if err != nil {
		return nil, err
	}
	return startTeam(ctx, size, func() { _ = os.RemoveAll(dir) }, func(ctx context.Context, rank int) (*process, error) {
		return start(ctx, python, nil, python, "-c", torchScript, strconv.Itoa(rank), strconv.Itoa(size), filepath.Join(dir, "meeting"))
	})
}
