package dataparallel_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/dataparallel"
)

// TestClaimOfNothing compares with what a rank may say that has gone wrong.
func TestClaimOfNothing(t *testing.T) {
	assert.Equal(t, `rank 1 has a tensor "w", rank 0 has none`, dataparallel.DiffersFromNothing(map[string]string{"w": "F32[1]"}))
	assert.Empty(t, dataparallel.DiffersFromNothing(nil))
}
