package python_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/wire"
)

// compare lets Python evaluate an expression of v for each of the values, and returns the results.
func compare[T any](t *testing.T, setup, expression string, values []T) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.json")
	b, err := json.Marshal(values)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, b, 0o600))
	out := script(t, nil, "-c", "import json, sys\n"+setup+"\nprint(json.dumps(["+expression+" for v in json.load(open(sys.argv[1]))]))", file)
	var got []string
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Len(t, got, len(values))
	return got
}

// TestFailureText checks that Python and Go format every failure alike.
func TestFailureText(t *testing.T) {
	clash := func(b wire.Contribution) []wire.Contribution {
		return []wire.Contribution{{Rank: 1, Verb: "gather", Root: 0, Type: "int", Label: "sum of 3"}, b}
	}
	long := make([]int, 40)
	for i := range long {
		long[i] = 2 * i
	}
	failures := []wire.Failure{
		{Code: wire.CodeTimeout, By: -1, Waited: 1234567890, Missing: []int{2}, Doing: []string{"in recv(3) for 4 s"}},
		{Code: wire.CodeTimeout, By: -1, Waited: 5 * time.Millisecond, Missing: []int{1, 2, 3, 5}, Doing: []string{"a", "b"}},
		{Code: wire.CodeTimeout, By: -1, Waited: 15 * time.Millisecond, Missing: long, Doing: slices.Repeat([]string{"x"}, 16)},
		{Code: wire.CodeStalled, By: -1, Waited: 73 * time.Second, Missing: []int{5}, Doing: []string{"no progress for 1m1s: loading shards, 12 of 48 (25%)"}},
		{Code: wire.CodeStalled, By: -1, Waited: 73 * time.Second, Missing: []int{5, 7}, Doing: []string{"a", "b"}, Reason: "2 more missing, not stalled"},
		{Code: wire.CodeStalled, By: -1, Missing: long, Doing: slices.Repeat([]string{"x"}, 16)},
		{Code: wire.CodeTimeout, By: 2, Reason: "context deadline exceeded", Missing: []int{1}},
		{Code: wire.CodeTimeout, By: -1, Reason: "no answer"},
		{Code: wire.CodeCancelled, By: 1, Waited: time.Second},
		{Code: wire.CodeCancelled, By: 0, Waited: 2 * time.Hour, Missing: []int{0, 1, 2}},
		{Code: wire.CodeCancelled, By: -1},
		{Code: wire.CodeLost, By: -1, Lost: []int{3}},
		{Code: wire.CodeLost, By: -1, Lost: []int{0, 1, 2, 7, 8, 9}, Reason: "it hosted the store"},
		{Code: wire.CodeLost, By: -1},
		{Code: wire.CodeLeft, By: -1, Left: []int{0, 1}, Reason: "r"},
		{Code: wire.CodeLeft, By: -1, Left: long},
		{Code: wire.CodeMismatch, By: -1, Clash: clash(wire.Contribution{Rank: 2, Verb: "barrier", Root: -1})},
		{Code: wire.CodeMismatch, By: -1, Clash: clash(wire.Contribution{Rank: 2, Verb: "gather", Type: "string", Label: "sum of 4"})},
		{Code: wire.CodeMismatch, By: -1, Clash: clash(wire.Contribution{Rank: 2, Verb: "gather", Root: 3}), Reason: "why"},
		{Code: wire.CodeMismatch, By: -1, Reason: "one size 3, another 4"},
		{Code: wire.CodeAborted, By: 1, Reason: "no such file"},
		{Code: wire.CodeAborted, By: 0},
		{Code: wire.CodeInvalid, By: -1, Reason: "r"},
		{Code: wire.CodeStale, By: -1},
		{Code: wire.CodeWouldBlock, By: 2, Reason: "é\n"},
		{Code: wire.CodeFailed, By: 3, Missing: []int{1}},
		{Code: wire.CodeConflict, By: -1, Reason: "rank 1 is held", Missing: []int{2}, Doing: []string{"d"}},
	}
	type shown struct {
		Op, Group, Channel string
		Seq                uint64
		Failure            wire.Failure
	}
	var all []shown
	for i, v := range failures {
		all = append(all, shown{Op: "barrier", Group: "world", Seq: uint64(i), Failure: v})
	}
	all = append(
		all, shown{Op: "gather.state", Group: "a\"b\x00\té\u2028", Channel: "c", Failure: failures[0]},
		shown{Group: "no op", Failure: failures[1]}, shown{Op: "recv from 2", Group: "g", Channel: "\\", Seq: 7, Failure: failures[8]},
	)
	got := compare(t, `
from muster_pg._errors import rank_error
from muster_pg._wire import Code, Contribution, Failure
def clash(c):
    return Contribution(rank=c["Rank"], verb=c["Verb"], root=c["Root"], type=c["Type"], label=c["Label"])
def said(v):
    w = v["Failure"]
    lists = [w[n] or [] for n in ("Missing", "Doing", "Lost", "Left")]
    failure = Failure(Code(w["Code"]), w["By"], w["Waited"], w["Reason"], *lists, [clash(c) for c in w["Clash"] or []])
    return str(rank_error(v["Op"], v["Group"], v["Channel"], 0, 4, v["Seq"], failure))
`, "said(v)", all)
	for i, a := range all {
		want := &pgroup.RankError{Op: a.Op, Group: a.Group, Channel: a.Channel, Size: 4, Seq: a.Seq, Failure: &a.Failure}
		require.Equal(t, want.Error(), got[i])
	}
}

// TestQuoting checks that Python quotes names in errors as Go does.
func TestQuoting(t *testing.T) {
	names := []string{"", "plain", "é世", "\a\b\f\n\r\t\v\\\"'", "\x00\x1f\x7f", "\u00a0\u200b\u2028\ufeff", "\U0001f600\U0010ffff\U000e0001", "\u0301"}
	got := compare(t, "from muster_pg._errors import quote", "quote(v)", names)
	for i, n := range names {
		require.Equal(t, strconv.Quote(n), got[i])
	}
}

// TestTheEnvironmentIsReadAsInGo checks that Go and Python read the same configuration from the
// variables of launchers, or return the same error.
func TestTheEnvironmentIsReadAsInGo(t *testing.T) {
	torchrun := kw{"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "job"}
	slurm := kw{"SLURM_PROCID": "2", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "gpu[07-09,12]-ib,login"}
	mpi := kw{
		"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-1@1",
	}
	with := func(env kw, more ...string) kw {
		out := kw{}
		maps.Copy(out, env)
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	k := makeKeys(t)
	envs := []kw{
		{},
		torchrun, slurm, mpi,
		with(torchrun, "TORCHELASTIC_USE_AGENT_STORE", "True"), with(torchrun, "MASTER_ADDR", "[fd00::1]"),
		with(torchrun, "MUSTER_STORE", "muster://store:7070/p"), with(torchrun, "MUSTER_STORE", "store:7070"),
		with(torchrun, "MUSTER_NAME", "n", "MUSTER_RUN", "r", "MUSTER_TIMEOUT", "1m30.5s", "MUSTER_STALL", "1m", "MUSTER_EXPIRY", "2h", "MUSTER_LIVENESS_TIMEOUT", "30s", "MUSTER_HOST", "h"),
		with(torchrun, "MUSTER_TIMEOUT", "soon"), with(torchrun, "MUSTER_STALL", "soon"), with(torchrun, "MUSTER_TIMEOUT", "-1s"), with(torchrun, "MUSTER_LIVENESS_TIMEOUT", "x"), with(torchrun, "MUSTER_TIMEOUT", "5"),
		with(torchrun, "MUSTER_SECRET_FILE", k.secretFile), with(torchrun, "MUSTER_TLS_CA", k.path("ca.pem")),
		with(torchrun, "MUSTER_TLS_CERT", "c"), with(torchrun, "WORLD_SIZE", ""), with(torchrun, "WORLD_SIZE", "four"),
		with(torchrun, "MUSTER_RUN", "r", "TORCHELASTIC_RUN_ID", "", "WORLD_SIZE", "four"), with(torchrun, "MUSTER_RUN", "r", "WORLD_SIZE", "four"),
		with(torchrun, "MASTER_PORT", ""), with(torchrun, "MASTER_ADDR", ""), with(torchrun, "MASTER_PORT", "70000"), with(torchrun, "RANK", "-1"),
		with(slurm, "MASTER_ADDR", "head"), with(slurm, "MASTER_PORT", "1234"), with(slurm, "SLURM_STEP_NODELIST", "n[a-b]"),
		with(slurm, "SLURM_STEP_NODELIST", "n[1"), with(slurm, "SLURM_STEP_NODELIST", "n]1"), with(slurm, "SLURM_STEP_NODELIST", ","),
		with(slurm, "SLURM_STEP_NODELIST", "rack[0-1]n[04-05]"), with(slurm, "SLURM_STEP_NODELIST", ""), with(slurm, "SLURM_JOB_ID", ""),
		with(slurm, "SLURM_STEP_ID", ""), with(mpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1"), with(mpi, "MASTER_PORT", "9"),
		{"MUSTER_ELASTIC": "2:4", "MUSTER_STORE": "muster://store:7070"},
		{"JOB_COMPLETION_INDEX": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "job-0.svc", "MASTER_PORT": "7070"},
	}
	got := compare(t, `
from muster_pg import _env, Error
def read(v):
    try:
        c = _env.config(v)
    except Error as e:
        return str(e)
    return f"{c.rank} {c.size} {c.store} {c.name} {c.run} {c.timeout:g} {c.stall:g} {c.expiry:g} {c.liveness_timeout or 0:g} {c.host} {c.secret is not None} {c.tls is not None}"
`, "read(v)", envs)
	for i, env := range envs {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			for _, kv := range os.Environ() {
				name, _, _ := strings.Cut(kv, "=")
				if ours(name) {
					t.Setenv(name, "")
				}
			}
			for name, v := range env {
				t.Setenv(name, v.(string))
			}
			require.Equal(t, read(pgroup.FromEnv()), got[i], "%v", env)
		})
	}
}

// ours reports whether FromEnv reads a variable.
func ours(name string) bool {
	return slices.Contains([]string{"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "JOB_COMPLETION_INDEX", "PMIX_NAMESPACE"}, name) ||
		slices.ContainsFunc([]string{"MUSTER_", "SLURM_", "OMPI_", "TORCHELASTIC_"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

// read formats a Config as the script above does, with the defaults that Create sets.
func read(c pgroup.Config, err error) string {
	if err != nil {
		return err.Error()
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Minute
	}
	if c.Expiry == 0 {
		c.Expiry = time.Hour
	}
	name := c.Name
	if name == "" {
		name = "world"
	}
	yes := func(b bool) string { return map[bool]string{true: "True", false: "False"}[b] }
	seconds := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'g', -1, 64) }
	return strings.Join([]string{
		strconv.Itoa(c.Rank), strconv.Itoa(c.Size), c.Address, name, c.Run, seconds(c.Timeout), seconds(c.Stall), seconds(c.Expiry), seconds(c.LivenessTimeout), c.Host,
		yes(c.Secret != nil), yes(c.TLS != nil),
	}, " ")
}
