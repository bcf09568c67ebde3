package main_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	muster "github.com/muster-pg/muster/cmd/muster"
	"github.com/muster-pg/muster/internal/testcluster"
)

const commandReference = "../../docs/reference/cli.md"

var update = flag.Bool("update", false, "write docs/reference/cli.md")

// TestCommandReference checks that docs/reference/cli.md is equal to the help of the commands.
func TestCommandReference(t *testing.T) {
	t.Parallel()
	want := reference(muster.NewRoot())
	if *update {
		require.NoError(t, os.WriteFile(commandReference, []byte(want), 0o644))
	}
	got, err := os.ReadFile(commandReference)
	if err != nil || string(got) != want {
		t.Errorf("docs/reference/cli.md is not up to date (%v): go test ./cmd/muster -run TestCommandReference -update", err)
	}
}

// reference returns a page with the help of root and all its commands.
func reference(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# Command line\n\n`go test ./cmd/muster -run TestCommandReference -update` writes this page from the commands' help.\n" +
		"[Configuration](configuration.md) has the environment variables, URLs and exit codes.\n\n| command | |\n|---|---|\n")
	var commands []*cobra.Command
	for _, g := range root.Groups() {
		for _, c := range root.Commands() {
			if c.GroupID == g.ID && c.Name() != "help" && c.Name() != "completion" {
				commands = append(commands, c)
			}
		}
	}
	for _, c := range commands {
		fmt.Fprintf(&b, "| [muster %s](#muster-%s) | %s |\n", c.Name(), c.Name(), strings.ReplaceAll(c.Short, "|", `\|`))
	}
	for _, c := range commands {
		c.InitDefaultHelpFlag()
		fmt.Fprintf(&b, "\n## muster %s\n\n```\n%s\n```\n\n", c.Name(), c.UseLine())
		text := c.Long
		if text == "" {
			text = c.Short + "."
		}
		fmt.Fprintf(&b, "```text\n%s\n```\n\n```sh\n%s\n```\n\n", text, strings.TrimSpace(strings.ReplaceAll(c.Example, "\n  ", "\n")))
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "help" {
				return
			}
			b.WriteString(wrapped(flagLine(f)))
		})
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// flagLine returns the list item of flag f.
func flagLine(f *pflag.Flag) string {
	kind, usage := pflag.UnquoteUsage(f)
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	line := "- `" + strings.TrimSpace(name+" "+kind) + "`: " + usage
	switch f.DefValue {
	case "", "0", "0s", "false", "[]":
		return line
	}
	return line + " (default `" + strings.Trim(f.DefValue, "[]") + "`)"
}

// wrapped returns a list item in lines of at most 100 columns.
func wrapped(item string) string {
	var b strings.Builder
	line := ""
	for w := range strings.FieldsSeq(item) {
		if line != "" && len([]rune(line))+1+len([]rune(w)) > 100 {
			b.WriteString(line + "\n")
			line = " "
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	return b.String() + line + "\n"
}

var (
	shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")
	program    = regexp.MustCompile("(?ms)^```go\n(package main\n.*?)^```")
	invocation = regexp.MustCompile(`(?:^|[\s;(|])(?:/tmp/)?muster ([a-z]+)([^\n#;|&>)]*)`)
)

// TestCommandsOfTheDocs checks that each call of muster in the shell blocks of README.md and docs/
// has an existing command and existing flags.
func TestCommandsOfTheDocs(t *testing.T) {
	t.Parallel()
	calls := 0
	err := fs.WalkDir(os.DirFS("../.."), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && name != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".md") || name == "CHANGELOG.md" {
			return nil
		}
		text, err := os.ReadFile(filepath.Join("../..", name))
		for _, block := range shellBlock.FindAllStringSubmatch(string(text), -1) {
			for _, m := range invocation.FindAllStringSubmatch(strings.ReplaceAll(block[1], "\\\n", " "), -1) {
				calls++
				checkCall(t, name, m[1], strings.Fields(m[2]))
			}
		}
		return err
	})
	require.NoError(t, err)
	assert.GreaterOrEqual(t, calls, 50)
}

func checkCall(t *testing.T, file, name string, args []string) {
	t.Helper()
	c, _, err := muster.NewRoot().Find([]string{name})
	if err != nil {
		t.Errorf("%s calls muster %s: %v", file, name, err)
		return
	}
	c.InitDefaultHelpFlag()
	for _, a := range args {
		flag, _, _ := strings.Cut(a, "=")
		switch {
		case a == "--":
			return
		case strings.HasPrefix(flag, "--") && c.Flags().Lookup(flag[2:]) == nil,
			len(flag) == 2 && flag[0] == '-' && flag != "-1" && c.Flags().ShorthandLookup(flag[1:]) == nil:
			t.Errorf("%s calls muster %s with %s, which it does not have", file, name, flag)
		}
	}
}

// TestGettingStarted runs the program of docs/getting-started.md as the page says, and compares
// what it prints with the page.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/getting-started.md")
	require.NoError(t, err)
	m := program.FindStringSubmatch(string(page))
	require.NotNil(t, m, "the page has no program")
	dir := t.TempDir()
	source, exe := filepath.Join(dir, "main.go"), filepath.Join(dir, "train")
	require.NoError(t, os.WriteFile(source, []byte(m[1]), 0o600))
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", exe, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r := run(t, "run", "-n", "4", "--", exe)
	_, want, _ := strings.Cut(string(page), "$ muster run -n 4 -- ./train\n")
	want, _, _ = strings.Cut(want, "```")
	if r.code != 0 || r.stdout != want {
		t.Errorf("%+v, want %q", r, want)
	}
}

// TestSSHOfTheDocs runs the loop over a file of hosts of docs/guides/run-a-job.md, with a program in
// place of ssh that runs the command here.
func TestSSHOfTheDocs(t *testing.T) {
	t.Parallel()
	testcluster.Shell(t)
	page, err := os.ReadFile("../../docs/guides/run-a-job.md")
	require.NoError(t, err)
	var loop string
	for _, m := range shellBlock.FindAllStringSubmatch(string(page), -1) {
		if strings.Contains(m[1], "ssh -tt") {
			loop = m[1]
		}
	}
	_, url := serve(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"ssh":    "#!/bin/sh\nMUSTER_HOST=$2 exec sh -c \"$3\"\n",
		"muster": fmt.Sprintf("#!/bin/sh\n%s=%s exec %s \"$@\"\n", role, roleMuster, self(t)),
		"train":  "#!/bin/sh\necho of $WORLD_SIZE on $MUSTER_HOST\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "hosts"), []byte("node-a\nnode-b\n"), 0o600))
	cmd := exec.CommandContext(t.Context(), "sh", "-c", strings.NewReplacer("--nnodes 4 -n 8", "--nnodes 2 -n 1", "muster://10.0.0.5:7070", url).Replace(loop))
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, host := range []string{"node-a", "node-b"} {
		require.Contains(t, string(out), "] of 2 on "+host+"\n")
	}
}
