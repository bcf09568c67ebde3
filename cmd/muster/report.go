package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/muster-pg/muster/cmd/muster/internal/benchrun"
)

// reports decodes the output of the ranks of bench, one JSON value per line. It is an Output of
// launch.Spec; ctx ends when the values are no longer received.
type reports struct {
	ctx    context.Context
	values chan benchrun.Report
}

// Write decodes whole lines.
func (r reports) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		var v benchrun.Report
		if err := json.Unmarshal(line, &v); err != nil {
			return 0, fmt.Errorf("a rank said %q: %w", line, err)
		}
		select {
		case r.values <- v:
		case <-r.ctx.Done():
			return len(b), nil
		}
	}
	return len(b), nil
}
