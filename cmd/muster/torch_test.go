package main_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/internal/testcluster"
)

// relay starts a relay of a store, and returns its address.
func relay(t *testing.T, url string) string {
	t.Helper()
	return start(t, "relay", "--listen", "127.0.0.1:0", "--store", url).line(t, "muster://127.0.0.1:")
}

// TestTorchOutlivesTheLeader checks that an unmodified PyTorch job behind a relay does not notice
// that the leader of its store is killed, neither while its ranks wait nor while they change keys.
func TestTorchOutlivesTheLeader(t *testing.T) {
	t.Parallel()
	exe := testcluster.Torch(t)
	at := "etcd://" + etcd(t) + "/jobs"
	leader := replica(t, at)
	leader.complaint(t, "msg=leading")
	second := replica(t, at)
	near := relay(t, at)
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(near, "muster://"))
	ctx, cancel := context.WithTimeout(t.Context(), 4*limit)
	defer cancel()
	job := exec.CommandContext(ctx, exe, "testdata/job.py", host, port, "3")
	job.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
	ended := make(chan error, 1)
	var out []byte
	go func() {
		var err error
		out, err = job.CombinedOutput()
		ended <- err
	}()

	run(t, "wait", "--store", at, "waits/0", "waits/1", "waits/2", "--timeout", "2m").wants(t, 0, "", "")
	leader.signal(t, syscall.SIGKILL)
	second.complaint(t, "msg=leading")
	replica(t, at)
	run(t, "set", "--store", at, "go", "1").wants(t, 0, "", "")

	run(t, "wait", "--store", at, "free/0", "free/1", "free/2", "--timeout", "2m").wants(t, 0, "", "")
	second.signal(t, syscall.SIGKILL)
	run(t, "set", "--store", at, "enough", "1").wants(t, 0, "", "")
	if err := <-ended; err != nil || strings.Count(string(out), "ok ") != 3 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTorchrun runs two agents of torchrun, with two ranks each, whose rendezvous of PyTorch's own
// (c10d) has its TCPStore at a store of muster.
func TestTorchrun(t *testing.T) {
	testcluster.SoakOnly(t, "TestTorchrunMuster has a job of torchrun")
	exe := testcluster.Torch(t)
	_, url := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*limit)
	defer cancel()
	var outs [2][]byte
	var agents sync.WaitGroup
	for i := range outs {
		agents.Go(func() {
			cmd := exec.CommandContext(ctx, exe, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d",
				"--rdzv-endpoint="+strings.TrimPrefix(url, "muster://"), "--rdzv-id=job", "--local-addr=127.0.0.1", "testdata/rank.py")
			cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1")
			var err error
			if outs[i], err = cmd.CombinedOutput(); err != nil {
				t.Errorf("agent: %v\n%s", err, outs[i])
			}
		})
	}
	agents.Wait()
	all := string(outs[0]) + string(outs[1])
	for rank := range 4 {
		assert.Contains(t, all, fmt.Sprintf("rank %d of 4 sum 6.0", rank))
	}
}
