package main

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// quantile returns a quantile of sorted values, or NaN if there are none.
func quantile[T int32 | int64 | float64](sorted []T, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return float64(sorted[int(q*float64(len(sorted)-1))])
}

// median returns the median of vs. It does not modify vs.
func median(vs []float64) float64 {
	s := slices.Sorted(slices.Values(vs))
	if n := len(s); n > 0 && n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return quantile(s, 0.5)
}

func mean(vs []float64) float64 {
	sum := 0.0
	for _, v := range vs {
		sum += v
	}
	return sum / float64(len(vs))
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// calmest returns the half of the rounds in which other processes used the least CPU time.
func calmest[T any](rounds []T, others func(T) float64) []T {
	slices.SortStableFunc(rounds, func(a, b T) int { return cmp.Compare(others(a), others(b)) })
	return rounds[:len(rounds)/2+len(rounds)%2]
}

// medianOf returns the median of f over vs.
func medianOf[T any](vs []T, f func(T) float64) float64 { return median(each(vs, f)) }

func each[T any](vs []T, f func(T) float64) []float64 {
	fs := make([]float64, len(vs))
	for i, v := range vs {
		fs[i] = f(v)
	}
	return fs
}
