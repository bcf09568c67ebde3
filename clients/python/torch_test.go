package python_test

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/store"
)

// TestTorchGroup runs a process group of PyTorch on the backend of muster_pg.torch, whose store is
// also its TCPStore: the verbs, mismatches, a rank that is missing and one that is killed.
func TestTorchGroup(t *testing.T) {
	addr := testcluster.Serve(t, &store.Server{Protocol: new(tcpstore.Protocol)})
	out := torchScript(t, "tests/torch_group.py", addr)
	for part, ranks := range map[string]int{"tensors": 4, "arrays": 4, "objects": 4, "concurrent": 4, "mismatches": 4, "failures": 3} {
		require.Equal(t, ranks, strings.Count(out, "ok "+part), "%s\n%s", part, out)
	}
}

// TestTorchTraining checks what the ranks of DDP and FSDP2 report when rank 1 fails: each names it, and
// ends by itself.
func TestTorchTraining(t *testing.T) {
	says := map[string]string{
		"exit": "0", "kill": "-9", "mismatch": "1 .*: ranks disagree: .*rank 1 called barrier",
		"timeout": "1 .*: timed out after .*: missing rank 1", "sparse": "1 .*: rank 1: invalid: a tensor is sparse_coo: pass t.to_dense()",
	}
	failures := testcluster.Form([]string{"ddp-exit", "ddp-sparse", "fsdp-kill"}, []string{
		"ddp-exit", "ddp-kill", "ddp-mismatch", "ddp-timeout", "ddp-sparse", "fsdp-exit", "fsdp-kill", "fsdp-mismatch", "fsdp-timeout", "fsdp-sparse",
	})
	addr := testcluster.Serve(t, &store.Server{Protocol: new(tcpstore.Protocol)})
	out := torchScript(t, append([]string{"tests/torch_train.py", addr}, failures...)...)
	for _, failure := range failures {
		says := says[failure[strings.Index(failure, "-")+1:]]
		require.Regexp(t, fmt.Sprintf("(?m)^%s 1 %s", failure, says), out)
		if says[0] != '1' {
			says = "1 .*: lost rank 1"
		}
		require.Len(t, regexp.MustCompile(fmt.Sprintf("(?m)^%s [02] %s", failure, says)).FindAllString(out, -1), 2, "%s\n%s", failure, out)
	}
}

// TestTorchPhases has a rank of a gloo job hang in a phase, with the interpreter's lock or in gloo: the
// process that watches it cuts its connections, and the all_reduce of the others fails.
func TestTorchPhases(t *testing.T) {
	out := torchScript(t, "tests/torch_phases.py")
	for _, rank := range []string{"lock [02]", "host [12]", "waits [01]"} {
		require.Len(t, regexp.MustCompile("(?m)^"+rank+` failed after [2-7]s: .*Connection closed by peer`).FindAllString(out, -1), 2, "%s\n%s", rank, out)
	}
	for _, hung := range []int{0, 1} {
		require.Contains(t, out, fmt.Sprintf("muster: rank %d has made no progress for 2s: step\n", hung))
	}
}

// TestTorchRendezvous checks the errors of torchrun's rendezvous backend, and its state in the store.
// TestTorchrunMuster (cmd/muster) runs torchrun.
func TestTorchRendezvous(t *testing.T) {
	safe := testcluster.Serve(t, &store.Server{Access: []store.Access{{Secret: []byte("0123456789abcdef"), Write: true}}})
	out := torchScript(t, "tests/torch_rendezvous.py", testcluster.Serve(t, &store.Server{}), safe)
	require.Contains(t, out, "ok errors\nok state\n")
}

// TestTorchElasticCases checks what the workers of an elastic training report: errors of the program,
// workers that hang or do not fit, and states that are taken back.
func TestTorchElasticCases(t *testing.T) {
	addr := testcluster.Serve(t, &store.Server{})
	cases := testcluster.Form([]string{"value", "dirty", "shape", "late", "unregistered", "scaler", "position", "source", "unknown", "cleared", "other-torch"}, nil) // nil: all
	out := torchScript(t, append([]string{"tests/torch_elastic_cases.py", addr}, cases...)...)
	invalid := `Invalid Error,ValueError: muster_pg.torch: elastic job: `
	requireReports(t, out, cases, map[string]string{
		"value [02]":      `done with 2`,
		"value 1":         `ValueError .*: a bad batch$`,
		"runtime [02]":    `done with 2`,
		"runtime 1":       `RuntimeError .*: a bad batch$`,
		"optimizer [02]":  `done with 2`,
		"optimizer 1":     `RuntimeError .*: out of memory$`,
		"dirty 0":         `done with 2 bits \w+ failed$`,
		"dirty 1":         `done with 2 bits \w+$`,
		"lost [01]":       `StateLost .*: of the 2 workers of view \d+, some were in the middle of an update, and the others do not have a whole state: begin`,
		"again 0":         `Invalid .*: step 3 has failed in its update: let train raise that error$`,
		"shape [01]":      `done with 2`,
		"shape 2":         `Mismatch .*: what is registered has other names, dtypes or shapes in worker "w2" than in worker "w0", which has been in the job for longer$`,
		"settings [01]":   `done with 2`,
		"settings 2":      `MemberError MemberError,Mismatch: .* lr=1" here, and ".* lr=0" on worker "w0"$`,
		"id 0":            `done with 1`,
		"id 1":            `MemberError MemberError,IDInUse: .*: id in use: by worker "w"$`,
		"few 0":           `MemberError MemberError,Timeout: .*: 1 of 2 workers are registered: "w0"$`,
		"hangs [02]":      `done with 2 .* view \d+ ends, and the next one is without worker "w1": .* missing rank 1`,
		"hangs 1":         `MemberError MemberError,Excluded`,
		"late [012]":      `done with 3 .* ends, and all its workers form the next one`,
		"unregistered 0":  invalid + `step: register has not been called with the SGD`,
		"unsendable [01]": invalid + `1 SGD\['param_groups'\]\[0\]\['decay'\]\['schedule'\] is a function, which cannot be sent`,
		"scaler [01]":     `scale 512 skipped 1 bits`,
		"scaler 3":        `scale 512 skipped 0 bits`,
		"position [02]":   `drawn 12 bits`,
		"source [12]":     `from 3 done with 2 bits`,
		"unknown [012]":   `received 0 done with 3 bits`,
		"cleared [02]":    `received 0 done with 3 bits`,
		"cleared 1":       `received 1 done with 3 bits`,
		"changed [02]":    `received 0 done with 3 bits`,
		"changed 1":       `received 1 done with 3 bits`,
		"other-torch 0":   `Unsupported .* has no torch.distributed._reconfigure: .*torchrun`,
		"initialized 0":   invalid + `torch.distributed is initialized`,
		"outside 0":       invalid + `there is no view`,
	})
}

// TestTorchElasticUnits checks workers of two processes over which a model is sharded.
func TestTorchElasticUnits(t *testing.T) {
	t.Setenv("MUSTER_BINARY", testcluster.Command(t))
	out := torchScript(t, "tests/torch_elastic_cases.py", testcluster.Serve(t, &store.Server{}), "--units")
	invalid := `Invalid Error,ValueError: muster_pg.torch: elastic job: `
	requireReports(t, out, nil, map[string]string{
		"forward [0145]":  `ended bits`,
		"forward 2":       `Lost .*: worker "w1" ends, because one of its 2 processes has ended, or has lost the store: .*lost rank 1`,
		"backward [0145]": `ended bits`,
		"backward 2":      `Lost .*: worker "w1" ends, because one of its 2 processes has ended, or has lost the store: .*lost rank 1`,
		"raises [01]":     `ended bits`,
		"raises 2":        `Aborted .*: worker "w1" ends, because one of its 2 processes has ended, or has lost the store: .*rank 1: aborted: ValueError: a bad batch$`,
		"raises 3":        `ValueError .*: a bad batch$`,
		"scaled [0123]":   `scale 512 skipped 1 bits`,
		"mismatch [01]":   `ended bits`,
		"mismatch [23]":   `Mismatch .*: what is registered has other names`,
		"forming 0":       `Lost .*: worker "w0" ends, because one of its 2 processes has ended, or has lost the store: .*lost rank 1`,
		"counts [01]":     invalid + `completed is 0 in process 0, 1 in process 1 of worker "w0": set it in all`,
		"restarted [01]":  `ended bits`,
		"restarted [23]":  `returned None after 0`,
		"nested [01]":     `bits .*run is called in train .*register is called in train: .*the module of ddp .* was made in it`,
		"away 0":          `MemberError MemberError,.*: join of worker "w0" in job "away": .*not connected for`,
		"several [01]":    `\[2, 2, None, None\]$`,
		"single 0":        invalid + `mesh: each worker is one process.*unit_rank.*unit_size`,
		"chosen 0":        `right`,
		"from-env 0":      `.*MUSTER_ELASTIC not set: .*MUSTER_WORKER and .*"3:2": set MIN:MAX.*leave min_units and max_units out.*MUSTER_UNIT_RANK is "2" and MUSTER_UNIT_SIZE "2": .*--standalone, .*"soon": set a duration`,
	})
}

// requireReports checks the lines of the workers of some cases, which end by themselves; without cases, of all.
func requireReports(t *testing.T, out string, cases []string, reports map[string]string) {
	t.Helper()
	for worker, says := range reports {
		if name, _, _ := strings.Cut(worker, " "); cases != nil && !slices.Contains(cases, name) {
			continue
		}
		workers := 1
		if from, to := strings.Index(worker, "["), strings.Index(worker, "]"); from >= 0 {
			workers = to - from - 1
		}
		require.Len(t, regexp.MustCompile(fmt.Sprintf("(?m)^%s 0 %s", worker, says)).FindAllString(out, -1), workers, "%s\n%s", worker, out)
	}
}

// torchScript runs a script with PyTorch until it exits, and fails the test if it does.
func torchScript(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, testcluster.Torch(t, "numpy"), args...)
	cmd.Env = torchEnvironment(t)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// torchEnvironment returns the environment of a Python with PyTorch, which has no msgpack of its own.
func torchEnvironment(t *testing.T) []string {
	t.Helper()
	env := environment(t, "OMP_NUM_THREADS=1")
	for i, v := range env {
		if path, ok := strings.CutPrefix(v, "PYTHONPATH="); ok {
			msgpack := script(t, nil, "-c", "import msgpack, os; print(os.path.dirname(os.path.dirname(msgpack.__file__)))")
			env[i] = "PYTHONPATH=" + path + ":" + strings.TrimSpace(msgpack)
		}
	}
	return env
}
