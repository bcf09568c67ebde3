package main_test

import (
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLock has one command hold a lock while another waits for it, and a third gives up. The exit code is
// the command's, and tokens increase.
func TestLock(t *testing.T) {
	t.Parallel()
	server, url := serve(t)
	env := []string{"MUSTER_STORE=" + url}
	lock := func(flags string) *process {
		return startIn(t, nil, env, append(append([]string{"lock", "k"}, strings.Fields(flags)...), sh("echo $MUSTER_LOCK_TOKEN; exec sleep 600")...)...)
	}
	token := func(p *process) int {
		n, err := strconv.Atoi(p.line(t, ""))
		require.NoError(t, err)
		return n
	}
	first := lock("")
	one := token(first)
	second := lock("--ttl 1s")
	runIn(t, env, append(strings.Fields("lock k --timeout 100ms"), sh("echo never")...)...).wants(t, 4, "", "lock \"k\" is held, or waited for, by ")
	first.signal(t, syscall.SIGTERM)
	require.Equal(t, 143, first.wait(t).code)
	require.Greater(t, token(second), one)
	third := startIn(t, nil, env, append([]string{"lock", "other"}, sh("exit 7")...)...)
	require.Equal(t, 7, third.wait(t).code)
	server.signal(t, syscall.SIGKILL)
	second.wait(t).wants(t, 1, "", `lock "k" was lost, and the command was ended`)
	runIn(t, env, append([]string{"lock", "k", "--ttl", "1ms"}, sh("exit")...)...).wants(t, 2, "", "--ttl 1ms must be at least 1s")
}
