package main_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	muster "github.com/muster-pg/muster/cmd/muster"
	"github.com/muster-pg/muster/internal/testcluster"
)

// The variable role selects what this binary does when a test starts it again.
const (
	role       = "MUSTER_TEST_ROLE"
	roleMuster = "muster"
	roleHolder = "holder" // holds a connection until it is killed
	roleWorker = "worker" // of an elastic job
	roleUnit   = "unit"   // a process of a unit of one
	roleLoser  = "loser"  // a rank of a group whose rank 2 fails
)

// limit is the timeout of operations that should take almost no time.
const limit = 30 * time.Second

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case roleMuster:
		os.Exit(muster.Execute(os.Args[1:]))
	case roleHolder:
		os.Exit(asHolder())
	case roleLoser:
		os.Exit(asLoser(os.Args[1]))
	case roleUnit:
		os.Exit(asUnit())
	case roleWorker:
		os.Exit(asWorker())
	}
	testscript.Main(tests{m}, map[string]func(){"muster": func() { os.Exit(muster.Execute(os.Args[1:])) }})
}

// tests are the tests of this process; package testscript starts commands in others.
type tests struct{ *testing.M }

func (m tests) Run() int {
	for _, name := range []string{"MUSTER_STORE", "MUSTER_NAME", "NO_COLOR", "RANK"} {
		_ = os.Unsetenv(name)
	}
	// With -race every process sleeps for a second before it exits, and these tests start hundreds.
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	if err := testcluster.WaitTogether(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.M.Run()
}

func asHolder() int {
	c, err := net.Dial("tcp", os.Args[1])
	if err != nil {
		return 1
	}
	fmt.Fprintln(c, "here")
	_, _ = io.Copy(io.Discard, c)
	return 0
}

// result is the result of a command.
type result struct {
	code           int
	stdout, stderr string
}

// wants checks the exit code, that stdout is equal, and that stderr contains the text; "" means
// that nothing is printed.
func (r result) wants(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.code != code || r.stdout != stdout || (r.stderr == "") != (stderr == "") || !strings.Contains(r.stderr, stderr) {
		t.Errorf("exit code %d, stdout %q, stderr %q\nwant      %d,        %q,        %q", r.code, r.stdout, r.stderr, code, stdout, stderr)
	}
	if code > 0 && (strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "muster: ")) {
		t.Errorf("stderr is not one line that begins with muster: %q", r.stderr)
	}
}

// run runs one command line of muster.
func run(t *testing.T, args ...string) result {
	t.Helper()
	return start(t, args...).wait(t)
}

// process is a running muster.
type process struct {
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr *bufio.Reader
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	return startIn(t, nil, args...)
}

func startIn(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, self(t), args...)
	// Isolates the tests: by default a test does not find the jobs of another one.
	cmd.Env = append(append(os.Environ(), role+"="+roleMuster, "XDG_RUNTIME_DIR="+os.DevNull), env...)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // unless the test has done so
	})
	return &process{cmd, bufio.NewReader(stdout), bufio.NewReader(stderr)}
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	return path
}

func (p *process) wait(t *testing.T) result {
	t.Helper()
	defer p.endsIn(limit)()
	var stderr []byte
	done := make(chan struct{})
	go func() {
		defer close(done)
		stderr, _ = io.ReadAll(p.stderr)
	}()
	stdout, _ := io.ReadAll(p.stdout)
	<-done
	err := p.cmd.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return result{p.cmd.ProcessState.ExitCode(), string(stdout), string(stderr)}
}

// endsIn kills the process after d, unless stop is called before.
func (p *process) endsIn(d time.Duration) (stop func() bool) {
	return time.AfterFunc(d, func() { _ = p.cmd.Process.Kill() }).Stop
}

// line reads standard output up to a line that contains text, and returns the line.
func (p *process) line(t *testing.T, text string) string {
	t.Helper()
	defer p.endsIn(limit)()
	return lineOf(t, p.stdout, text)
}

// complaint is like line, for standard error.
func (p *process) complaint(t *testing.T, text string) {
	t.Helper()
	defer p.endsIn(limit)()
	lineOf(t, p.stderr, text)
}

func lineOf(t *testing.T, r *bufio.Reader, text string) string {
	t.Helper()
	var before bytes.Buffer
	for {
		s, err := r.ReadString('\n')
		if strings.Contains(s, text) {
			return strings.TrimSpace(s)
		}
		before.WriteString(s)
		require.NoError(t, err, "no line with %q, but %q", text, &before)
	}
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(sig))
}

// serve starts a store, and returns its process and address.
func serve(t *testing.T, args ...string) (*process, string) {
	t.Helper()
	p := start(t, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	return p, p.line(t, "muster://127.0.0.1:")
}
