package main_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	muster "github.com/muster-pg/muster/cmd/muster"
	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
)

// sh returns the arguments for a rank that is a shell script.
func sh(script string) []string { return []string{"--", "sh", "-c", script} }

func sorted(lines string) []string {
	return slices.Sorted(strings.SplitSeq(strings.TrimSpace(lines), "\n"))
}

// asLoser is a rank that waits for rank 2, which is killed, or aborts the group and ends after the others.
func asLoser(how string) int {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cfg, err := pgroup.FromEnv()
	if err != nil {
		return 99
	}
	g, err := pgroup.Create(ctx, cfg)
	if err != nil {
		return 99
	}
	if g.Rank() == 2 && how == "abort" {
		g.Abort(errors.New("no data"))
		<-time.After(time.Second) // the others report it before this rank ends
		return 5
	} else if g.Rank() == 2 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	err = g.Barrier(ctx)
	text, _, _ := strings.Cut(fmt.Sprint(err), ": pid ")
	fmt.Println(text)
	if how == "shrink" {
		if g, err = g.Shrink(ctx); err == nil {
			fmt.Println(g.Size(), "go on")
			return 0
		}
	}
	return 1
}

// TestRunNamesTheFirstFailure checks that the survivors print the error before they are ended, that the
// summary names the rank to blame, whichever process ends first, and that --keep-going lets them go on.
func TestRunNamesTheFirstFailure(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/getting-started.md")
	require.NoError(t, err)
	const barrier = `pgroup: barrier #1 of group "world" on rank %d of 4: `
	for how, want := range map[string]struct {
		flags  string
		code   int
		lines  []string
		stderr string
	}{
		"kill":   {"", 137, []string{barrier + "lost rank 2"}, "muster: rank 2: killed by signal 9 (killed); the other ranks failed after it\n"},
		"abort":  {"", 5, []string{barrier + "rank 2: aborted: no data"}, "muster: rank 2: exit status 5; the other ranks failed after it\n"},
		"shrink": {"--keep-going", 137, []string{barrier + "lost rank 2", "3 go on"}, "muster: rank 2: killed by signal 9 (killed)\n"},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"run", "-n", "4", "--env", role + "=" + roleLoser}, strings.Fields(want.flags)...)
			r := run(t, append(args, "--", self(t), how)...)
			var lines []string
			for _, rank := range []int{0, 1, 3} {
				for _, line := range want.lines {
					lines = append(lines, fmt.Sprintf("[%d] "+strings.Replace(line, "%d", strconv.Itoa(rank), 1), rank))
				}
			}
			slices.Sort(lines)
			require.Equal(t, lines, sorted(r.stdout))
			require.Equal(t, want.stderr, r.stderr)
			require.True(t, how != "kill" || strings.Contains(string(guide), want.stderr), "docs/getting-started.md has this line")
			require.Equal(t, want.code, r.code)
		})
	}
}

// TestRunSignalBeforeTheStart has the terminal close before slow ranks start: SIGKILL is due before there is
// a rank. Ranks that ignore SIGHUP and SIGTERM end all the same.
func TestRunSignalBeforeTheStart(t *testing.T) {
	t.Parallel()
	testcluster.Shell(t)
	sigs := muster.Catch(time.Millisecond)
	defer sigs.Stop()
	sigs.Send(syscall.SIGHUP)
	testcluster.Eventually(t, limit, sigs.Killed, "SIGKILL was due")
	r, w := io.Pipe()
	defer w.Close()
	ready := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(r).ReadString('\n')
		ready <- line
		_, _ = io.Copy(io.Discard, r)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	job, err := launch.Start(ctx, launch.Spec{N: 1, Path: "/bin/sh", Args: []string{"-c", `trap "" HUP TERM; echo ready; while :; do sleep 600; done`}, Grace: -1, Output: w})
	require.NoError(t, err)
	require.Equal(t, "[0] ready\n", <-ready)
	e, ok := errors.AsType[*launch.ExitError](sigs.Wait(job))
	require.True(t, ok)
	require.Equal(t, syscall.SIGKILL, e.Signal)
}

// TestRunPassesQuitOn checks that SIGQUIT, as Ctrl-\ sends it, has each rank do what its program does with it:
// a Go program prints the stacks of its goroutines and ends. None starts again.
func TestRunPassesQuitOn(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string]string{"ranks": "-n 2", "workers": "--elastic 1:2"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			here := testcluster.Listen(t)
			args := append([]string{"run"}, strings.Fields(flags+" --max-restarts 9 --env "+role+"="+roleHolder)...)
			p := start(t, append(args, "--", self(t), here.Addr().String())...)
			for range 2 {
				c, err := here.Accept()
				require.NoError(t, err)
				defer c.Close()
				_, err = bufio.NewReader(c).ReadString('\n')
				require.NoError(t, err)
			}
			p.signal(t, syscall.SIGQUIT)
			r := p.wait(t)
			require.Equal(t, 2, r.code, "%+v", r)
			for _, rank := range []string{"0", "1"} {
				require.Contains(t, r.stderr+r.stdout, "["+rank+"] SIGQUIT: quit")
				require.Contains(t, r.stderr+r.stdout, "["+rank+"] goroutine 1 ")
			}
		})
	}
}
