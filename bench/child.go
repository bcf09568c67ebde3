package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// roleVar is the environment variable that makes this program a child, and names its role.
const roleVar = "MUSTER_BENCH_ROLE"

// roles are the roles of children. A child lives until its stdin ends, which happens when its
// parent ends.
var roles map[string]func(args []string) error

func init() { // not a literal: the roles start children in turn
	roles = map[string]func(args []string) error{
		"muster": serveMuster,
		"bare":   serveBare,
		"idle":   holdIdle,
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
	role   string // for errors
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr bytes.Buffer
	log    sync.WaitGroup // the goroutine that discards the child's output
}

// spawn starts this program in a role.
func spawn(ctx context.Context, role string, args ...string) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	return start(role, cmd)
}

// start starts cmd, which is killed when its context or this process ends.
func start(role string, cmd *exec.Cmd) (*process, error) {
	p := &process{role: role, cmd: cmd}
	cmd.Stderr = &p.stderr
	cmd.WaitDelay = time.Second
	bindLife(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = in, bufio.NewReaderSize(out, 1<<20)
	return p, cmd.Start()
}

// line returns the child's next line.
func (p *process) line() (string, error) {
	s, err := p.out.ReadString('\n')
	if err != nil {
		p.stop()
		return "", fmt.Errorf("%s %.60s: %w, %v: %s", p.role, strings.Join(p.cmd.Args[1:], " "), err, p.cmd.ProcessState, strings.TrimSpace(p.stderr.String()))
	}
	return strings.TrimSpace(s), nil
}

// ask sends a command to the child, and returns its answer.
func (p *process) ask(what string) (string, error) {
	if _, err := io.WriteString(p.in, what+"\n"); err != nil {
		_, why := p.line() // the child has ended, and may have printed an error
		return "", errors.Join(err, why)
	}
	return p.line()
}

// stop ends the child: it closes the child's stdin, and kills it if that does not suffice.
func (p *process) stop() {
	_ = p.in.Close()
	timer := time.AfterFunc(3*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	p.log.Wait()
	_, _ = io.Copy(io.Discard, p.out)
	_ = p.cmd.Wait()
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
