package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/internal/flightrecorder"
	"github.com/muster-pg/muster/internal/status"
	"github.com/spf13/cobra"
)

// readRecordings reads dumps of PyTorch's Flight Recorder. The names of their files end with the
// rank, before an extension.
func readRecordings(cmd *cobra.Command, patterns []string) (map[int]*status.Recording, error) {
	recordings := map[int]*status.Recording{}
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		if err == nil && len(names) == 0 {
			err = fs.ErrNotExist
		}
		if err != nil {
			return nil, usagef(cmd, "--flight-recorder %s: %v", pattern, err)
		}
		for _, name := range names {
			rank, ok := rankIn(name)
			if !ok {
				return nil, usagef(cmd, "--flight-recorder: the name of %s does not end with a rank", name)
			}
			if recordings[rank] != nil {
				return nil, usagef(cmd, "--flight-recorder: %s and %s are of rank %d", recordings[rank].Source, name, rank)
			}
			recordings[rank] = readRecording(name)
		}
	}
	return recordings, nil
}

// rankIn returns the number at the end of a file's name, or of its name without its extension.
func rankIn(name string) (rank int, ok bool) {
	for _, base := range []string{name, strings.TrimSuffix(name, filepath.Ext(name))} {
		n, err := strconv.Atoi(base[len(strings.TrimRight(base, "0123456789")):])
		if err == nil && n < 1<<20 {
			return n, true
		}
	}
	return 0, false
}

// readRecording reads a file. One that is no dump is an error of its rank alone: a rank may have
// died while it wrote.
func readRecording(name string) *status.Recording {
	r := &status.Recording{Source: name}
	info, err := os.Stat(name)
	var b []byte
	if err == nil {
		r.At = info.ModTime()
		b, err = os.ReadFile(name)
	}
	if err == nil {
		r.Dump, err = flightrecorder.Parse(b)
	}
	r.Err = err
	return r
}
