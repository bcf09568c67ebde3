package pgroup_test

import (
	"os"
	"strings"
	"testing"
	"time"

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

var torchrun = []string{"RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "MASTER_ADDR=node-0", "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=run-7"}

func with(vars []string, more ...string) []string {
	return append(append([]string(nil), vars...), more...)
}

func TestFromEnv(t *testing.T) {
	openMPI := []string{"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_NAMESPACE=prterun-h-77@1"}
	slurm := []string{
		"SLURM_PROCID=5", "SLURM_NTASKS=16", "SLURM_STEP_NUM_TASKS=8", "SLURM_LOCALID=1", "SLURM_JOB_ID=4711", "SLURM_STEP_ID=0",
		"SLURM_JOB_NODELIST=other[1-9]", "SLURM_STEP_NODELIST=node[03-07,9]-ib",
	}
	kubernetes := []string{"JOB_COMPLETION_INDEX=0", "WORLD_SIZE=4", "MASTER_ADDR=job-0.svc", "MASTER_PORT=29400"}
	for name, c := range map[string]struct {
		env  []string
		want pgroup.Config
	}{
		"torchrun":       {torchrun, pgroup.Config{Rank: 3, Size: 8, Address: "node-0:29500", Run: "run-7"}},
		"torchrun agent": {with(torchrun, "TORCHELASTIC_USE_AGENT_STORE=True"), pgroup.Config{Rank: 3, Size: 8, Address: "node-0:29501", Run: "run-7"}},
		"IPv6":           {with(torchrun, "MASTER_ADDR=::1"), pgroup.Config{Rank: 3, Size: 8, Address: "[::1]:29500", Run: "run-7"}},
		"IPv6, brackets": {with(torchrun, "MASTER_ADDR=[::1]"), pgroup.Config{Rank: 3, Size: 8, Address: "[::1]:29500", Run: "run-7"}},
		"a store":        {with(torchrun, "MUSTER_STORE=muster://h:7070"), pgroup.Config{Rank: 3, Size: 8, Address: "muster://h:7070", Run: "run-7"}},
		"all of ours": {
			with(torchrun, "MUSTER_NAME=n", "MUSTER_RUN=r", "MUSTER_TIMEOUT=90s", "MUSTER_EXPIRY=2h", "MUSTER_LIVENESS_TIMEOUT=30s", "MUSTER_HOST=here", "MUSTER_INSECURE=1",
				"MUSTER_TRACE=traces", "MUSTER_SHARED_MEMORY=off"),
			pgroup.Config{Name: "n", Run: "r", Rank: 3, Size: 8, Address: "node-0:29500", Timeout: 90 * time.Second, Expiry: 2 * time.Hour, LivenessTimeout: 30 * time.Second, Host: "here", Insecure: true, TraceDir: "traces", SharedMemory: pgroup.SharedMemoryOff},
		},
		"alone":              {[]string{"RANK=0", "WORLD_SIZE=1"}, pgroup.Config{Size: 1}},
		"Open MPI":           {openMPI, pgroup.Config{Rank: 2, Size: 4, Address: "127.0.0.1:26326", Run: "prterun-h-77@1"}},
		"Open MPI, nodes":    {with(openMPI, "OMPI_COMM_WORLD_LOCAL_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=1"), pgroup.Config{Rank: 2, Size: 4, Address: "h:1", Run: "prterun-h-77@1"}},
		"Slurm":              {slurm, pgroup.Config{Rank: 5, Size: 8, Address: "node03-ib:16964", Run: "4711.0"}},
		"Slurm, port":        {with(slurm, "MASTER_PORT=1234"), pgroup.Config{Rank: 5, Size: 8, Address: "node03-ib:1234", Run: "4711.0"}},
		"Slurm, host":        {with(slurm, "MASTER_ADDR=h"), pgroup.Config{Rank: 5, Size: 8, Address: "h:16964", Run: "4711.0"}},
		"Slurm, both":        {with(slurm, "MASTER_ADDR=h", "MASTER_PORT=1234"), pgroup.Config{Rank: 5, Size: 8, Address: "h:1234", Run: "4711.0"}},
		"torchrun in Slurm":  {with(slurm, torchrun...), pgroup.Config{Rank: 3, Size: 8, Address: "node-0:29500", Run: "run-7"}},
		"Kubernetes":         {kubernetes, pgroup.Config{Size: 4, Address: "job-0.svc:29400"}},
		"Kubernetes, a name": {with(kubernetes, "MUSTER_RUN=uid"), pgroup.Config{Size: 4, Address: "job-0.svc:29400", Run: "uid"}},
	} {
		t.Run(name, func(t *testing.T) {
			setenv(t, c.env...)
			got, err := pgroup.FromEnv()
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		})
	}
}

func TestFromEnvErrorsNameTheVariable(t *testing.T) {
	for name, c := range map[string]struct {
		env   []string
		words []string
	}{
		"nothing":       {nil, []string{"RANK (torchrun)", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"}},
		"elastic":       {[]string{"MUSTER_ELASTIC=2:4"}, []string{"MUSTER_ELASTIC is set", "--elastic", "WorkerFromEnv"}},
		"no size":       {[]string{"RANK=0"}, []string{"torchrun", "WORLD_SIZE is not set"}},
		"no address":    {[]string{"RANK=0", "WORLD_SIZE=2"}, []string{"torchrun", "MASTER_ADDR is not set"}},
		"muster run":    {[]string{"RANK=0", "MUSTER_RUN=r"}, []string{"the environment of muster run: WORLD_SIZE is not set"}},
		"both":          {[]string{"RANK=0", "MUSTER_RUN=r", "TORCHELASTIC_RUN_ID=7"}, []string{"the environment of torchrun"}},
		"no port":       {[]string{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h"}, []string{"torchrun", "MASTER_PORT is not set"}},
		"bad rank":      {with(torchrun, "RANK=three"), []string{"torchrun", `RANK is "three"`}},
		"negative rank": {with(torchrun, "RANK=-1"), []string{`RANK is "-1"`}},
		"bad port":      {with(torchrun, "MASTER_PORT=http"), []string{`MASTER_PORT is "http"`}},
		"no such port":  {with(torchrun, "MASTER_PORT=70000"), []string{`MASTER_PORT is "70000"`}},
		"bad timeout":   {with(torchrun, "MUSTER_TIMEOUT=30"), []string{`MUSTER_TIMEOUT is "30"`, "30s"}},
		"bad insecure":  {with(torchrun, "MUSTER_INSECURE=yes"), []string{`MUSTER_INSECURE is "yes"`}},
		"bad store":     {with(torchrun, "MUSTER_STORE=h:7070"), []string{`MUSTER_STORE is "h:7070"`, "muster://"}},
		"MPI, nodes":    {[]string{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2"}, []string{"Open MPI", "MASTER_ADDR is not set"}},
		"shared memory": {[]string{"RANK=0", "WORLD_SIZE=1", "MUSTER_SHARED_MEMORY=on"}, []string{"MUSTER_SHARED_MEMORY", "neither auto nor off"}},
		"Slurm, size":   {[]string{"SLURM_PROCID=0"}, []string{"Slurm", "SLURM_STEP_NUM_TASKS or SLURM_NTASKS is not set"}},
		"Slurm, nodes":  {[]string{"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=1"}, []string{"Slurm", "SLURM_STEP_NODELIST or"}},
		"Slurm, job":    {[]string{"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_NODELIST=n"}, []string{"Slurm", "SLURM_JOB_ID is not set"}},
		"Slurm, list":   {[]string{"SLURM_PROCID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=n[1"}, []string{`SLURM_JOB_NODELIST is "n[1"`}},
		"Kubernetes":    {[]string{"JOB_COMPLETION_INDEX=0"}, []string{"Kubernetes", "WORLD_SIZE is not set"}},
	} {
		t.Run(name, func(t *testing.T) {
			setenv(t, c.env...)
			got, err := pgroup.FromEnv()
			says(t, err, pgroup.ErrInvalid, c.words...)
			assert.Equal(t, pgroup.Config{}, got)
		})
	}
}

func TestEnvironIsTheInverse(t *testing.T) {
	outer := []string{ // variables that outer launchers may have set
		"RANK=9", "WORLD_SIZE=10", "MASTER_ADDR=outer", "MASTER_PORT=9", "TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RUN_ID=outer",
		"MUSTER_STORE=muster://outer:1", "MUSTER_RUN=outer", "SLURM_PROCID=1", "OMPI_COMM_WORLD_RANK=1",
	}
	for _, c := range []pgroup.Config{
		{Size: 1},
		{Rank: 1, Size: 4, Address: "127.0.0.1:29500"},
		{Rank: 3, Size: 4, Address: "[::1]:29500", Run: "r", Name: "n", Host: "h", Insecure: true, Timeout: 90 * time.Second, Expiry: time.Minute},
		{Rank: 2, Size: 4, Address: "muster://127.0.0.1:7070", Timeout: 1500 * time.Millisecond, TraceDir: "/tmp/traces", SharedMemory: pgroup.SharedMemoryOff},
	} {
		t.Run("", func(t *testing.T) {
			setenv(t, append(outer, c.Environ()...)...)
			got, err := pgroup.FromEnv()
			require.NoError(t, err)
			assert.Equal(t, c, got)
		})
	}
}

func TestEnvironOfAListener(t *testing.T) {
	l := testcluster.Listen(t)
	defer l.Close()
	setenv(t, pgroup.Config{Size: 2, Listener: l}.Environ()...)
	got, err := pgroup.FromEnv()
	if err != nil || got.Address != l.Addr().String() {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{
		"node03":                  "node03",
		"node03,node04":           "node03",
		"node[03-07,9]-ib":        "node03-ib",
		"node[3]":                 "node3",
		"node[9,11-12],login":     "node9",
		"login,node[3-4]":         "login",
		"rack[0-1]n[04-05].local": "rack0n04.local",
		"a-b[001-128]":            "a-b001",
	} {
		if got, err := pgroup.FirstHost(list); got != want || err != nil {
			t.Errorf("%s: got %q, %v, want %q", list, got, err, want)
		}
	}
	for _, list := range []string{"", ",", "node[", "node[1", "node]", "node[]", "node[a-b]", "node[1]]", "[-]"} {
		if got, err := pgroup.FirstHost(list); err == nil {
			t.Errorf("%q: got %q", list, got)
		}
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
