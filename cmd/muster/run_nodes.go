package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/cmd/muster/internal/agent"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/store"
	"github.com/spf13/cobra"
)

// minLease is the shortest lease of a node or worker.
const minLease = time.Second

// nodeFlags are the options of run for several nodes, and for restarts.
type nodeFlags struct {
	nodes, rank string // as given
	job         string
	restarts    int
	join        time.Duration
	settle      time.Duration
	lease       time.Duration
	logs        string
	elastic     string // as given
	spares      int
	unit        int // processes of a worker; 1 for ranks

	least, greatest   int // workers of an elastic job; 0: the processes are ranks
	fewest, most, own int // what nodes and rank mean; own is -1 if the order of joining counts
}

func (o *nodeFlags) registerNodes(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.nodes, "nnodes", "1", "number of nodes, each with a \"muster run\"; `MIN:MAX` lets nodes join and leave")
	f.StringVar(&o.rank, "node-rank", "auto", "`place` of this node, from 0; auto: in the order in which the nodes join")
	f.StringVar(&o.job, "job", "", "`name` of the job, the same on all nodes and used by no other job on the store")
	f.IntVar(&o.restarts, "max-restarts", 0, "`number` of times that all ranks start again after one of them has failed, or with --elastic, that a worker starts again; 0 is never")
	f.DurationVar(&o.join, "join-timeout", 10*time.Minute, "fail if there are too few nodes for this time")
	f.DurationVar(&o.settle, "settle", 2*time.Second, "with MIN:MAX nodes, wait this long for more than MIN")
	f.DurationVar(&o.lease, "lease", 10*time.Second, "`time` without the store after which a node, or a worker of --elastic, counts as failed")
	f.StringVar(&o.elastic, "elastic", "", "the processes are `MIN:MAX` workers of a job of package membership instead of ranks; one that fails starts again alone")
	f.IntVar(&o.spares, "spares", 0, "with --elastic, `number` of additional workers on this node; a worker above MAX waits to take the place of one that fails")
	f.IntVar(&o.unit, "unit-size", 1, "with --elastic, `number` of processes of a worker, a unit: when one of them fails, the others are ended and the unit starts again; MIN, MAX, -n and --spares count units")
	f.StringVar(&o.logs, "log-dir", "", "`directory` for the output of each rank, in a file for each attempt")
}

// span parses MIN:MAX, or a number that is both; ok is false if they are no numbers from 1 on, in order.
func span(text string) (least, most int, ok bool) {
	low, high, isRange := strings.Cut(text, ":")
	if !isRange {
		high = low
	}
	least, err := strconv.Atoi(low)
	most, err2 := strconv.Atoi(high)
	return least, most, err == nil && err2 == nil && 1 <= least && least <= most
}

// checkNodes validates the flags.
func (o *nodeFlags) checkNodes(cmd *cobra.Command, storeURL string) error {
	var ok bool
	o.fewest, o.most, ok = span(o.nodes)
	o.own = -1
	var badRank error
	if o.rank != "auto" {
		o.own, badRank = strconv.Atoi(o.rank)
	}
	switch {
	case !ok:
		return usagef(cmd, "--nnodes %q is neither a number of nodes nor MIN:MAX, such as 2:4", o.nodes)
	case badRank != nil || o.own < -1 || o.own >= o.most:
		return usagef(cmd, "--node-rank %q is neither auto nor a number from 0 to %d", o.rank, o.most-1)
	case o.own >= 0 && o.fewest != o.most:
		return usagef(cmd, "--node-rank needs a fixed number of nodes, and --nnodes %s has a range", o.nodes)
	case o.join == 0:
		return usagef(cmd, "--join-timeout must be positive")
	case o.lease < minLease:
		return usagef(cmd, "--lease %v must be at least %v: a busy host is silent for a while", o.lease, minLease)
	case o.fewest < o.most && o.join <= o.settle:
		return usagef(cmd, "--join-timeout %v must be longer than --settle %v, the wait for nodes above the least of --nnodes %s", o.join, o.settle, o.nodes)
	case o.most == 1:
		return nil
	case storeURL == "":
		return usagef(cmd, "several nodes meet in a store: set --store or MUSTER_STORE, such as muster://host:port; \"muster serve\" starts one")
	case o.job == "":
		return usagef(cmd, "several nodes need the name of the job: set --job, the same on all of them")
	}
	return nil
}

// meeting opens the store where the agents of the nodes meet. One node needs none but its own.
func (o *running) meeting() (*store.Store, error) {
	if o.most == 1 {
		memory := &store.Memory{}
		if err := memory.Open(); err != nil {
			return nil, err
		}
		return store.New(memory), nil
	}
	s, err := openStore(context.Background(), o.store)
	if err != nil {
		return nil, o.storeError(err)
	}
	return s, nil
}

// ofRun replaces flags with variables: run has flags for the store that it hosts only.
var ofRun = strings.NewReplacer(
	"--secret-file (MUSTER_SECRET_FILE)", "MUSTER_SECRET_FILE",
	"--tls-ca (MUSTER_TLS_CA)", "MUSTER_TLS_CA",
	"--tls-cert and --tls-key (MUSTER_TLS_CERT, MUSTER_TLS_KEY)", "MUSTER_TLS_CERT and MUSTER_TLS_KEY",
	"--tls-cert (MUSTER_TLS_CERT)", "MUSTER_TLS_CERT",
	"--tls-ca, --tls-cert and --tls-key", "MUSTER_TLS_CA, MUSTER_TLS_CERT and MUSTER_TLS_KEY",
)

// storeError describes an error of --store.
func (o *running) storeError(err error) error {
	line, code := explain(&storeError{redacted(o.store), err})
	return &exit{code: code, text: ofRun.Replace(line), err: err}
}

// agent returns the agent of this node; start runs its ranks.
func (o *running) agent(s *store.Store, sigs *signals, stderr io.Writer, start func(context.Context, agent.Attempt) error) *agent.Agent {
	return &agent.Agent{
		Store: s, Job: jobPrefix + o.job, Name: o.name(),
		MinNodes: o.fewest, MaxNodes: o.most, NodeRank: o.own, Procs: o.n, MaxRestarts: o.restarts,
		JoinTimeout: o.join, Settle: o.settle, Lease: o.lease, Address: o.address(), Start: start, Notice: o.notice(), Draining: sigs.draining,
		Report: func(text string) { fmt.Fprintln(stderr, "muster:", text) },
	}
}

// name returns the name of this node, unique in the job.
func (o *running) name() string { return fmt.Sprintf("%s:%d", nodeHost(), os.Getpid()) }

// jobName returns the name of the job in the store.
func (o *running) jobName(program string) string {
	if o.job != "" {
		return o.job
	}
	return fmt.Sprintf("%s-%s-%d", filepath.Base(program), nodeHost(), os.Getpid())
}

// public returns how to open the store where ps finds the job; nil if rank 0 hosts it.
func (o *running) public() func(context.Context) (*store.Store, error) {
	switch {
	case o.host != nil:
		return func(context.Context) (*store.Store, error) { return store.New(unclosed{o.host.memory}), nil }
	case o.store != "":
		return func(ctx context.Context) (*store.Store, error) { return openStore(ctx, o.store) }
	}
	return nil
}

func openStore(ctx context.Context, url string) (*store.Store, error) {
	r := remote{url: url, secure: parameters()}
	return r.open(ctx)
}

// unclosed is an engine that its users do not close.
type unclosed struct{ store.Engine }

// Close implements store.Engine.
func (unclosed) Close() error { return nil }

// nodeHost returns the name of this host.
func nodeHost() string {
	if host := os.Getenv("MUSTER_HOST"); host != "" {
		return host
	}
	host, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return host
}

// address returns an address that the other nodes reach this one at: that of the interface which
// leads to the store.
func (o *running) address() string {
	u, err := url.Parse(o.store)
	if o.most == 1 || err != nil {
		return "127.0.0.1"
	}
	first, _, _ := strings.Cut(u.Host, ",")
	c, err := net.Dial("udp", first) // sends nothing
	if err != nil {
		return "127.0.0.1"
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).IP.String()
}

// logFiles opens the files of --log-dir: DIR/JOB-TIME/attempt-0/rank-3.log.
type logFiles struct {
	dir     string // "": none
	attempt int    // of this node
}

func (o *running) logFiles() logFiles {
	if o.logs == "" {
		return logFiles{}
	}
	name := time.Now().Format("20060102-150405") + "-" + strconv.Itoa(os.Getpid())
	if o.job != "" {
		name = strings.ReplaceAll(o.job, "/", "_") + "-" + name
	}
	return logFiles{dir: filepath.Join(o.logs, name)}
}

// prepare creates the directory of the logs, so that one that cannot be made ends the command before
// a rank starts. Process ids repeat, in other containers and on other hosts: another job may have
// made a directory of that name.
func (l *logFiles) prepare() error {
	if l.dir == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(l.dir), 0o755); err != nil {
		return err
	}
	for n, name := 2, l.dir; ; n++ {
		if err := os.Mkdir(l.dir, 0o755); !errors.Is(err, os.ErrExist) {
			return err
		}
		l.dir = fmt.Sprintf("%s-%d", name, n)
	}
}

// createLog makes a new file in the directory of the logs.
func createLog(dir, name string) (io.WriteCloser, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
}

// next returns the function that opens the logs of the next attempt; nil if there are none.
func (l *logFiles) next(first int) func(rank int) (io.WriteCloser, error) {
	if l.dir == "" {
		return nil
	}
	dir := filepath.Join(l.dir, fmt.Sprintf("attempt-%d", l.attempt))
	l.attempt++
	return func(rank int) (io.WriteCloser, error) { return createLog(dir, fmt.Sprintf("rank-%d.log", first+rank)) }
}

// nodesError describes an error of the agent that is not one of a rank.
func (o *running) nodesError(err error, sigs *signals) error {
	_, inStore := errors.AsType[*store.Error](err)
	waiting, inJob := errors.AsType[*membership.Error](err)
	switch {
	case errors.Is(err, agent.ErrDraining):
		sig := sigs.ended()
		return &exit{code: 128 + int(sig), text: fmt.Sprintf("ended by signal %d (%v) while it waited for other nodes", int(sig), sig), err: err}
	case inJob && errors.Is(err, context.DeadlineExceeded):
		return &exit{code: exitTimeout, text: fmt.Sprintf("too few nodes within --join-timeout %v: %s", o.join, agent.WaitsFor(waiting)), err: err}
	case inJob && errors.Is(err, membership.ErrMismatch):
		_, both, _ := strings.Cut(waiting.Err.Error(), ": ")
		return &exit{code: exitUsage, text: fmt.Sprintf("this node has other options than job %q: %s", o.job, both), err: err}
	case inStore && o.most > 1:
		return o.storeError(err)
	}
	return err
}
