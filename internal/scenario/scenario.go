// Package scenario runs the rules of stores and groups as text: testdata has a file for each rule,
// with commands and the output that must follow. Each engine runs the same files, in a test of its
// own package:
//
//	func TestScenarios(t *testing.T) {
//		scenario.Run(t, "../internal/scenario/testdata", scenario.Pipe)
//	}
//
// "go test ./internal/scenario -rewrite" writes the output of its engines into the files, for review.
// Without -rewrite all engines must agree.
//
// A block is commands, one a line, and their output, as in package datadriven. A command is a verb,
// the sessions that call it one after the other, arguments and options:
//
//	set a k v ttl=5s
//	wait b,c k
//	----
//	a: ok
//	b: v
//	c: v
//
// A session is opened when it is first named. The output has what calls have returned and, at the
// end of the block, a line for each call that still waits. The tables of verbs, with their arguments,
// are in keys.go and groups.go; an engine may have others (Session.Verbs). Each verb also has timeout=, and times=, which repeats it. An argument
// in double quotes is a Go string without spaces, and x*60 is 60 of x.
//
// Three kinds of comments are for the runner: "# needs:" lists features that not all engines have, and
// "# store:" and "# rights:" have the settings of the store.
//
// A file runs in a bubble of testing/synctest: time is virtual, and passes only in "advance 5s".
package scenario

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
)

// Engine is a kind of store on which scenarios run.
type Engine struct {
	Name string
	// Start starts an empty store, and returns the function that opens a session of it. It
	// registers its own cleanup.
	Start func(t *testing.T, s Settings) (open func(name string) Session)
	// Has are the features that this kind has. A file that needs another one is skipped.
	Has []Feature
	// Only, if not nil, names the files that it runs.
	Only []string
	// Lag is the time that the engine may take to answer, although nothing is missing; 0: none.
	Lag time.Duration
	// Real engines use sockets, or other processes: their time is not virtual, and the runner learns from
	// the status of the store that a call waits.
	Real bool
}

// Settings are the settings of the store for one file.
type Settings struct {
	Limits store.Limits
	Access []store.Access // for each name of a session, with secret(name); nil: all may do everything
}

// secret returns the secret of the session with a name.
func secret(name string) []byte { return []byte("the secret of " + name) }

// DialOptions returns the options of the client of the session with a name.
func (s Settings) DialOptions(name string) *store.DialOptions {
	if s.Access == nil {
		return new(store.DialOptions)
	}
	return &store.DialOptions{Secret: secret(name)}
}

// Session is a session of a store, and what can happen to it.
type Session struct {
	store.Engine
	Links *testcluster.Links // its connections: with a crash of its process they end without a goodbye
	// Stop ends the store, and Restart starts it again. Restore starts it as the file Backup says. They
	// are nil without Restarts. With Relays, Stop cuts the relay of the session off, until Restart.
	Stop, Restart, Restore func()
	Backup                 string
	// Verbs are further verbs of its own files. They get the arguments behind the session, end with ctx,
	// and return a line of output, or "".
	Verbs map[string]func(ctx context.Context, args []string) string
}

// Shared is an engine of several sessions, whose ends leave it open.
type Shared struct{ store.Engine }

// Close does nothing.
func (Shared) Close() error { return nil }

// Feature is something that files need, and not all engines have.
type Feature string

// The features.
const (
	Clock    Feature = "clock"    // time is virtual: "advance", and deadlines; unless Real
	Exact    Feature = "exact"    // an answer takes no time, not even a virtual one; unless Real or with a Lag
	Restarts Feature = "restarts" // of a durable store
	Relays   Feature = "relays"   // sessions are behind a relay, except those whose names begin with direct
	Numbers  Feature = "numbers"  // of requests, chosen by the file
	Whole    Feature = "whole"    // sessions see the whole store
	LimitsOf Feature = "limits"   // the file sets the limits of the store
	Rights   Feature = "rights"   // the file says who may do what
)

// lacks returns the first of features that e does not have, or "".
func (e *Engine) lacks(features []Feature) Feature {
	has := slices.Clone(e.Has)
	if !e.Real {
		has = append(has, Clock)
	}
	if !e.Real && e.Lag == 0 {
		has = append(has, Exact)
	}
	for _, f := range features {
		if !slices.Contains(has, f) {
			return f
		}
	}
	return ""
}

// Run runs the files of a directory on an engine.
func Run(t *testing.T, dir string, e Engine) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in %s: %v", dir, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		if e.Only != nil && !slices.Contains(e.Only, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			needs, settings := header(t, file)
			if f := e.lacks(needs); f != "" {
				t.Skipf("SKIPPED: %s has no %q", e.Name, f)
			}
			if e.Real {
				runFile(t, file, e, settings)
				return
			}
			synctest.Test(t, func(t *testing.T) { runFile(t, file, e, settings) })
		})
	}
}

// header reads the comments that are for the runner.
func header(t *testing.T, file string) (needs []Feature, s Settings) {
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range bytes.Lines(text) {
		switch key, rest, _ := strings.Cut(strings.TrimSpace(string(line)), ":"); key {
		case "# needs":
			for f := range strings.SplitSeq(rest, ",") {
				needs = append(needs, Feature(strings.TrimSpace(f)))
			}
		case "# rights": // NAME read|write [PREFIX]
			c := parse(t, "rights "+rest)
			s.Access = append(s.Access, store.Access{Secret: secret(c.args[0].Key), Write: c.word(0) == "write", Prefix: c.word(1)})
		case "# store":
			c := parse(t, "store a "+rest)
			s.Limits = store.Limits{Key: c.number("key", 0), Value: c.number("value", 0), Bytes: int64(c.number("bytes", 0)), Keys: c.number("keys", 0), History: c.number("history", 0), Waiting: c.number("waiting", 0), Leases: c.number("leases", 0)}
		}
	}
	return needs, s
}

// quiet drops what datadriven logs each 10 seconds, which may be virtual ones.
type quiet struct{ testing.TB }

func (quiet) Logf(string, ...any) {}

func runFile(t *testing.T, file string, e Engine, settings Settings) {
	w := &world{engine: &e, open: e.Start(t, settings), leases: map[string]*lease{}, revisions: map[string]store.Revision{}}
	if e.Real {
		w.probe = store.New(w.open("").Engine)
	}
	defer w.end()
	datadriven.RunTestAny(quiet{t}, file, func(t testing.TB, d *datadriven.TestData) string {
		w.run(command{t, d.Cmd, d.CmdArgs})
		for line := range strings.Lines(d.Input) {
			w.run(parse(t, line))
		}
		return w.block()
	})
}
