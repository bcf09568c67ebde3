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

// spawnTorch starts torch's ranks. It returns nil if torch is missing.
func spawnTorch(ctx context.Context, python string, size int, rep *report) (*team, error) {
	if !hasTorch(ctx, python, rep) {
		return nil, nil
	}
	return spawnPython(ctx, python, torchScript, size)
}

// spawnPython starts the ranks of a script: each gets its number, the number of ranks, and the name of
// a file by which they meet.
func spawnPython(ctx context.Context, python, script string, size int) (*team, error) {
	dir, err := os.MkdirTemp("", "muster-bench-")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	t := &team{cancel: func() { cancel(); _ = os.RemoveAll(dir) }}
	for rank := range size {
		if err := t.addPython(ctx, python, script, strconv.Itoa(rank), strconv.Itoa(size), filepath.Join(dir, "meeting")); err != nil {
			t.cancel()
			return nil, err
		}
	}
	return t, nil
}

// addPython starts a script.
func (t *team) addPython(ctx context.Context, python, script string, args ...string) error {
	p, err := start(ctx, python, nil, python, append([]string{"-c", script}, args...)...)
	if err == nil {
		t.ranks = append(t.ranks, p)
	}
	return err
}
