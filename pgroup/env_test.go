package pgroup_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
)

// setenv sets the environment to vars, without the variables of a launcher that runs this test.
func setenv(t *testing.T, vars ...string) {
	t.Helper()
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		for _, prefix := range []string{"MUSTER_", "OMPI_", "PMIX_", "SLURM_", "MASTER_", "JOB_COMPLETION_INDEX", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_RANK"} {
			if strings.HasPrefix(name, prefix) {
				t.Setenv(name, "")
			}
		}
	}
	for _, kv := range vars {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
}

// TestFromEnv checks what testdata/env.txt says, in a directory with a file of a secret.
func TestFromEnv(t *testing.T) {
	file, err := filepath.Abs("testdata/env.txt")
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("secret", []byte("0123456789abcdef\n"), 0o600))
	datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		var first []string
		for line := range strings.Lines(d.Input) {
			more, isMore := strings.CutPrefix(line, "+")
			vars := strings.Fields(more)
			if isMore {
				vars = append(slices.Clone(first), vars...)
			} else {
				first = vars
			}
			setenv(t, vars...)
			fmt.Fprintln(&out, fromEnv(t))
		}
		return out.String()
	})
}

// fromEnv returns the fields that FromEnv sets, or its error.
func fromEnv(t *testing.T) string {
	c, err := pgroup.FromEnv()
	if err != nil {
		require.ErrorIs(t, err, pgroup.ErrInvalid)
		require.Equal(t, pgroup.Config{}, c)
		return err.Error()
	}
	var set []string
	files := c.TLS
	c.TLS = nil
	for field, value := range reflect.ValueOf(c).Fields() {
		if !value.IsZero() || field.Name == "Rank" {
			set = append(set, fmt.Sprint(field.Name, " ", value))
		}
	}
	if files != nil {
		set = append(set, fmt.Sprintf("TLS CA=%s Cert=%s Key=%s RequireClient=%v", files.CA, files.Cert, files.Key, files.RequireClient))
	}
	return strings.Join(set, ", ")
}

func TestEnvironIsTheInverse(t *testing.T) {
	outer := []string{ // variables that outer launchers may have set
		"RANK=9", "WORLD_SIZE=10", "MASTER_ADDR=outer", "MASTER_PORT=9", "TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RUN_ID=outer",
		"MUSTER_STORE=muster://outer:1", "MUSTER_RUN=outer", "SLURM_PROCID=1", "OMPI_COMM_WORLD_RANK=1",
	}
	l := testcluster.Listen(t)
	defer l.Close()
	for _, c := range []pgroup.Config{
		{Size: 1},
		{Size: 2, Listener: l},
		{Rank: 1, Size: 4, Address: "127.0.0.1:29500"},
		{Rank: 3, Size: 4, Address: "[::1]:29500", Run: "r", Name: "n", Host: "h", Insecure: true, Timeout: 90 * time.Second, Expiry: time.Minute},
		{Rank: 2, Size: 4, Address: "muster://127.0.0.1:7070", Timeout: 1500 * time.Millisecond, TraceDir: "/tmp/traces", SharedMemory: pgroup.SharedMemoryOff},
	} {
		t.Run("", func(t *testing.T) {
			setenv(t, append(outer, c.Environ()...)...)
			got, err := pgroup.FromEnv()
			require.NoError(t, err)
			if c.Listener != nil { // its address is for others
				c.Address, c.Listener = l.Addr().String(), nil
			}
			assert.Equal(t, c, got)
		})
	}
}

func FuzzFirstHost(f *testing.F) {
	f.Add("node[03-07,9]-ib,x")
	f.Add("rack[0-1]n[04-05]")
	f.Fuzz(func(t *testing.T, list string) {
		if host, err := pgroup.FirstHost(list); err == nil && (host == "" || strings.ContainsAny(host, "[],")) {
			t.Errorf("%q gave %q", list, host)
		}
	})
}
