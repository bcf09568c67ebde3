package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/muster-pg/muster/internal/launch"
)

// roleVar is the environment variable that makes this program a child, and names its role.
const roleVar = "MUSTER_BENCH_ROLE"

// roles are the roles of children. A child lives until its stdin ends, which happens when its
// parent ends.
var roles map[string]func(args []string) error

func init() { // not a literal: the roles start children in turn
	roles = map[string]func(args []string) error{
		"muster": serveMuster,
		"rank":   beRank,
	}
}

func isChild() bool { return os.Getenv(roleVar) != "" }

func runChild() (status int) {
	role := roles[os.Getenv(roleVar)]
	if role == nil {
		fmt.Fprintf(os.Stderr, "bench: no role %q\n", os.Getenv(roleVar))
		return 2
	}
	if err := role(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "bench %s: %v\n", os.Getenv(roleVar), err)
		return 1
	}
	return 0
}

// process is a child. It reads commands from its stdin and writes answers to its stdout, a line
// each.
type process struct {
	*launch.Process
	job    *launch.Job
	role   string // for errors
	out    *bufio.Reader
	stderr bytes.Buffer // to be read after the end
}

// spawn starts this program in a role.
func spawn(ctx context.Context, role string, args ...string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(ctx, role, []string{roleVar + "=" + role}, exe, args...)
}

// start starts a program, which is killed when its context or this process ends.
func start(ctx context.Context, role string, env []string, path string, args ...string) (*process, error) {
	out, in := io.Pipe()
	p := &process{role: role, out: bufio.NewReaderSize(out, 1<<20)}
	var err error
	p.job, err = launch.Start(ctx, launch.Spec{
		N: 1, Path: path, Args: args, ParentPipe: true, Output: in, ErrOutput: &p.stderr, Grace: -1,
		Env: func(int) []string { return env }, Prefix: func(int) string { return "" },
	})
	if err != nil {
		return nil, err
	}
	p.Process = p.job.Process(0)
	go func() { _ = in.CloseWithError(cmp.Or(p.job.Wait(), io.EOF)) }()
	return p, nil
}

// line returns the child's next line.
func (p *process) line() (string, error) {
	s, err := p.out.ReadString('\n')
	if err != nil {
		p.stop()
		return "", fmt.Errorf("%s: %w: %s", p.role, err, strings.TrimSpace(p.stderr.String()))
	}
	return strings.TrimSpace(s), nil
}

// ask sends a command to the child, and returns its answer.
func (p *process) ask(what string) (string, error) {
	if _, err := io.WriteString(p.job.Input(), what+"\n"); err != nil {
		_, why := p.line() // the child has ended, and may have printed an error
		return "", errors.Join(err, why)
	}
	return p.line()
}

// stop ends the child: it closes the child's stdin, and kills it if that does not suffice.
func (p *process) stop() {
	_ = p.job.Input().Close()
	timer := time.AfterFunc(3*time.Second, func() { _ = p.Signal(os.Kill) })
	defer timer.Stop()
	_, _ = io.Copy(io.Discard, p.out)
	_ = p.job.Wait()
}

// emit prints a line, which the parent reads.
func emit(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// listen calls answer for each of the parent's lines until its stdin ends.
func listen(answer func(line string) error) error {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if err := answer(in.Text()); err != nil {
			return err
		}
	}
	return in.Err()
}
