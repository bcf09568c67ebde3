package shm_test

import (
	"fmt"
	"io"
	"maps"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/shm"
)

const mib = 1 << 20

// tree is a file system with the contents of proc and sys.
type tree map[string]string

func (f tree) fs() fstest.MapFS {
	m := fstest.MapFS{}
	for name, text := range f {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

// TestRoom checks that all limits apply: those of each control group around this process, and the
// host's.
func TestRoom(t *testing.T) {
	meminfo := "MemTotal:       8388608 kB\nMemFree:  1 kB\nMemAvailable:    4194304 kB\n"
	v2 := tree{
		"proc/meminfo":                          meminfo,
		"proc/self/cgroup":                      "0::/job/rank\n",
		"proc/self/mountinfo":                   "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/job/rank/memory.max":     "max\n",
		"sys/fs/cgroup/job/rank/memory.current": fmt.Sprint(900*mib) + "\n",
	}
	v1 := tree{
		"proc/meminfo":        meminfo,
		"proc/self/cgroup":    "5:devices:/x\n4:cpu,memory:/docker/abc/rank\n0::/\n",
		"proc/self/mountinfo": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,cpu,memory\n36 31 0:32 / /cg rw - cgroup cgroup rw,devices\nnonsense\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes":      "9223372036854771712\n",
		"sys/fs/cgroup/memory/memory.usage_in_bytes":      "1\n",
		"sys/fs/cgroup/memory/rank/memory.limit_in_bytes": fmt.Sprint(256 * mib),
		"sys/fs/cgroup/memory/rank/memory.usage_in_bytes": fmt.Sprint(200 * mib),
		"sys/fs/cgroup/memory/rank/memory.stat":           fmt.Sprintf("cache 1\ntotal_inactive_file %d\ntotal_active_file %d\n", 100*mib, 40*mib),
	}
	job := tree{
		"sys/fs/cgroup/job/memory.max":     fmt.Sprint(1000 * mib),
		"sys/fs/cgroup/job/memory.current": fmt.Sprint(900 * mib),
		"sys/fs/cgroup/job/memory.stat":    fmt.Sprintf("anon 5\ninactive_file %d\n", 50*mib),
	}
	cases := map[string]struct {
		files tree
		most  int64 // the memory that can be taken
		name  string
	}{
		"host":              {tree{"proc/meminfo": meminfo}, 4096*mib - 128*mib, "the host's memory of 8192.0 MiB"},
		"v2 without limit":  {v2, 4096*mib - 128*mib, "the host's memory"},
		"v2, around":        {merge(v2, job), 150*mib - 1000*mib/64, "the limit of control group /sys/fs/cgroup/job of 1000.0 MiB"},
		"v2, other space":   {merge(v2, tree{"proc/self/cgroup": "0::/../x", "sys/fs/cgroup/memory.max": fmt.Sprint(640 * mib), "sys/fs/cgroup/memory.current": "0"}), 630 * mib, "group /sys/fs/cgroup of 640.0 MiB"},
		"v2, nothing left":  {merge(v2, job, tree{"sys/fs/cgroup/job/memory.current": fmt.Sprint(2000 * mib)}), 0, "0 bytes left"},
		"v1 in a container": {v1, 196*mib - 4*mib, "group /sys/fs/cgroup/memory/rank of 256.0 MiB"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, shm.CheckBelow(tc.files.fs(), tc.most))
			err := shm.CheckBelow(tc.files.fs(), tc.most+1)
			require.ErrorIs(t, err, shm.ErrFull)
			require.ErrorContains(t, err, tc.name)
		})
	}
	require.NoError(t, shm.CheckBelow(fstest.MapFS{}, 1<<50), "what cannot be read is no limit")
	a := newArena(t, nil)
	require.NoError(t, shm.CheckIn(a, 1))
	require.ErrorIs(t, shm.CheckIn(a, 1<<60), shm.ErrFull)
	require.NoError(t, shm.CheckMemory(1))
	require.ErrorIs(t, shm.CheckMemory(1<<60), shm.ErrFull)
}

func merge(trees ...tree) tree {
	all := tree{}
	for _, f := range trees {
		maps.Copy(all, f)
	}
	return all
}

// TestRanksShareAControlGroup has ranks take memory at the same time, until there is no more: each
// of them gets ErrFull, every time.
func TestRanksShareAControlGroup(t *testing.T) {
	dir := testcluster.ControlGroup(t, 400*mib)
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	for round := range rounds {
		var ranks [4]*process
		for i := range ranks {
			ranks[i] = begin(t, child(t, "share", "/bin/sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$1"`, dir))
		}
		for _, r := range ranks {
			_, _ = r.out.ReadString('\n')
		}
		for _, r := range ranks {
			_, _ = io.WriteString(r.in, "go\n")
		}
		for i, r := range ranks {
			line, err := r.out.ReadString('\n')
			assert.NoError(t, err, "round %d, rank %d says %q", round, i, line)
		}
		for i, r := range ranks {
			_ = r.in.Close()
			assert.NoError(t, r.cmd.Wait(), "round %d, rank %d", round, i)
		}
		if t.Failed() {
			return
		}
	}
}
