package store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

// DialOptions has defaults for nil.
type DialOptions struct {
	// Dial makes the connection; nil is a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Resolve, if it is not nil, returns the address, host:port, for each new connection. The address given to Dial then only names the
	// store in errors.
	Resolve func(ctx context.Context) (addr string, err error)
	// Moved, if it is not nil, is called for each connection with its address, and returns nil when another address serves the store: the client
	// then leaves that connection, and makes another one. ctx ends with the connection. An error changes nothing.
	WaitReplaced func(ctx context.Context, addr string) error
	// TLS is asked for the configuration of each connection, as TLSFiles.Client is made for it; nil is without TLS. Without
	// a ServerName it gets the host that is dialed.
	TLS func() (*tls.Config, error)
	// Secret is what this side proves to know, and the store has to; see ReadSecret. It is never sent. Nil is none.
	Secret []byte
	// Wait keeps trying while nobody listens there, or the name does not resolve, until ctx
	// ends: ranks may start before the store does.
	Wait bool
	// LivenessTimeout is for how long either side may be silent, answers to liveness probes included, before the other takes it for
	// failed: the store this process, whose ranks are lost then, and this process its connection, which it makes anew. Default: the
	// server's for the former, 10 s for the latter. At least 0.6 s, at most an hour.
	LivenessTimeout time.Duration
	Logger          *slog.Logger // nil is silent
	// Trace is told of every call, as "store.get", with how many bytes it brought or took. Rank is −1: a store knows no ranks. What waits for
	// others, as store.wait, is all Waited. Nil is nobody.
	Trace trace.Sink
}

const (
	// handshakeTime bounds a handshake whose ctx does not.
	handshakeTime = 10 * time.Second
	// goodbyeTime bounds how long Close waits for the server to have heard it.
	goodbyeTime = time.Second
	// clientRoom is the size of a client's read buffer; larger replies get memory of their own.
	clientRoom = 32 << 10
	// largeRequest is from where on a request waits its turn while more than largeQueue bytes
	// wait for the server to read.
	largeRequest = 64 << 10
	largeQueue   = 32 << 20
	// clientQueue bounds what waits for a server that does not read.
	clientQueue = 256 << 20
)

// Dial connects to the Server at addr, a host:port, or several with commas: ways to one and the same store, through relays or to itself. They
// are tried in turn, from the first on, also when a connection breaks. A malformed address, or somebody else who listens there (ErrProtocol), is an
// error at once, and so is one of both sides that does not let in or trust the other (ErrDenied). ctx bounds the dialing alone.
//
// The connection mends itself. Calls that have no answer yet are repeated; what changes something takes effect once.
// If the session could not be taken up again, since its time to come back has passed or the store lost its memory, then changes that
// were under way are ErrUnknown, and nothing is repeated. A store that has gone for good is ErrUnavailable.
func Dial(ctx context.Context, addr string, o *DialOptions) (*Store, error) {
	if o == nil {
		o = &DialOptions{}
	}
	d, err := newDialer(addr, *o)
	if err != nil {
		return nil, err
	}
	l, err := d.dialUntil(ctx, &wire.Request{})
	if err != nil {
		return nil, err
	}
	return New(newClient(d, l)), nil
}

func dialError(addr string, err error, waited time.Duration) error {
	e := &Error{Op: "dial", Key: addr, Code: wire.CodeUnavailable, Err: fmt.Errorf("%w: %w", ErrUnavailable, err)}
	switch told, ok := errors.AsType[*Error](err); {
	case ok && told.Op != "":
		return err
	case ok && errors.Is(told, ErrDenied):
		e.Code, e.Err, e.Detail = told.Code, told.Err, told.Detail
	case ok && nobodyThere(told): // a relay says so
		e.Err = fmt.Errorf("%w: %s", ErrUnavailable, told.Detail)
	case ok:
		e.Err, e.Detail = fmt.Errorf("%w: %w", ErrUnavailable, told.Err), told.Detail
	case errors.Is(err, ErrProtocol):
		e.Err = err
	}
	if waited > 0 {
		e.Code = failureCode(err)
		e.Detail = fmt.Sprintf("nobody served there for %v", waited.Round(time.Millisecond))
	}
	return e
}

// checkAddr refuses addresses that no amount of waiting makes right.
func checkAddr(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("port %q is not a number from 1 to 65535", port)
	}
	return nil
}

// nobodyThere reports whether err may go away when the server has started.
func nobodyThere(err error) bool {
	var dns *net.DNSError
	var timeout net.Error
	if told, ok := errors.AsType[*Error](err); ok && (told.Code == wire.CodeUnavailable || told.Code == wire.CodeLost) {
		return true // by a relay, of the store
	}
	return errors.As(err, &dns) || errors.As(err, &timeout) && timeout.Timeout() ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EHOSTUNREACH) ||
		errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// isRefused reports whether nobody listens there, or, as a relay says, where the store is.
func isRefused(err error) bool {
	told, ok := errors.AsType[*Error](err)
	return errors.Is(err, syscall.ECONNREFUSED) || ok && told.Code == wire.CodeLost
}

// whoami is how this process is called in the logs of others.
func whoami() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("pid %d on %s", os.Getpid(), host)
}

func logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
