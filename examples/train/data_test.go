package main_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	train "github.com/muster-pg/muster/examples/train"
)

// TestData checks that the data match their README and the numbers of each digit that the authors
// of the data set give.
func TestData(t *testing.T) {
	readme, err := os.ReadFile("data/README.md")
	require.NoError(t, err)
	assert.Contains(t, string(readme), fmt.Sprintf("%x", sha256.Sum256(train.Digits)))
	learn, heldOut, labels, err := train.Count()
	require.NoError(t, err)
	assert.Equal(t, [2]int{1438, 359}, [2]int{learn, heldOut})
	assert.Equal(t, [10]int{178, 182, 177, 183, 181, 182, 181, 179, 174, 180}, labels)
}
