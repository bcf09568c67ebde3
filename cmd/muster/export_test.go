package main

import (
	"io"
	"net/http"
	"os"
	"time"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/status"
)

var (
	Execute = execute
	NewRoot = newRoot
	Access  = access

	PrintPhases = printPhases
	PrintJSON   = printJSON
)

// PrintWho prints a view as "muster who" does, with --ranks or without.
func PrintWho(w io.Writer, v *status.View, ranks bool) {
	(&whoPrinter{report: report{Writer: w}, ranks: ranks}).print(v)
}

// Signals are the signals of a launcher.
type Signals struct{ *signals }

func Catch(grace time.Duration) Signals      { return Signals{catch(grace)} }
func (s Signals) Stop()                      { s.stop() }
func (s Signals) Send(sig os.Signal)         { s.got <- sig }
func (s Signals) Wait(job *launch.Job) error { return s.wait(job) }

// Killed reports whether SIGKILL was sent.
func (s Signals) Killed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kill
}

// PrepareLogs makes the directory of a job's logs, whose name another job may have, and returns it.
func PrepareLogs(dir string) (string, error) {
	l := logFiles{dir: dir}
	err := l.prepare()
	return l.dir, err
}

// PageGuard returns an empty page without a password.
func PageGuard() http.Handler {
	return new(pageFlags).guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
}
