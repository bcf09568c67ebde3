package merge

import (
	"regexp"
	"strings"
)

// Match reports whether name matches pattern. A * matches any text, including dots, and every other
// character matches itself.
func Match(pattern, name string) bool {
	pattern = regexp.QuoteMeta(strings.ToValidUTF8(pattern, "\uFFFD")) // names are valid
	return regexp.MustCompile("(?s)^" + strings.ReplaceAll(pattern, `\*`, ".*") + "$").MatchString(name)
}
