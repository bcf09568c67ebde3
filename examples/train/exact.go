package main

import (
	"fmt"
	"math"
)

// Fixed point: an int64 counts units of 2^-40. A summand is at most 2^10, and a batch has
// 64 of them, so a sum stays below 2^63.
const (
	unit    = 1.0 / (1 << 40)
	maxTerm = 1 << 10
)

// exactSum is the sum of gradients, followed by the sum of their losses. Each number is rounded
// once, to a multiple of unit, before it is added. The sum itself is not rounded, so neither order
// nor grouping matters: integer addition is associative, and floating-point addition is not.
type exactSum []int64

// add adds the gradient and the loss of one example. It returns an error if a number is too large
// or NaN.
func (s exactSum) add(grad []float32, loss float64) error {
	last := len(s) - 1
	for i, v := range grad[:last] {
		if err := addFixed(&s[i], float64(v)); err != nil {
			return fmt.Errorf("gradient: %w", err)
		}
	}
	if err := addFixed(&s[last], loss); err != nil {
		return fmt.Errorf("loss: %w", err)
	}
	return nil
}

func addFixed(sum *int64, v float64) error {
	if !(math.Abs(v) <= maxTerm) { // false for NaN too
		return fmt.Errorf("%v is beyond the ±%d that -deterministic can add", v, maxTerm)
	}
	*sum += int64(math.RoundToEven(v / unit)) // the division is exact: unit is a power of two
	return nil
}

// mean stores the mean gradient of n examples in grad, and returns their mean loss.
func (s exactSum) mean(grad []float32, n int) (loss float64) {
	last := len(s) - 1
	for i, v := range s[:last] {
		grad[i] = float32(float64(v) * unit / float64(n))
	}
	return float64(s[last]) * unit / float64(n)
}
