package main_test

import (
	"strings"
	"testing"

	muster "github.com/muster-pg/muster/cmd/muster"
)

func TestEveryCommandHasHelp(t *testing.T) {
	t.Parallel()
	for _, c := range muster.NewRoot().Commands() {
		if c.Hidden || !c.Runnable() {
			continue
		}
		if c.Short == "" || c.Example == "" || c.GroupID == "" {
			t.Errorf("%s has no summary, no example, or no group", c.Name())
		}
		for line := range strings.SplitSeq(c.Long, "\n") {
			if len(line) > 100 {
				t.Errorf("%s: a line has %d bytes: %s", c.Name(), len(line), line)
			}
		}
	}
}
