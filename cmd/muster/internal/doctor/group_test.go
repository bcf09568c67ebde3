package doctor_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/cmd/muster/internal/doctor"
	"github.com/muster-pg/muster/internal/testcluster"
)

func TestGroupIsWell(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, errs := job(t, 4, func(_ int, d *doctor.Doctor) { d.Dir = dir })
	require.NoError(t, errors.Join(errs...))
	well(t, r, 0)
	require.Equal(t, []int{4, 2}, []int{r.Ranks, r.Hosts})
	wants(t, r, "group", doctor.OK, "4 ranks have met, on node-a (ranks 0, 1), node-b (ranks 2, 3)")
	wants(t, r, "clocks", doctor.OK, "all clocks agree, within")
	wants(t, r, "links", doctor.OK, "each rank can connect to every other")
	wants(t, r, "dir", doctor.OK, "files are written, synced and renamed")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestClocks(t *testing.T) {
	t.Parallel()
	for off, c := range map[time.Duration]struct {
		level doctor.Level
		text  string
	}{
		-time.Hour:      {doctor.Problem, "behind that of rank 0 (node-a)"},
		time.Hour:       {doctor.Problem, "ahead of that of rank 0 (node-a)"},
		5 * time.Second: {doctor.Warning, "the clock of rank 2 (node-b) is at least"},
	} {
		r, _ := job(t, 3, func(rank int, d *doctor.Doctor) {
			if rank == 2 {
				d.System.Now = func() time.Time { return time.Now().Add(off) }
			}
		})
		wants(t, r, "clocks", c.level, c.text)
		require.Equal(t, 1, r.Problems+r.Warnings)
	}
}

// network places d's host in the simulated network 10.0.0.0/24, which is really 127.0.0.1. If dial
// is not nil, d's connections to other ranks are made by it.
func network(rank int, d *doctor.Doctor, dial func(ctx context.Context, addr string) (net.Conn, error)) {
	ip := map[int]string{0: "10.0.0.1", 1: "10.0.0.2"}[rank/2]
	if dial == nil {
		dial = straight
	}
	d.System.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if network == "udp" {
			return routed{from: ip}, nil
		}
		_, port, _ := net.SplitHostPort(addr)
		return dial(ctx, "127.0.0.1:"+port)
	}
	d.System.Listen = func(ctx context.Context, network, addr string) (net.Listener, error) {
		l, err := new(net.ListenConfig).Listen(ctx, network, "127.0.0.1:0")
		return placed{l, ip}, err
	}
}

func straight(ctx context.Context, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// placed is a listener that reports another address.
type placed struct {
	net.Listener
	ip string
}

func (p placed) Addr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(p.ip), Port: p.Listener.Addr().(*net.TCPAddr).Port}
}

// TestLinks checks the findings when the connections from rank 2, which is alone on its host, fail
// in all possible ways, while those to it work.
func TestLinks(t *testing.T) {
	t.Parallel()
	to := func(addr string) func(context.Context, string) (net.Conn, error) {
		return func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	through := func(bend func(*testcluster.Proxy)) func(context.Context, string) (net.Conn, error) {
		return func(ctx context.Context, addr string) (net.Conn, error) {
			p := testcluster.NewProxy(t, addr)
			bend(p)
			return new(net.Dialer).DialContext(ctx, "tcp", p.Addr())
		}
	}
	for name, c := range map[string]struct {
		dial func(context.Context, string) (net.Conn, error)
		text string
		do   string
	}{
		"dropped": {func(ctx context.Context, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, "no answer within 1s", "drops it"},
		"refused":      {func(context.Context, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }, "the connection is refused", "rejects it"},
		"no route":     {func(context.Context, string) (net.Conn, error) { return nil, syscall.EHOSTUNREACH }, "no route to host", "ip route get"},
		"foreign":      {to(anotherServer(t)), "another process answers there", "same address"},
		"nothing up":   {through(func(p *testcluster.Proxy) { p.Up.Blackhole(true) }), "it connects, and no byte comes through", "load balancer"},
		"nothing down": {through(func(p *testcluster.Proxy) { p.Down.Blackhole(true) }), "it connects, and no byte comes through", "load balancer"},
		"large up": {func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			return narrow{c}, err
		}, "few bytes pass, and 64 KiB do not", "MTU"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, errs := job(t, 3, func(rank int, d *doctor.Doctor) {
				network(rank, d, map[int]func(context.Context, string) (net.Conn, error){2: c.dial}[rank])
			})
			require.NoError(t, errors.Join(errs...))
			f := wants(t, r, "links", doctor.Problem, "rank 2 on node-b cannot talk to ranks 0, 1 on node-a: "+c.text)
			require.Contains(t, f.Text, "; the other direction works")
			require.Contains(t, f.Do, c.do)
			well(t, r, 1)
		})
	}
}

// narrow drops writes that do not fit into a packet.
type narrow struct{ net.Conn }

func (n narrow) Write(b []byte) (int, error) {
	if len(b) > 1500 {
		return len(b), nil
	}
	return n.Conn.Write(b)
}

// narrowListener accepts connections that drop writes that do not fit into a packet.
type narrowListener struct{ net.Listener }

func (n narrowListener) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	return narrow{c}, err
}

func TestLinksThatLoseWhatComesBack(t *testing.T) {
	t.Parallel()
	r, _ := job(t, 2, func(rank int, d *doctor.Doctor) {
		if rank != 1 {
			return
		}
		d.System.Listen = func(ctx context.Context, network, addr string) (net.Listener, error) {
			l, err := new(net.ListenConfig).Listen(ctx, network, addr)
			return narrowListener{l}, err
		}
	})
	f := wants(t, r, "links", doctor.Problem, "rank 0 on node-a cannot talk to rank 1 on node-a: few bytes pass, and 64 KiB do not come back")
	require.NotContains(t, f.Text, "direction")
	require.Contains(t, f.Do, "listens at loopback")
}

func TestRankThatCannotListen(t *testing.T) {
	t.Parallel()
	r, _ := job(t, 3, func(rank int, d *doctor.Doctor) {
		if rank == 1 {
			d.System.Listen = func(context.Context, string, string) (net.Listener, error) { return nil, syscall.EADDRNOTAVAIL }
		}
	})
	f := wants(t, r, "links", doctor.Problem, "can listen nowhere: cannot assign requested address")
	require.Equal(t, []int{1}, f.Ranks)
	well(t, r, 1)
}

// TestSomePairs checks the finding when only some of the ranks of two hosts cannot connect.
func TestSomePairs(t *testing.T) {
	t.Parallel()
	r, _ := job(t, 4, func(rank int, d *doctor.Doctor) {
		network(rank, d, nil)
		if rank > 1 {
			network(rank, d, func(context.Context, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED })
		}
	})
	wants(t, r, "links", doctor.Problem, "ranks 2, 3 on node-b cannot talk to ranks 0, 1 on node-a: the connection is refused; the other direction works")
	wants(t, r, "links", doctor.Problem, "ranks 2, 3 on node-b cannot talk to ranks 2, 3 on node-b: the connection is refused")
	well(t, r, 2)
}

// TestNoDataWithoutTheToken checks that a client without the token gets no data.
func TestNoDataWithoutTheToken(t *testing.T) {
	t.Parallel()
	received := make(chan error, 1)
	r, _ := job(t, 2, func(rank int, d *doctor.Doctor) {
		if rank != 1 {
			return
		}
		d.System.Listen = func(ctx context.Context, network, addr string) (net.Listener, error) {
			l, err := new(net.ListenConfig).Listen(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				return nil, err
			}
			go func() {
				defer c.Close()
				_, _ = c.Write([]byte(strings.Repeat("x", 26)))
				n, _ := io.Copy(io.Discard, c)
				if n == 0 {
					received <- nil
				} else {
					received <- errors.New("another service received something")
				}
			}()
			return l, nil
		}
	})
	require.NoError(t, <-received)
	well(t, r, 0)
}

// TestRankThatIsLost checks that the other ranks report which rank has failed, and their own
// findings.
func TestRankThatIsLost(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	r, errs := jobIn(t, 3, func(rank int) context.Context {
		if rank == 2 {
			return ctx
		}
		return t.Context()
	}, func(rank int, d *doctor.Doctor) {
		d.Dir = os.TempDir()
		if rank == 2 {
			d.System.Now = func() time.Time { cancel(); return time.Now() }
		}
	})
	require.NoError(t, errors.Join(errs...))
	wants(t, r, "group", doctor.Problem, "rank 2")
	wants(t, r, "dir", doctor.OK, "files are written") // what a rank has found itself
}

func TestFindingsOfRanks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, _ := job(t, 4, func(rank int, d *doctor.Doctor) {
		d.Dir = dir + []string{"", "", "/nothing", "/nothing"}[rank]
	})
	f := wants(t, r, "dir", doctor.Problem, "no such file")
	require.Equal(t, []int{2, 3}, f.Ranks)
	well(t, r, 1)
}

func TestReportingFails(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	d := &doctor.Doctor{Version: "v1", System: healthy()}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	_, err := d.Run(ctx, func(*doctor.Report) error { return full })
	require.ErrorIs(t, err, full)
}
