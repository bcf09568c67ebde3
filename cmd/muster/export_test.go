package main

import "time"

var (
	Execute = execute
	NewRoot = newRoot
	Short   = short
)

type (
	Histogram = histogram
	Size      = size
)

func (h *histogram) Add(ds ...time.Duration) {
	for _, d := range ds {
		h.add(d)
	}
}

func (h *histogram) Quantile(q float64) time.Duration { return h.quantile(q) }
func (h *histogram) Mean() time.Duration              { return h.mean() }
func (h *histogram) Merge(o histogram)                { h.merge(o) }
