package launch_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/launch"
)

// TestLogs checks that each rank has a log with all lines of both streams, without prefix, even if
// the output is discarded; and that Tail has the last ones.
func TestLogs(t *testing.T) {
	for name, output := range map[string]io.Writer{"with an output": io.Discard, "alone": nil} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := spec(2, "count:1000")
			s.Output = output
			s.Log = func(rank int) (io.WriteCloser, error) {
				return os.Create(filepath.Join(dir, fmt.Sprint(rank)))
			}
			job := start(t, s)
			require.NoError(t, job.ends(t))
			for rank := range 2 {
				b, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(rank)))
				require.NoError(t, err)
				require.Equal(t, 2001, strings.Count(string(b), "\n"))
				for _, kind := range []string{"out", "err"} {
					var want, got []string
					for i := range 1000 {
						want = append(want, fmt.Sprintf("%s %d", kind, i))
					}
					for line := range strings.Lines(string(b)) {
						if strings.HasPrefix(line, kind) {
							got = append(got, strings.TrimSpace(line))
						}
					}
					require.Equal(t, want, got)
				}
				tail := job.Process(rank).Tail()
				require.Len(t, tail, 10)
				require.True(t, strings.HasSuffix(string(b), strings.Join(tail, "\n")+"\n"))
			}
		})
	}
}

// TestLogFails checks that a log that cannot be opened starts no rank, and that one that cannot be
// written is the error of the job, after the ranks have ended.
func TestLogFails(t *testing.T) {
	s := spec(2, "exit:0")
	s.Log = func(rank int) (io.WriteCloser, error) {
		if rank == 1 {
			return nil, errors.New("no such directory")
		}
		return os.Create(filepath.Join(t.TempDir(), "log"))
	}
	_, err := launch.Start(t.Context(), s)
	require.EqualError(t, err, "start rank 1: no such directory")

	s = spec(2, "count:1000")
	full := errors.New("disk full")
	s.Log = func(int) (io.WriteCloser, error) {
		return writerFunc(func([]byte) (int, error) { return 0, full }), nil
	}
	err = start(t, s).ends(t)
	require.ErrorContains(t, err, "write the log of rank ")
	require.ErrorIs(t, err, full)
}
