package main_test

import (
	"encoding/json"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// report is a report that doctor --json prints.
type report struct {
	Ranks, Problems int
	Findings        []struct{ Check, Level, Text, Do string }
}

func (r report) text(check, level string) (text string) {
	for _, f := range r.Findings {
		if f.Check == check && f.Level == level {
			text += f.Text + "\n"
		}
	}
	return text
}

func reportOf(t *testing.T, r result) (p report) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &p), "%+v", r)
	require.Empty(t, r.stderr)
	require.Equal(t, map[bool]int{true: 1}[p.Problems > 0], r.code, r.stdout)
	return p
}

// TestDoctorOfRanksWithoutALauncher checks that without a launcher rank 0 hosts the store and
// prints the report, and that all ranks exit with 1.
func TestDoctorOfRanksWithoutALauncher(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, _ := net.SplitHostPort(free.Addr().String())
	require.NoError(t, free.Close())
	_, wanted, _ := net.SplitHostPort(taken.Addr().String())
	env := []string{"WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port}
	args := []string{"doctor", "--json", "--port", wanted}
	second := startIn(t, nil, append(env, "RANK=1"), args...)
	p := reportOf(t, runIn(t, nil, append(env, "RANK=0"), args...))
	require.Contains(t, p.text("ports", "problem"), "port "+wanted+" is taken")
	require.Contains(t, p.text("group", "ok"), "2 ranks have met")
	r := second.wait(t)
	require.Equal(t, 1, r.code)
	require.Empty(t, r.stdout)
}

func TestDoctorFindsWhoIsMissing(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, _ := net.SplitHostPort(free.Addr().String())
	require.NoError(t, free.Close())
	p := reportOf(t, runIn(t, nil, []string{"RANK=0", "WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port}, "doctor", "--json", "--timeout", "2s"))
	require.Contains(t, p.text("group", "problem"), "missing ranks 1 and 2")
	p = reportOf(t, runIn(t, nil, []string{"RANK=3", "WORLD_SIZE=3", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port}, "doctor", "--json"))
	require.Contains(t, p.text("group", "problem"), "Config.Rank is 3")
}
