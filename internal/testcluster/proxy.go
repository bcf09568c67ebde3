package testcluster

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Ending is how a connection is cut.
type Ending int

const (
	RST Ending = iota // reset: what is under way is lost, and peers get "connection reset"
	FIN               // closed: peers read the end of the stream
)

// Proxy is a TCP proxy that injects faults. Faults can be set and removed while connections are
// open.
//
// The faults of Direction apply to Up and Down separately; the methods of Proxy with the same names
// set both. Connecting is never delayed: a client is connected to the proxy before the proxy
// connects to the target, and a client whose target refuses is reset.
type Proxy struct {
	Up   *Direction // from the client to the target
	Down *Direction // from the target to the client

	t        testing.TB
	addr     string
	reserved int // a bound socket that does not listen: it keeps the port while connections are refused

	acceptorMu sync.Mutex // serialises Refuse, Cut and close
	acceptor   *acceptor  // nil while refusing; protected by acceptorMu

	mu     sync.Mutex // protects the fields below
	target string
	pairs  map[*pair]struct{}
}

// NewProxy starts a proxy for target on a port of 127.0.0.1. It ends with the test, with all of its
// connections and goroutines.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	guard, addr, err := reserve()
	if err != nil {
		t.Fatalf("reserve a port for a proxy: %v", err)
	}
	p := &Proxy{
		Up: newDirection(), Down: newDirection(),
		t: t, addr: addr, reserved: guard,
		target: target, pairs: map[*pair]struct{}{},
	}
	t.Cleanup(p.close)
	p.Refuse(false)
	return p
}

// Addr returns the address at which clients connect, HOST:PORT. It does not change.
func (p *Proxy) Addr() string { return p.addr }

// Target sets where later connections go: a server may restart at another address.
func (p *Proxy) Target(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = addr
}

// Conns returns how many clients are connected through the proxy.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pairs)
}

// Refuse sets whether new connections are refused, as if no process listened. Open connections
// stay. When it returns, no earlier connection is still to be accepted.
func (p *Proxy) Refuse(refuse bool) {
	p.acceptorMu.Lock()
	defer p.acceptorMu.Unlock()
	switch {
	case refuse && p.acceptor != nil:
		p.acceptor.close()
		p.acceptor = nil
	case !refuse && p.acceptor == nil:
		p.acceptor = p.open()
	}
}

// Cut ends all connections, and returns when they have ended; data in the proxy is lost. Later
// connections work, unless refused; one that is made at the same time may be cut too.
func (p *Proxy) Cut(how Ending) {
	p.acceptorMu.Lock()
	defer p.acceptorMu.Unlock()
	if old := p.acceptor; old != nil {
		// A client may have connected without having been accepted yet. The kernel
		// resets those when their listener closes; the next is open by then.
		p.acceptor = p.open()
		old.close()
	}
	p.endAll(how)
}

func (p *Proxy) endAll(how Ending) {
	p.mu.Lock()
	pairs := slices.Collect(maps.Keys(p.pairs))
	p.mu.Unlock()
	for _, pr := range pairs {
		pr.end(how)
	}
	for _, pr := range pairs {
		<-pr.gone
	}
}

// Delay sets Direction.Delay in both directions: a round trip takes twice as much longer.
func (p *Proxy) Delay(d time.Duration) { p.Up.Delay(d); p.Down.Delay(d) }

// Blackhole sets Direction.Blackhole in both directions: a cut wire.
func (p *Proxy) Blackhole(on bool) { p.Up.Blackhole(on); p.Down.Blackhole(on) }

// Stall sets Direction.Stall in both directions.
func (p *Proxy) Stall(on bool) { p.Up.Stall(on); p.Down.Stall(on) }

// Throttle sets Direction.Throttle in both directions.
func (p *Proxy) Throttle(bytesPerSecond int) {
	p.Up.Throttle(bytesPerSecond)
	p.Down.Throttle(bytesPerSecond)
}

func (p *Proxy) close() {
	p.Refuse(true)
	p.Cut(FIN)
	_ = syscall.Close(p.reserved)
}

// acceptor is a listener and the goroutine that accepts from it.
type acceptor struct {
	listener net.Listener
	done     chan struct{} // closed when the goroutine has ended
}

// open returns nil, and fails the test, if it cannot listen.
func (p *Proxy) open() *acceptor {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		ctlErr := c.Control(func(fd uintptr) { err = share(int(fd)) })
		return errors.Join(ctlErr, err)
	}}
	l, err := lc.Listen(context.Background(), "tcp4", p.addr)
	if err != nil {
		p.t.Errorf("proxy: %v", err)
		return nil
	}
	d := &acceptor{listener: l, done: make(chan struct{})}
	go p.accept(d)
	return d
}

func (d *acceptor) close() {
	d.listener.Close()
	<-d.done
}

// accept accepts connections until its listener closes. Each pair has a goroutine, which endAll
// waits for.
func (p *Proxy) accept(d *acceptor) {
	defer close(d.done)
	for {
		c, err := d.listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				p.t.Errorf("proxy: %v", err)
			}
			return
		}
		pr := newPair(p, c.(*net.TCPConn))
		p.mu.Lock()
		p.pairs[pr] = struct{}{}
		target := p.target
		p.mu.Unlock()
		go p.serve(pr, target)
	}
}

func (p *Proxy) serve(pr *pair, target string) {
	defer close(pr.gone)
	pr.run(target)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pairs, pr)
}

// reserve binds a port without listening. Listeners that share it can be opened and closed; no other
// process can take it, and in between connections are refused.
func reserve() (fd int, addr string, err error) {
	syscall.ForkLock.RLock()
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return 0, "", err
	}
	port, err := bind(fd)
	if err != nil {
		_ = unix.Close(fd)
		return 0, "", err
	}
	a := net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
	return fd, a.String(), nil
}

func bind(fd int) (port int, err error) {
	if err := share(fd); err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, err
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	return sa.(*unix.SockaddrInet4).Port, nil
}

// share sets the options with which sockets share a port: any of them may listen. Those that do not listen
// share it with any that has SO_REUSEADDR, as servers set it.
func share(fd int) error {
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
	)
}
