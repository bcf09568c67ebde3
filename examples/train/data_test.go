package main_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	train "github.com/muster-pg/muster/examples/train"
)

// TestData checks that the data match their README and the numbers of each digit that the authors
// of the data set give.
func TestData(t *testing.T) {
	assert.Contains(t, string(read(t, "data/README.md")), fmt.Sprintf("%x", sha256.Sum256(train.Digits)))
	for _, file := range []string{"", "data/digits.csv.gz"} {
		learn, heldOut, labels, err := train.Count(file)
		require.NoError(t, err)
		assert.Equal(t, [2]int{1438, 359}, [2]int{learn, heldOut})
		assert.Equal(t, [10]int{178, 182, 177, 183, 181, 182, 181, 179, 174, 180}, labels)
	}
}

func TestBadData(t *testing.T) {
	row := strings.Repeat("0,", 64) + "1\n"
	for name, tc := range map[string]struct{ rows, want string }{
		"empty":          {"", "0 rows are too few to learn from"},
		"short":          {strings.Repeat(row, 19), "19 rows are too few"},
		"fields":         {row + "1,2,3\n", "row 2 has 3 fields, and should have 64 pixels and a label"},
		"pixel":          {row + row + strings.Replace(row, "0,0,", "0,17,", 1), `row 3: pixel 1: "17" is no number from 0 to 16`},
		"negative pixel": {strings.Replace(row, "0,", "-1,", 1), `row 1: pixel 0: "-1" is no number`},
		"label":          {strings.Repeat("0,", 64) + "x\n", `row 1: label: "x" is no number from 0 to 9`},
		"quote":          {`"`, `parse error on line 1`},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, _ = z.Write([]byte(tc.rows))
			require.NoError(t, z.Close())
			assertBad(t, b.Bytes(), tc.want)
		})
	}
	assertBad(t, []byte(row), "not a gzipped CSV file")
	assertBad(t, train.Digits[:len(train.Digits)/2], "unexpected EOF")
	_, _, _, err := train.Count("nowhere.csv.gz")
	assert.ErrorContains(t, err, "no data: open nowhere.csv.gz")
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func assertBad(t *testing.T, raw []byte, want string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bad.csv.gz")
	require.NoError(t, os.WriteFile(file, raw, 0o600))
	_, _, _, err := train.Count(file)
	assert.ErrorContains(t, err, "data in "+file+": ")
	assert.ErrorContains(t, err, want)
}
