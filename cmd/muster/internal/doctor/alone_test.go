package doctor_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/cmd/muster/internal/doctor"
	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
)

func TestEnvironments(t *testing.T) {
	for _, c := range lines(t, "testdata/environments.txt") {
		t.Run(c[0], func(t *testing.T) {
			variables := env{}
			for word := range strings.FieldsSeq(c[1]) {
				name, value, _ := strings.Cut(word, "=")
				variables[name] = value
			}
			d := variables.in(t)
			route := d.System.Dial
			d.System.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if network == "udp" {
					return route(ctx, network, addr)
				}
				return nil, syscall.ECONNREFUSED
			}
			found := wants(t, examinedIn(t, time.Second, d), c[2], doctor.Level(c[3]), c[4])
			require.Contains(t, found.Do, strings.Join(c[5:], ""))
		})
	}
}

// TestSystems checks the findings when a call of the system fails, or does not return.
func TestSystems(t *testing.T) {
	t.Parallel()
	free := make(chan struct{})
	t.Cleanup(func() { close(free) })
	for name, c := range map[string]struct {
		bend    func(s *doctor.System)
		address string
		ports   string // "" is no such finding
	}{
		"no route": {func(s *doctor.System) {
			s.Dial = func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}
			}
		}, "no way to node-b (10.0.0.2): network is unreachable", "cannot be reached: network is unreachable"},
		"a name server is silent": {func(s *doctor.System) {
			s.LookupHost = func(ctx context.Context, host string) ([]string, error) {
				<-ctx.Done()
				return nil, &net.DNSError{Err: "i/o timeout", Name: host, IsTimeout: true}
			}
		}, "does not resolve here: i/o timeout", ""},
		"a call ignores its context": {func(s *doctor.System) {
			s.LookupHost = func(context.Context, string) ([]string, error) { <-free; return nil, nil }
		}, "no answer within 2s", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &doctor.Doctor{System: healthy(), Store: "muster://node-b:7"}
			d.System.Open = func(context.Context, string) (*store.Store, error) { return nil, store.ErrUnavailable }
			d.System.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
			c.bend(d.System)
			r := examined(t, d)
			wants(t, r, "address", doctor.Problem, c.address)
			if c.ports != "" {
				wants(t, r, "ports", doctor.Problem, c.ports)
			}
		})
	}
}

// TestSlowName checks that a name that resolves late is noted: each connection waits for it.
func TestSlowName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &doctor.Doctor{System: healthy(), Store: "muster://node-b:7"}
		d.System.Open = func(context.Context, string) (*store.Store, error) { return nil, store.ErrUnavailable }
		d.System.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
		lookup := d.System.LookupHost
		d.System.LookupHost = func(ctx context.Context, host string) ([]string, error) {
			time.Sleep(1100 * time.Millisecond)
			return lookup(ctx, host)
		}
		wants(t, examined(t, d), "address", doctor.Warning, "node-b resolves after more than 1s")
	})
}

func listen(t *testing.T) (l net.Listener, port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return l, port
}

// anotherServer returns the address of a server that speaks another protocol.
func anotherServer(t *testing.T) string {
	t.Helper()
	l, _ := listen(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return l.Addr().String()
}

func TestPorts(t *testing.T) {
	taken, port := listen(t)
	_, free, _ := net.SplitHostPort(testcluster.Port(t))
	d := &doctor.Doctor{System: healthy(), Ports: []string{port, free, taken.Addr().String(), "127.0.0.1:" + free, "10.9.9.9:7", "10.9.9.9:8", "10.9.9.9:9", "node-x:7"}, AnswerTimeout: 500 * time.Millisecond}
	d.System.Listen = func(ctx context.Context, network, addr string) (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, network, "127.0.0.1"+addr)
	}
	d.System.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if strings.HasPrefix(addr, "10.9.9.9:") { // like a firewall that drops packets
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return new(net.Dialer).DialContext(ctx, network, strings.Replace(addr, "node-x", "node-x.invalid", 1))
	}
	r := examined(t, d)
	wants(t, r, "ports", doctor.Problem, "port "+port+" is taken")
	wants(t, r, "ports", doctor.OK, "port "+free+" is free")
	wants(t, r, "ports", doctor.OK, taken.Addr().String()+" can be reached")
	wants(t, r, "ports", doctor.Problem, "127.0.0.1:"+free+" refuses")
	wants(t, r, "ports", doctor.Problem, "10.9.9.9:9 does not answer within 500ms")
	wants(t, r, "ports", doctor.Problem, "10.9.9.9:7 does not answer within 500ms")
	wants(t, r, "ports", doctor.Problem, "node-x:7 cannot be reached")
	well(t, r, 6)
}

func TestPortsThatMayNot(t *testing.T) {
	d := &doctor.Doctor{System: healthy(), Ports: []string{"80"}}
	d.System.Listen = func(context.Context, string, string) (net.Listener, error) { return nil, syscall.EACCES }
	wants(t, examined(t, d), "ports", doctor.Problem, "port 80 may not be listened at")
	d.System.Listen = func(context.Context, string, string) (net.Listener, error) { return nil, syscall.EADDRNOTAVAIL }
	wants(t, examined(t, d), "ports", doctor.Problem, "no process can listen at :80")
}

// TestPortThatOthersTry simulates ranks of one host that test a port at the same time, each for a
// moment.
func TestPortThatOthersTry(t *testing.T) {
	d := &doctor.Doctor{System: healthy(), Ports: []string{"29500"}}
	tries := 0
	d.System.Listen = func(ctx context.Context, network, _ string) (net.Listener, error) {
		if tries++; tries < 3 {
			return nil, syscall.EADDRINUSE
		}
		return new(net.ListenConfig).Listen(ctx, network, "127.0.0.1:0")
	}
	wants(t, examined(t, d), "ports", doctor.OK, "port 29500 is free")
	require.Equal(t, 3, tries)
}

func TestMeetingPort(t *testing.T) {
	rank0 := func(port string) *doctor.Doctor {
		return env{"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.in(t)
	}
	examine := func(d *doctor.Doctor) *doctor.Report { return examinedIn(t, 3*time.Second, d) }
	t.Run("of somebody else", func(t *testing.T) {
		_, port, _ := net.SplitHostPort(anotherServer(t))
		r := examine(rank0(port))
		wants(t, r, "ports", doctor.Problem, "port "+port+" is taken")
		wants(t, r, "group", doctor.Problem, "address already in use")
	})
	t.Run("of a store", func(t *testing.T) {
		l, port := listen(t)
		testcluster.ServeAt(t, new(store.Server), l)
		r := examine(rank0(port))
		wants(t, r, "ports", doctor.OK, "a store answers at port "+port)
		wants(t, r, "group", doctor.Problem, "missing rank 1")
	})
	t.Run("that nobody may host at", func(t *testing.T) {
		d := rank0("29511")
		d.System.FromEnv = func() (pgroup.Config, error) {
			l, err := net.Listen("tcp", "0.0.0.0:0")
			return pgroup.Config{Size: 2, Listener: l}, err
		}
		f := wants(t, examine(d), "group", doctor.Problem, "refusing to serve beyond loopback")
		require.Contains(t, f.Do, "MUSTER_SECRET_FILE")
	})
	t.Run("that clients get", func(t *testing.T) {
		_, port, _ := net.SplitHostPort(testcluster.Port(t))
		d := rank0(port)
		d.System.Ephemeral = func() (int, int) { return 1024, 65535 }
		r := examine(d)
		wants(t, r, "ports", doctor.OK, "port "+port+" is free")
		wants(t, r, "ports", doctor.Warning, "gives to clients (1024 to 65535)")
	})
}

// TestRankWithoutRankZero checks that a rank reports why it cannot reach rank 0, in addition to the
// failure to form the group.
func TestRankWithoutRankZero(t *testing.T) {
	_, port, _ := net.SplitHostPort(testcluster.Port(t))
	d := env{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.in(t)
	r := examinedIn(t, time.Second, d)
	wants(t, r, "group", doctor.Problem, "connection refused")
	wants(t, r, "ports", doctor.Problem, "127.0.0.1:"+port+" refuses")
}

func TestDirectories(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for dir, text := range map[string]string{file: "is not a directory", file + "-": "no such file", "/proc/self": ": open: "} {
		wants(t, examined(t, &doctor.Doctor{System: healthy(), Dir: dir}), "dir", doctor.Problem, text)
	}
}

func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	_, err := certs.Make(dir, certs.Options{Days: 30})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		in    time.Duration
		key   string
		level doctor.Level
		text  string
	}{
		"valid":   {0, "server-key.pem", doctor.OK, "with the certificate in"},
		"soon":    {25 * 24 * time.Hour, "server-key.pem", doctor.Warning, "ends at"},
		"over":    {31 * 24 * time.Hour, "server-key.pem", doctor.Problem, "ended at"},
		"not yet": {-31 * 24 * time.Hour, "server-key.pem", doctor.Problem, "begins only at"},
		"no key":  {0, "nothing.pem", doctor.Problem, "nothing.pem"},
	} {
		t.Run(name, func(t *testing.T) {
			d := env{"RANK": "0", "WORLD_SIZE": "1", "MUSTER_TLS_CERT": filepath.Join(dir, "server.pem"), "MUSTER_TLS_KEY": filepath.Join(dir, c.key)}.in(t)
			d.System.Now = func() time.Time { return time.Now().Add(c.in) }
			wants(t, examined(t, d), "security", c.level, c.text)
		})
	}
}

// TestAnotherServerAtTheAddress checks that another program at the port where the ranks meet is
// detected without waiting for a timeout.
func TestAnotherServerAtTheAddress(t *testing.T) {
	host, port, _ := net.SplitHostPort(anotherServer(t))
	d := env{"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": port}.in(t)
	f := wants(t, examined(t, d), "group", doctor.Problem, "not a muster store")
	require.Contains(t, f.Do, "another program listens there")
}
