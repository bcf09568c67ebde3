package archtest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTree holds the tree that we are in to the rules.
func TestTree(t *testing.T) {
	pkgs, err := load()
	require.NoError(t, err)
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			for _, p := range pkgs {
				for _, line := range rule(p) {
					t.Error(line)
				}
			}
		})
	}
}
