package benchrun_test

import (
	"testing"
	"time"

	"github.com/muster-pg/muster/cmd/muster/internal/benchrun"
)

func TestHistogram(t *testing.T) {
	t.Parallel()
	var a, b benchrun.Histogram
	if a.Quantile(0.5) != 0 || a.Mean() != 0 {
		t.Error("an empty one has times")
	}
	for i := range 1000 {
		a.Add(time.Duration(i+1) * time.Microsecond)
	}
	b.Add(time.Hour)
	a.Merge(b)
	for q, want := range map[float64]time.Duration{0.5: 501 * time.Microsecond, 0.99: 991 * time.Microsecond, 0.9999: time.Hour} {
		if got := a.Quantile(q); float64(max(got-want, want-got)) > 0.01*float64(want) {
			t.Errorf("quantile %v is %v, not about %v", q, got, want)
		}
	}
	if a.Count != 1001 {
		t.Errorf("%d times", a.Count)
	}
}
