package merge_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/cmd/muster/internal/merge"
)

func TestGlobs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, name string
		want          bool
	}{
		{"", "", true},
		{"", "a", false},
		{"*", "", true},
		{"*", "a.b", true},
		{"a", "a", true},
		{"a*", "a", true},
		{"*a", "ba", true},
		{"*a", "ab", false},
		{"a*a", "a", false},
		{"a*a", "aa", true},
		{"*.q.*", "0.q.w", true},
		{"*.q.*", "0.qq.w", false},
		{"a**b", "ab", true},
		{"*ab*ab", "ab", false},
		{"*ab*ab", "xababxab", true},
		{"a*\xff", "a", false},
		{"a*b", "a\nb", true},
		{"a.b", "axb", false},
	} {
		assert.Equal(t, test.want, merge.Glob(test.pattern).MatchString(test.name), "%q fits %q", test.pattern, test.name)
	}
}
