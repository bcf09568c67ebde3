package dataparallel_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/dataparallel"
)

// TestClaimOfNothing checks the comparison with a faulty rank that claims no tensors.
func TestClaimOfNothing(t *testing.T) {
	assert.Equal(t, `rank 1 has a tensor "w", rank 0 has none`, dataparallel.DiffersFromNothing(map[string]string{"w": "F32[1]"}))
	assert.Empty(t, dataparallel.DiffersFromNothing(nil))
}
