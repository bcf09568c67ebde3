package pgroup_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// mutants break one rule of codec.go each, which TestPanics must notice.
var mutants = []mutationtest.Mutant{
	{
		Name: "a codec that panics as it encodes leaves its rank without a vote",
		File: "codec.go", Test: "^TestPanics$",
		Old: `	defer rescue(&err)
	if p, ok := any(v).(*[]byte); ok {
		b = *p`, New: `	if p, ok := any(v).(*[]byte); ok {
		b = *p`,
	},
	{
		Name: "a codec that panics as it decodes ends its caller",
		File: "codec.go", Test: "^TestPanics$",
		Old: `	defer rescue(&err)
	if p, ok := any(v).(*[]byte); ok {
		*p = b`, New: `	if p, ok := any(v).(*[]byte); ok {
		*p = b`,
	},
}

// TestMutants shows that TestPanics notices each broken rule.
func TestMutants(t *testing.T) { mutationtest.Run(t, mutants, len(mutants)) }
