package flightrecorder_test

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/flightrecorder"
	"github.com/muster-pg/muster/internal/pickle"
	"github.com/muster-pg/muster/internal/testcluster"
)

// wants checks a dump of testdata/dump.py of a rank.
func wants(t *testing.T, d *flightrecorder.Dump, rank int) {
	t.Helper()
	last := flightrecorder.Call{Group: "0", Desc: "default_pg", Backend: "gloo", Name: "all_reduce", Seq: 2, Inputs: "Float [5]"}
	if rank == 1 {
		last.Name, last.Inputs = "broadcast", "Double [7]"
	}
	want := []flightrecorder.Call{
		{Group: "1", Desc: "undefined", Backend: "gloo", Name: "all_reduce", Seq: 1, Inputs: "Float [4]", Done: true},
		{Group: "0", Desc: "default_pg", Backend: "gloo", Name: "all_reduce", Seq: 1, Inputs: "Float [8, 2]", Done: true},
		last,
	}
	require.Len(t, d.Calls, len(want))
	assert.False(t, d.Dropped)
	for i, c := range d.Calls {
		assert.False(t, c.Created.Before(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), c.Created)
		c.Created = time.Time{}
		c.Done = c.Done || i < 2 // gloo notes it a moment after the call has returned
		assert.Equal(t, want[i], c)
	}
	assert.Equal(t, []bool{false, true, true}, []bool{d.Calls[0].World(), d.Calls[1].World(), d.Calls[2].World()})
}

func TestParse(t *testing.T) {
	for rank, name := range []string{"rank0.pickle", "rank1.json"} {
		b, err := os.ReadFile("testdata/" + name)
		require.NoError(t, err)
		d, err := flightrecorder.Parse(b)
		require.NoError(t, err)
		wants(t, d, rank)
	}
}

// TestTorch checks dumps that the installed PyTorch writes, the pickles with stacks.
func TestTorch(t *testing.T) {
	t.Parallel()
	exe, dir := testcluster.Torch(t), t.TempDir()
	var ranks sync.WaitGroup
	for rank := range 2 {
		ranks.Go(func() {
			cmd := exec.CommandContext(t.Context(), exe, "testdata/dump.py", dir, "--stacks")
			cmd.Env = append(os.Environ(), fmt.Sprintf("RANK=%d", rank), "WORLD_SIZE=2", "OMP_NUM_THREADS=1")
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, "%s", out)
		})
	}
	ranks.Wait()
	for rank := range 2 {
		for _, kind := range []string{"json", "pickle"} {
			b, err := os.ReadFile(fmt.Sprintf("%s/rank%d.%s", dir, rank, kind))
			require.NoError(t, err)
			d, err := flightrecorder.Parse(b)
			require.NoError(t, err)
			wants(t, d, rank)
		}
	}
}

func TestMalformed(t *testing.T) {
	for data, says := range map[string]string{
		"":                               "flightrecorder: not a dump of the Flight Recorder: ",
		"{":                              "JSON: unexpected EOF",
		"{}":                             "it has no list of entries",
		"\x80\x02]q\x00.":                "it has no list of entries",
		`{"entries": [{}]}`:              "entry 0: it has no process_group and profiling_name",
		`{"entries": [3]}`:               "entry 0",
		"cos\nsystem\n(S'touch me'\ntR.": "os.system",
	} {
		_, err := flightrecorder.Parse([]byte(data))
		require.ErrorIs(t, err, flightrecorder.ErrMalformed)
		assert.ErrorContains(t, err, says)
	}
	_, err := flightrecorder.Parse([]byte("cos\nsystem\n(S'touch me'\ntR."))
	assert.ErrorIs(t, err, pickle.ErrRefused)
}

// TestOrder checks that calls are in the order of their numbers, since the recorder is a ring, and
// that a wrong type of a field is no panic.
func TestOrder(t *testing.T) {
	entry := `{"record_id": %d, "process_group": ["0", "default_pg"], "profiling_name": "nccl:send 0->1", "is_p2p": true, "p2p_seq_id": %d, "state": %s, "input_sizes": [[2, -1], "x"], "input_dtypes": [3]}`
	d, err := flightrecorder.Parse(fmt.Appendf(nil, `{"entries": [%s, %s]}`, fmt.Sprintf(entry, 8, 2, `"started"`), fmt.Sprintf(entry, 7, 1, `"completed"`)))
	require.NoError(t, err)
	assert.True(t, d.Dropped)
	none, err := flightrecorder.Parse([]byte(`{"version": "2.10", "pg_status": {}}`))
	require.NoError(t, err)
	assert.Empty(t, none.Calls)
	require.Len(t, d.Calls, 2)
	assert.Equal(t, []bool{true, false}, []bool{d.Calls[0].Done, d.Calls[1].Done})
	assert.Equal(t, "send 0->1 #2 of  [2, 0], []", d.Calls[1].String())
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"rank0.pickle", "rank1.json"} {
		b, err := os.ReadFile("testdata/" + name)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if d, err := flightrecorder.Parse(b); (err == nil) != (d != nil) {
			t.Fatal(d, err)
		}
	})
}

func ExampleParse() {
	b, err := os.ReadFile("testdata/rank1.json")
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := flightrecorder.Parse(b)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range d.Calls {
		fmt.Println(c.Desc, c.String(), c.Done)
	}
	// Output:
	// undefined all_reduce #1 of Float [4] true
	// default_pg all_reduce #1 of Float [8, 2] true
	// default_pg broadcast #2 of Double [7] false
}
