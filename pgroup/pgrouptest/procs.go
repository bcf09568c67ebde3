package pgrouptest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/status"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

// Job is n ranks that are processes: the test binary again. It needs a Unix system, and no TestMain. Code before Run in the test function runs in each rank too; code after it runs in the test
// alone.
type Job struct {
	N          int
	Env        []string      // added to the environment of each rank; MUSTER_RUN is pgroup.Config.Run
	Hosts      []string      // one for each rank: simulates several nodes
	MayFail    []int         // ranks that the test ends
	Rank0Hosts bool          // rank 0 hosts the store, as in most jobs; otherwise the test does
	Timeout    time.Duration // of the whole job; default a minute, and at most that of the test binary

	LivenessTimeout time.Duration // as in pgroup.Config
}

// envStore is the environment variable with the address of the test's store.
const envStore = "MUSTER_TEST_STORE"

// Run runs f on j.N processes, and fails t if one of them fails. The first rank that fails ends the
// others, and its output is printed first; with -v all output is printed as it comes. If the job
// does not end in time, the error names the ranks that the others wait for, and the output has the
// stacks of all goroutines of all ranks. No process is left when the test has ended, however it ends:
// each is the leader of a process group, and dies with the process of the test. The coverage of the
// processes counts for that of the test.
func (j Job) Run(t *testing.T, f func(t *testing.T, g *pgroup.Group)) {
	t.Helper()
	switch call := callOf(t); os.Getenv(envCall) {
	case "":
		j.start(t, call)
	case call:
		j.runChild(t, f)
	}
}

// blame names the ranks that others wait for, and that wait in no call themselves, and returns the first.
func (j Job) blame(ctx context.Context, meet *store.Store) (why string, first int) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s := meet
	if j.Rank0Hosts {
		addr, err := meet.Get(ctx, keyAddress)
		if err != nil {
			return ": rank 0 has not begun to host", 0
		}
		if s, err = store.Dial(ctx, string(addr), nil); err != nil {
			return fmt.Sprintf(": the store of rank 0 does not answer: %v", err), 0
		}
		defer func() { _ = s.Close() }()
	}
	now, err := s.Status(ctx, "")
	if err != nil {
		return "", -1
	}
	first = -1
	var who strings.Builder
	for _, b := range status.Of(now, status.Options{}).Blame {
		if first < 0 {
			first = b.Rank
		}
		fmt.Fprintf(&who, "; the others wait in %s for rank %d: %s", b.What, b.Rank, cmp.Or(b.Doing, "it has not come"))
	}
	return who.String(), first
}

// keyAddress has the address at which rank 0 hosts the group's store.
const keyAddress = "address"

// serve starts the store of the job in this process.
func serve(t *testing.T) (meet *store.Store, addr string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	memory := new(store.Memory)
	srv := &store.Server{Engine: memory}
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(l) })
	return store.New(memory), l.Addr().String(), func() {
		_ = srv.Close()
		_ = memory.Close()
		serving.Wait()
	}
}

// rank runs f as a rank; a rank's process calls it.
func (j Job) rank(t *testing.T, rank int, left time.Duration, f func(t *testing.T, g *pgroup.Group), failed func()) {
	t.Helper()
	c := pgroup.Config{Name: t.Name(), Run: os.Getenv("MUSTER_RUN"), Rank: rank, Size: j.N, Timeout: left, LivenessTimeout: j.LivenessTimeout}
	c.SharedMemory = pgroup.SharedMemory(os.Getenv("MUSTER_SHARED_MEMORY"))
	if len(j.Hosts) > 0 {
		c.Host = j.Hosts[rank]
	}
	meet, err := store.Open(t.Context(), "muster://"+os.Getenv(envStore))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = meet.Close() }()
	if err := j.place(t.Context(), meet, &c); err != nil {
		t.Fatal(err)
	}
	g, err := pgroup.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	runRank(t, g, f, failed, func() bool { return false })
	if j.Rank0Hosts && !t.Failed() { // the others still need rank 0
		ctx, cancel := context.WithTimeout(t.Context(), reportMargin)
		defer cancel()
		_ = g.Shutdown(ctx) // fails where a rank's death was the test
	}
}

// place sets where the group meets. Rank 0 publishes the port that it has chosen in the test's
// store.
func (j Job) place(ctx context.Context, meet *store.Store, c *pgroup.Config) error {
	if !j.Rank0Hosts {
		c.Address = "muster://" + os.Getenv(envStore)
		return nil
	}
	if c.Rank != 0 {
		values, err := meet.Wait(ctx, keyAddress)
		if err == nil {
			c.Address = string(values[0])
		}
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.Listener = l
	return meet.Set(ctx, keyAddress, []byte(l.Addr().String()), nil)
}
