package python_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
)

func TestMain(m *testing.M) {
	testcluster.Children{"relay": testcluster.ServeRelay}.Run()
	testcluster.Leaks(m)
}

// interpreter returns a Python that has msgpack and numpy, and skips the test if there is none.
func interpreter(t *testing.T) string {
	t.Helper()
	return testcluster.Python(t, "msgpack", "numpy")
}

func lastLine(out []byte) string {
	out = bytes.TrimSpace(out)
	return string(out[bytes.LastIndexByte(out, '\n')+1:])
}

// environment returns the environment of a Python that finds the package.
func environment(t *testing.T, more ...string) []string {
	t.Helper()
	here, err := os.Getwd()
	require.NoError(t, err)
	return append(os.Environ(), append([]string{"PYTHONPATH=" + here, "PYTHONDONTWRITEBYTECODE=1", "PYTHONUTF8=1"}, more...)...)
}

// script runs Python until it exits, and fails the test if Python does.
func script(t *testing.T, env []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter(t), args...)
	cmd.Env = environment(t, env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// rank is a process of tests/rank.py.
type rank struct {
	*testcluster.Peer
	t *testing.T
}

// failure is an exception of Python.
type failure struct {
	Text                string
	Kinds               []string // its classes
	Missing, Lost, Left []int
	By                  int
	Waited              float64
}

func (f *failure) Error() string { return f.Text }

// is reports whether it is of a class.
func (f *failure) is(kind string) bool { return slices.Contains(f.Kinds, kind) }

// start starts a Python process, which ends with the test.
func start(t *testing.T) *rank {
	t.Helper()
	cmd := exec.Command(interpreter(t), "tests/rank.py")
	cmd.Env = environment(t)
	return &rank{testcluster.NewPeer(t, cmd), t}
}

// kw are keyword arguments.
type kw map[string]any

// do makes a call; a kw as the last argument holds keyword arguments. An exception is returned as a
// *failure.
func (r *rank) do(on, verb string, args ...any) (any, error) {
	call := map[string]any{"on": on, "do": verb}
	if n := len(args); n > 0 {
		if k, ok := args[n-1].(kw); ok {
			call["kwargs"], args = k, args[:n-1]
		}
	}
	call["args"] = args
	line, err := json.Marshal(call)
	if err != nil {
		return nil, err
	}
	answer, err := r.Ask(string(line))
	if err != nil {
		return nil, err
	}
	var outcome struct {
		Value any
		Error *failure
	}
	if err := json.Unmarshal([]byte(answer), &outcome); err != nil {
		return nil, err
	}
	if outcome.Error != nil {
		return nil, outcome.Error
	}
	return outcome.Value, nil
}

// must is do for a call that must succeed.
func (r *rank) must(on, verb string, args ...any) any {
	r.t.Helper()
	v, err := r.do(on, verb, args...)
	require.NoError(r.t, err)
	return v
}

// fails is do for a call that must fail with an exception of a class.
func (r *rank) fails(kind, on, verb string, args ...any) *failure {
	r.t.Helper()
	v, err := r.do(on, verb, args...)
	f, ok := errors.AsType[*failure](err)
	require.True(r.t, ok, "%v, %v", v, err)
	require.Contains(r.t, f.Kinds, kind, f.Text)
	return f
}

// raw returns bytes in the encoding of tests/rank.py.
func raw(s string) map[string]any {
	return map[string]any{"bytes": base64.StdEncoding.EncodeToString([]byte(s))}
}

// mixed is a group whose even ranks are in Go, and whose odd ranks are in Python.
type mixed struct {
	t  *testing.T
	gs []*pgroup.Group // nil for Python ranks
	ps []*rank
}

// create makes a mixed group of n ranks at an address.
func create(t *testing.T, n int, addr string, options kw, config pgroup.Config) *mixed {
	t.Helper()
	m := &mixed{t: t, gs: make([]*pgroup.Group, n), ps: make([]*rank, n)}
	for r := 1; r < n; r += 2 {
		m.ps[r] = start(t)
	}
	m.each(func(r int) error {
		c := config
		c.Rank, c.Size, c.Address, c.Timeout = r, n, "muster://"+addr, cmp.Or(c.Timeout, 30*time.Second)
		g, err := pgroup.Create(t.Context(), c)
		m.gs[r] = g
		return err
	}, func(r int, p *rank) error {
		k := kw{"timeout": 30}
		maps.Copy(k, options)
		_, err := p.do("new", "join", r, n, addr, k)
		return err
	})
	t.Cleanup(func() {
		for _, g := range m.gs {
			if g != nil {
				_ = g.Close()
			}
		}
	})
	return m
}

// each runs a function on all ranks at once, and requires that all succeed.
func (m *mixed) each(inGo func(r int) error, inPython func(r int, p *rank) error) {
	m.t.Helper()
	for r, err := range m.outcomes(inGo, inPython) {
		require.NoError(m.t, err, "rank %d", r)
	}
}

// both makes a call on all ranks at once, which succeeds.
func (m *mixed) both(inGo func(g *pgroup.Group) error, verb string, args ...any) {
	m.t.Helper()
	m.each(func(r int) error { return inGo(m.gs[r]) }, func(_ int, p *rank) error {
		_, err := p.do("group", verb, args...)
		return err
	})
}

// verbs calls each collective verb once on two ranks, with root 0.
func (m *mixed) verbs(ctx context.Context) {
	m.t.Helper()
	two := []string{"x", "x"}
	m.both(func(g *pgroup.Group) error { return g.Barrier(ctx) }, "barrier")
	m.both(func(g *pgroup.Group) error { _, err := pgroup.Broadcast(ctx, g, 0, "x"); return err }, "broadcast")
	m.both(func(g *pgroup.Group) error { _, err := pgroup.AllGather(ctx, g, "x"); return err }, "all_gather", "x")
	m.both(func(g *pgroup.Group) error { _, err := pgroup.Gather(ctx, g, 0, "x"); return err }, "gather", "x")
	m.both(func(g *pgroup.Group) error { _, err := pgroup.Scatter(ctx, g, 0, two); return err }, "scatter")
	m.both(func(g *pgroup.Group) error { _, err := pgroup.AllToAll(ctx, g, two); return err }, "all_to_all", two)
	m.both(func(g *pgroup.Group) error { _, err := pgroup.AllReduce(ctx, g, pgroup.Avg, 7, 9); return err }, "all_reduce", []int{7, 9}, "avg")
}

// outcomes runs a function on all ranks at once, and returns their errors.
func (m *mixed) outcomes(inGo func(r int) error, inPython func(r int, p *rank) error) []error {
	errs := make([]error, len(m.gs))
	done := make(chan struct{})
	for r := range m.gs {
		go func() {
			defer func() { done <- struct{}{} }()
			if p := m.ps[r]; p != nil {
				errs[r] = inPython(r, p)
			} else {
				errs[r] = inGo(r)
			}
		}()
	}
	for range m.gs {
		<-done
	}
	return errs
}

// bounded returns a context for the whole of a test.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
