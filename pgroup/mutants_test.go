package pgroup_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// mutants break one rule of codec.go each, which TestPanics must notice.
var mutants = []struct {
	name     string
	old, new string // old occurs exactly once
}{
	{
		"a codec that panics as it encodes leaves its rank without a vote",
		`	defer rescue(&err)
	if p, ok := any(v).(*[]byte); ok {
		b = *p`, `	if p, ok := any(v).(*[]byte); ok {
		b = *p`,
	},
	{
		"a codec that panics as it decodes ends its caller",
		`	defer rescue(&err)
	if p, ok := any(v).(*[]byte); ok {
		*p = b`, `	if p, ok := any(v).(*[]byte); ok {
		*p = b`,
	},
}

// TestMutants shows that TestPanics notices each broken rule.
func TestMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: each mutant is built: not in a short run")
	}
	tries := mutationtest.Sampled(t, len(mutants), len(mutants))
	for i, m := range mutants {
		mutationtest.Applies(t, "codec.go", m.old)
		if tries(i) {
			t.Run(m.name, func(t *testing.T) { mutationtest.NoticedBy(t, "codec.go", m.old, m.new, "^TestPanics$") })
		}
	}
}
