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

func TestHelp(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                 "A running store",
		"help":             "exit-codes",
		"--help":           "See it work:     muster demo",
		"help run":         "--grace",
		"help serve":       "more flags: muster serve --help-all",
		"run --help-all":   "--settle",
		"help gather":      "--axis NAME=AXIS",
		"help tensors":     "--match",
		"run --help":       "--grace",
		"help exit-codes":  "the store could not be reached",
		"help environment": "MUSTER_RUN",
		"version":          "muster ",
		"--version":        "muster ",
	} {
		r := run(t, strings.Fields(args)...)
		if r.code != 0 || r.stderr != "" || !strings.Contains(r.stdout, want) {
			t.Errorf("muster %s: %+v", args, r)
		}
	}
}

func TestWrongCommandLines(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"gte k":             "did you mean get?",
		"dance":             `no command "dance"`,
		"--verbose":         "unknown flag",
		"help dance":        `no help on "dance"`,
		"completion csh":    "bash, zsh, fish",
		"get":               "KEY is missing",
		"get a b":           `unexpected argument "b"`,
		"set k":             "VALUE is missing",
		"set k v --ttl":     "--ttl",
		"set k v --ttl -1s": "negative",
		"wait":              "KEY… is missing",
		"delete":            "KEY… is missing",
		"demo now":          "unexpected argument",
		"version 2":         "unexpected argument",
	} {
		run(t, strings.Fields(args)...).wants(t, 2, "", want)
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

func TestCompletionOfKeys(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	steps(t, url, []step{{args: "set model/a 1"}, {args: "set model/b 1"}, {args: "set other 1"}})
	for args, want := range map[string]string{
		"get model/": "model/a\nmodel/b\n:4\n", "keys o": "other\n:4\n", "get --store muster://127.0.0.1:1 m": ":4\n", "help exit": "exit-codes\tExit codes\n:4\n",
	} {
		r := runIn(t, nil, []string{"MUSTER_STORE=" + url}, append([]string{"__complete"}, strings.Fields(args)...)...)
		if r.code != 0 || r.stdout != want {
			t.Errorf("%s: %+v", args, r)
		}
	}
}
