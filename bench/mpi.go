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

// The arguments that make Open MPI use TCP on loopback, and shared memory.
var (
	overTCP    = []string{"--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"}
	overMemory = []string{"--mca", "btl", "vader,self"}
)

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
	var errs bytes.Buffer
	cmd.Stderr = &errs
	b, err := cmd.Output()
	if err != nil {
		return "", 0, fmt.Errorf("mpirun: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	return string(b), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// mpiParty is Open MPI as a party. It runs only for its turn, since its processes use the CPU while
// they wait.
type mpiParty struct {
	program *mpiProgram
	size    int
	over    []string // arguments for mpirun
	objects bool     // the size of an all-gather is that of a rank's object
}

func (m *mpiParty) turn(ctx context.Context, way string, bytes, count int) ([]lap, time.Duration, error) {
	verb, _, _ := strings.Cut(way, atWhom)
	verb, chained := strings.CutSuffix(verb, chainedSuffix)
	if m.objects && verb == "all-gather" {
		bytes *= m.size // MPI's is that of all
	}
	fenced := "fenced"
	if chained {
		fenced = "chained"
	}
	out, cpu, err := m.program.start(ctx, m.size, m.over, verb, strconv.Itoa(bytes), strconv.Itoa(count), fenced)
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
