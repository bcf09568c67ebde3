package testcluster

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// eventTimeout is the time for an event on a busy machine.
const eventTimeout = 30 * time.Second

// Log is a log that can be read while it is written. The zero value is empty.
type Log struct {
	mu  sync.Mutex // protects all
	all bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

// String returns the log so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// Reset discards the log so far.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Reset()
}

// Logger returns a logger of all levels that writes text to the log.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Says waits until the log contains words.
func (l *Log) Says(t testing.TB, words string) {
	t.Helper()
	Eventually(t, eventTimeout, func() bool { return strings.Contains(l.String(), words) }, "the log says "+words)
}
