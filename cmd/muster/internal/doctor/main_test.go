package doctor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/cmd/muster/internal/doctor"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

func TestMain(m *testing.M) { testcluster.Leaks(m) }

// answerTimeout is the timeout of the checks. It is long enough for checks that succeed on a busy
// machine, and only checks that fail take this long.
const answerTimeout = time.Second

// limit is the timeout of operations that should take almost no time.
const limit = time.Minute

// env is a set of environment variables.
type env map[string]string

// healthy returns a host without problems, with two networks and no launcher.
func healthy() *doctor.System {
	s := doctor.Here()
	s.Getenv = func(string) string { return "" }
	s.FromEnv = func() (pgroup.Config, error) { return pgroup.Config{}, errors.New("not asked for") }
	s.LookupHost = func(_ context.Context, host string) ([]string, error) {
		if ip, known := map[string]string{"node-a": "10.0.0.1", "node-b": "10.0.0.2", "here": "127.0.0.1"}[host]; known {
			return []string{ip}, nil
		}
		return nil, &net.DNSError{Err: "no such host", Name: host}
	}
	s.Interfaces = func() ([]doctor.Interface, error) {
		return []doctor.Interface{{Name: "lo", Addrs: ips("127.0.0.1")}, {Name: "eth0", Addrs: ips("10.0.0.1")}, {Name: "docker0", Addrs: ips("172.17.0.1")}}, nil
	}
	s.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if network == "udp" { // a lookup of the route
			from, known := map[string]string{"10.0.0.2:9": "10.0.0.1", "172.17.0.9:9": "172.17.0.1"}[addr]
			if !known {
				from = "127.0.0.1"
			}
			return routed{from: from}, nil
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	s.Ephemeral = func() (int, int) { return 32768, 60999 }
	return s
}

func ips(all ...string) (as []net.IP) {
	for _, a := range all {
		as = append(as, net.ParseIP(a))
	}
	return as
}

// routed is a datagram socket that is used only for its own address.
type routed struct {
	net.Conn
	from string
}

func (r routed) LocalAddr() net.Addr { return &net.UDPAddr{IP: net.ParseIP(r.from)} }
func (routed) Close() error          { return nil }

// in returns a Doctor of a host without problems that has these variables. It sets them in the
// process, so tests that use it cannot run in parallel.
func (e env) in(t *testing.T) *doctor.Doctor {
	s := healthy()
	for _, name := range []string{
		"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MUSTER_STORE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX",
		"MUSTER_RUN", "TORCHELASTIC_RUN_ID", "MUSTER_TLS_CERT", "MUSTER_TLS_KEY", "MUSTER_TLS_CA",
	} {
		t.Setenv(name, "")
	}
	for name, v := range e {
		t.Setenv(name, v)
	}
	s.Getenv = func(name string) string { return e[name] }
	s.FromEnv = pgroup.FromEnv
	return &doctor.Doctor{System: s}
}

// lines returns the lines of a file by their columns, with replacements as for strings.NewReplacer.
func lines(t *testing.T, file string, replace ...string) (all [][]string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			all = append(all, strings.Split(strings.NewReplacer(replace...).Replace(strings.TrimSuffix(line, "\n")), " | "))
		}
	}
	return all
}

// examined returns the report of one process.
func examined(t *testing.T, d *doctor.Doctor) *doctor.Report {
	t.Helper()
	return examinedIn(t, limit, d)
}

// examinedIn is examined with a timeout, for a process that waits for a group.
func examinedIn(t *testing.T, timeout time.Duration, d *doctor.Doctor) *doctor.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	var got *doctor.Report
	d.Version = "v1"
	if d.AnswerTimeout == 0 {
		d.AnswerTimeout = answerTimeout
	}
	problems, err := d.Run(ctx, func(r *doctor.Report) error { got = r; return nil })
	require.NoError(t, err)
	require.NotNil(t, got, "no report")
	require.Equal(t, got.Problems, problems)
	return got
}

// wants asserts that there is exactly one finding of a check that contains text, and that it has a
// remedy unless it is ok. It returns the finding.
func wants(t *testing.T, r *doctor.Report, check string, level doctor.Level, text string) doctor.Finding {
	t.Helper()
	var is []doctor.Finding
	for _, f := range r.Findings {
		if f.Check == check && f.Level == level && strings.Contains(f.Text, text) {
			is = append(is, f)
		}
	}
	all, _ := json.MarshalIndent(r.Findings, "", " ")
	require.Len(t, is, 1, "%s, %s, %q in %s", check, level, text, all)
	require.Equal(t, level == doctor.OK, is[0].Do == "", "what to do: %+v", is[0])
	return is[0]
}

// well asserts that the report has so many problems, and no warnings.
func well(t *testing.T, r *doctor.Report, problems int) {
	t.Helper()
	all, _ := json.MarshalIndent(r.Findings, "", " ")
	require.Equal(t, []int{problems, 0}, []int{r.Problems, r.Warnings}, "problems and warnings in %s", all)
}

// job runs the checks on n ranks, two on each host, as goroutines. The function bend introduces
// faults.
func job(t *testing.T, n int, bend func(rank int, d *doctor.Doctor)) (*doctor.Report, []error) {
	t.Helper()
	return jobIn(t, n, func(int) context.Context { return t.Context() }, bend)
}

func jobIn(t *testing.T, n int, in func(rank int) context.Context, bend func(rank int, d *doctor.Doctor)) (first *doctor.Report, errs []error) {
	t.Helper()
	addr := testcluster.Serve(t, new(store.Server))
	errs = make([]error, n)
	reports := make(chan *doctor.Report, n)
	ended := make(chan struct{}, n)
	for rank := range n {
		d := &doctor.Doctor{Version: "v1", System: healthy(), AnswerTimeout: answerTimeout}
		host := fmt.Sprintf("node-%c", 'a'+rank/2)
		d.System.Getenv = func(name string) string { return env{"RANK": fmt.Sprint(rank), "WORLD_SIZE": fmt.Sprint(n)}[name] }
		d.System.FromEnv = func() (pgroup.Config, error) {
			return pgroup.Config{Rank: rank, Size: n, Address: "muster://" + addr, Host: host}, nil
		}
		if bend != nil {
			bend(rank, d)
		}
		go func() {
			defer func() { ended <- struct{}{} }()
			ctx, cancel := context.WithTimeout(in(rank), limit)
			defer cancel()
			_, errs[rank] = d.Run(ctx, func(r *doctor.Report) error { reports <- r; return nil })
		}()
	}
	for range n {
		<-ended
	}
	require.NotEmpty(t, reports, "no report: %v", errs)
	return <-reports, errs
}
