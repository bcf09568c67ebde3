package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

//go:embed mpi/verbs.c
var mpiSource []byte

// errNoMPI is the error if Open MPI is missing.
var errNoMPI = errors.New("mpicc or mpirun is not in PATH: install Open MPI (apt install openmpi-bin libopenmpi-dev gcc), or leave out -mpi")

// mpiProgram is a C program with the same verbs.
type mpiProgram struct{ dir, path string }

func buildMPI(ctx context.Context) (*mpiProgram, error) {
	for _, tool := range []string{"mpicc", "mpirun"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, errNoMPI
		}
	}
	dir, err := os.MkdirTemp("", "muster-bench")
	if err != nil {
		return nil, err
	}
	p := &mpiProgram{dir, filepath.Join(dir, "verbs")}
	source := p.path + ".c"
	if err := os.WriteFile(source, mpiSource, 0o600); err != nil {
		p.remove()
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, "mpicc", "-O2", "-o", p.path, source).CombinedOutput(); err != nil {
		p.remove()
		return nil, fmt.Errorf("mpicc: %w: %s", err, out)
	}
	return p, nil
}

func (p *mpiProgram) remove() { _ = os.RemoveAll(p.dir) }

// overTCP are the arguments that make Open MPI use TCP on loopback.
var overTCP = []string{"--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"}

// run measures n processes over TCP on loopback.
func (p *mpiProgram) run(ctx context.Context, n int, each time.Duration) (found map[string]spread, err error) {
	out, _, err := p.start(ctx, n, overTCP, strconv.FormatFloat(each.Seconds(), 'f', 3, 64))
	if err != nil {
		return nil, err
	}
	found = map[string]spread{}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), ";")
		if len(f) != 4 {
			continue // a message of mpirun's
		}
		var x spread
		for i, into := range []*float64{&x.P50, &x.P90, &x.Mean} {
			if *into, err = strconv.ParseFloat(f[i+1], 64); err != nil {
				return nil, fmt.Errorf("mpirun said %q: %w", line, err)
			}
		}
		found[f[0]] = x
	}
	return found, nil
}

// start runs the program in n processes. It returns their output and their total CPU time.
func (p *mpiProgram) start(ctx context.Context, n int, way []string, args ...string) (out string, cpu time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	all := []string{"--oversubscribe", "-np", strconv.Itoa(n), "--mca", "pml", "ob1", "--mca", "oob_tcp_if_include", "lo"}
	all = append(append(all, way...), p.path)
	cmd := exec.CommandContext(ctx, "mpirun", append(all, args...)...)
	cmd.Env = append(os.Environ(), "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1")
	// mpirun then ends its processes
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	bindLife(cmd)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	b, err := cmd.Output()
	if err != nil {
		return "", 0, fmt.Errorf("mpirun: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	return string(b), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// mpiGather is MPI_Gather as a party of bench gather. It runs only for its turn, since MPI's
// processes use the CPU while they wait.
type mpiGather struct {
	program *mpiProgram
	size    int
	name    string
	way     []string // arguments for mpirun
}

func (m *mpiGather) pids() []int { return nil }

func (m *mpiGather) turn(ctx context.Context, _ string, n, count int) ([]lap, time.Duration, error) {
	return m.program.laps(ctx, m.size, m.way, count, "gather", strconv.Itoa(n), strconv.Itoa(count))
}

// laps runs the program for count calls, and returns their times as one lap.
func (p *mpiProgram) laps(ctx context.Context, size int, way []string, count int, args ...string) ([]lap, time.Duration, error) {
	out, cpu, err := p.start(ctx, size, way, args...)
	if err != nil {
		return nil, 0, err
	}
	var l lap
	for line := range strings.Lines(out) {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "took;")
		if !ok {
			continue // a message of mpirun's
		}
		took, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, 0, fmt.Errorf("mpirun said %q: %w", line, err)
		}
		l.Took = append(l.Took, took)
	}
	if len(l.Took) != count {
		return nil, 0, fmt.Errorf("mpirun reported %d times of %d", len(l.Took), count)
	}
	return []lap{l}, cpu, nil
}
