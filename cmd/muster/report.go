package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// reports decodes the output of ranks, one JSON value per line. It is an Output of launch.Spec; ctx
// ends when the values are no longer received.
type reports[T any] struct {
	ctx    context.Context
	values chan T
}

func newReports[T any](ctx context.Context) reports[T] {
	return reports[T]{ctx, make(chan T, 64)}
}

// Write decodes whole lines.
func (r reports[T]) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		var v T
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

// report writes a value for reports, in a rank.
func report(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// complaints collects what ranks write to standard error. They write nothing unless they fail.
type complaints struct {
	mu  sync.Mutex // protects buf
	buf bytes.Buffer
}

func (c *complaints) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.Write(b)
}

// add appends the complaints to err.
func (c *complaints) add(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil || c.buf.Len() == 0 {
		return err
	}
	return fmt.Errorf("%w; %s", err, bytes.TrimSpace(c.buf.Bytes()))
}
