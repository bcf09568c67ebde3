package main_test

import (
	"os/exec"
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

func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		r := run(t, "completion", shell)
		if r.code != 0 || !strings.Contains(r.stdout, "muster") {
			t.Errorf("%s: %d, %s", shell, r.code, r.stderr)
		}
		if path, err := exec.LookPath(shell); err == nil && shell != "powershell" {
			check := exec.CommandContext(t.Context(), path, "-n")
			check.Stdin = strings.NewReader(r.stdout)
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s does not take its script: %v, %s", shell, err, out)
			}
		}
	}
}
