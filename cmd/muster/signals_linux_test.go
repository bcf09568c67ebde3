package main_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestIgnoredSignalsStayIgnored starts each command that catches signals with SIGHUP and SIGINT
// ignored, as nohup and the shell's & do, and reads from /proc whether it and its rank ignore them.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	for args, ready := range map[string]string{
		"serve --listen 127.0.0.1:0":                                       "muster://",
		"relay --listen 127.0.0.1:0 --store " + url:                        "muster://",
		"page --http 127.0.0.1:0 --store " + url:                           "http://",
		"run -n 1 -- sh -c 'grep SigIgn /proc/self/status; exec sleep 60'": "SigIgn",
	} {
		t.Run(strings.Fields(args)[0], func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "sh", "-c", `trap "" HUP INT; exec `+self(t)+" "+args)
			cmd.Env = append(os.Environ(), role+"="+roleMuster, "XDG_RUNTIME_DIR="+os.DevNull)
			stdout, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			defer func() { _ = cmd.Wait() }()
			line := lineOf(t, bufio.NewReader(stdout), ready)
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
			require.NoError(t, err)
			for _, status := range []string{string(b), line} {
				if ignored := regexp.MustCompile(`SigIgn:\s*(\w+)`).FindStringSubmatch(status); ignored != nil {
					mask, err := strconv.ParseUint(ignored[1], 16, 64)
					require.NoError(t, err)
					both := uint64(1<<(syscall.SIGHUP-1) | 1<<(syscall.SIGINT-1))
					assert.Equal(t, both, mask&both, status)
				}
			}
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		})
	}
}
