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

// Proxy stands before a TCP address and passes everything on, with the faults that it
// is told. Each can be set and taken back while connections are open.
//
// The faults of Way apply to Up and Down apart; the methods of the same name here set
// both. Connecting itself is never delayed: a client is connected to the proxy before
// the proxy connects to the target, and a client whose target refuses is reset.
type Proxy struct {
	Up   *Way // from the client to the target
	Down *Way // from the target to the client

	t     testing.TB
	addr  string
	guard int // a bound socket that does not listen: it keeps the port while refusing

	doorMu sync.Mutex // serialises Refuse, Cut and close
	door   *door      // nil while refusing; protected by doorMu

	mu     sync.Mutex // protects the fields below
	target string
	pairs  map[*pair]struct{}
}

// NewProxy starts a proxy for target on a port of 127.0.0.1. It ends with the test,
// and all its connections and goroutines with it.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	guard, addr, err := reserve()
	if err != nil {
		t.Fatalf("reserve a port for a proxy: %v", err)
	}
	p := &Proxy{
		Up: newWay(), Down: newWay(),
		t: t, addr: addr, guard: guard,
		target: target, pairs: map[*pair]struct{}{},
	}
	t.Cleanup(p.close)
	p.Refuse(false)
	return p
}

// Addr is where clients connect: HOST:PORT, the same for the proxy's whole life.
func (p *Proxy) Addr() string { return p.addr }

// Target sets where later connections go: a server may come back elsewhere.
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

// Refuse says whether new connections are refused, as where nobody listens. Open ones
// stay. When it returns, no connection from before is still to be accepted.
func (p *Proxy) Refuse(refuse bool) {
	p.doorMu.Lock()
	defer p.doorMu.Unlock()
	switch {
	case refuse && p.door != nil:
		p.door.close()
		p.door = nil
	case !refuse && p.door == nil:
		p.door = p.open()
	}
}

// Cut ends every connection there is, and returns when all are gone; what was under
// way in the proxy is lost. Connections made after it work, unless refused; one that
// is being made meanwhile may be cut too.
func (p *Proxy) Cut(how Ending) {
	p.doorMu.Lock()
	defer p.doorMu.Unlock()
	if old := p.door; old != nil {
		// A client may have connected without having been accepted yet. The kernel
		// resets those when their listener closes; the next is open by then.
		p.door = p.open()
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

// Delay sets Way.Delay both ways: a round trip gets twice as much.
func (p *Proxy) Delay(d time.Duration) { p.Up.Delay(d); p.Down.Delay(d) }

// Jitter sets Way.Jitter both ways.
func (p *Proxy) Jitter(most time.Duration, seed uint64) {
	p.Up.Jitter(most, seed)
	p.Down.Jitter(most, seed+1)
}

// Blackhole sets Way.Blackhole both ways: a cut wire.
func (p *Proxy) Blackhole(on bool) { p.Up.Blackhole(on); p.Down.Blackhole(on) }

// Stall sets Way.Stall both ways.
func (p *Proxy) Stall(on bool) { p.Up.Stall(on); p.Down.Stall(on) }

// Throttle sets Way.Throttle both ways.
func (p *Proxy) Throttle(bytesPerSecond int) {
	p.Up.Throttle(bytesPerSecond)
	p.Down.Throttle(bytesPerSecond)
}

// Split sets Way.Split both ways.
func (p *Proxy) Split(n int) { p.Up.Split(n); p.Down.Split(n) }

func (p *Proxy) close() {
	p.Refuse(true)
	p.Cut(FIN)
	_ = syscall.Close(p.guard)
}

// door is a listener and the goroutine that accepts from it.
type door struct {
	listener net.Listener
	shut     chan struct{} // closed when the goroutine has ended
}

// open returns nil, and fails the test, if it cannot listen.
func (p *Proxy) open() *door {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		ctlErr := c.Control(func(fd uintptr) { err = sharePort(int(fd)) })
		return errors.Join(ctlErr, err)
	}}
	l, err := lc.Listen(context.Background(), "tcp4", p.addr)
	if err != nil {
		p.t.Errorf("proxy: %v", err)
		return nil
	}
	d := &door{listener: l, shut: make(chan struct{})}
	go p.accept(d)
	return d
}

func (d *door) close() {
	d.listener.Close()
	<-d.shut
}

// accept owns the door until its listener closes. Each pair has a goroutine of its
// own, which endAll waits for.
func (p *Proxy) accept(d *door) {
	defer close(d.shut)
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

// reserve binds a port without listening. Listeners that share the port may come and
// go; nobody else can take it, and in between, connecting is refused.
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
	port, err := bindShared(fd)
	if err != nil {
		_ = unix.Close(fd)
		return 0, "", err
	}
	a := net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
	return fd, a.String(), nil
}

func bindShared(fd int) (port int, err error) {
	if err := sharePort(fd); err != nil {
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

func sharePort(fd int) error {
	return errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
	)
}
