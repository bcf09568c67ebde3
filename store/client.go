package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

// DialOptions configures a client. A nil *DialOptions is the same as the zero value.
type DialOptions struct {
	// Dial makes a connection; nil means a net.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Resolve, if not nil, returns the address, host:port, for each new connection. The address
	// passed to Dial then only names the store in errors.
	Resolve func(ctx context.Context) (addr string, err error)
	// WaitReplaced, if not nil, is called for each connection with its address, and returns nil
	// when another address serves the store: the client then closes that connection and makes a new
	// one. ctx ends with the connection. An error has no effect.
	WaitReplaced func(ctx context.Context, addr string) error
	// TLS returns the configuration of a new connection, as TLSFiles.Client does; nil means no TLS.
	// If the configuration has no ServerName, the client sets it to the host that it dials.
	TLS func() (*tls.Config, error)
	// Secret authenticates both sides: each proves that it knows it, and neither sends it (see
	// ReadSecret). Nil means none.
	Secret []byte
	// Wait makes Dial retry until ctx ends while the server cannot be reached or its name does not
	// resolve: ranks may start before the store.
	Wait bool
	// LivenessTimeout is the time after which a side that receives nothing, no answer to a liveness
	// probe either, considers the other one failed. The store then fails this process's ranks; this
	// process closes the connection and reconnects. Default: the server's for the former, 10 s for
	// the latter. At least 0.6 s, at most one hour.
	LivenessTimeout time.Duration
	Logger          *slog.Logger // nil discards
	// Trace, if not nil, receives an event for each call, as "store.get", with the bytes of its
	// values. Its rank is −1. A call that waits for others, such as store.wait, counts as Waited
	// completely.
	Trace trace.Sink
}

const (
	// handshakeTimeout bounds a handshake whose ctx has no earlier deadline.
	handshakeTimeout = 10 * time.Second
	// goodbyeTimeout bounds how long Close waits for the server to receive the goodbye.
	goodbyeTimeout = time.Second
	// clientBufferSize is the size of a client's read buffer; larger replies get memory of their
	// own.
	clientBufferSize = 32 << 10
	// largeRequest is the size from which on a request waits while more than largeQueue bytes wait
	// for the server to read.
	largeRequest = 64 << 10
	largeQueue   = 32 << 20
	// clientFirstAlloc is how much is allocated for a large reply before more of it has arrived: a client
	// has one connection, to a store that it has authenticated, and growing a buffer copies it and leaves
	// garbage. For a reply of 680 KB that took a client as long as all the rest.
	clientFirstAlloc = 1 << 20
	// clientQueue bounds the bytes that wait for a server that does not read.
	clientQueue = 256 << 20
)

// Dial connects to the Server at addr: a host:port, or several separated by commas, which are
// alternative addresses of one store, directly or through relays. They are tried in order, also
// when a connection breaks. A malformed address, a peer that is not a muster store (ErrProtocol)
// and a failed authentication on either side (ErrDenied) are errors at once. ctx bounds only the
// dialing.
//
// The client reconnects by itself and resumes its session. Calls without a reply are sent again,
// and each change takes effect exactly once. If the session cannot be resumed, because the
// reconnect timeout has passed or the store has lost its memory, calls in progress that change
// something return ErrUnknown, and are not repeated. If the store can no longer be reached, calls
// return ErrUnavailable.
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
	switch reported, ok := errors.AsType[*Error](err); {
	case ok && reported.Op != "":
		return err
	case ok && errors.Is(reported, ErrDenied):
		e.Code, e.Err, e.Detail, e.Reason = reported.Code, reported.Err, reported.Detail, reported.Reason
	case ok && isUnreachable(reported): // a relay reports it
		e.Err, e.Detail, e.Reason = ErrUnavailable, reported.Detail, reported.Reason
	case ok:
		e.Err, e.Detail, e.Reason = fmt.Errorf("%w: %w", ErrUnavailable, reported.Err), reported.Detail, reported.Reason
	case errors.Is(err, ErrProtocol):
		e.Err = err
	}
	if errors.Is(err, handshake.ErrNoAnswer) {
		e.Reason = wire.ReasonNoAnswer
	}
	if waited > 0 {
		e.Code = failureCode(err)
		e.Detail = strings.TrimPrefix(fmt.Sprintf("%s: no store answered for %v", e.Detail, waited.Round(time.Millisecond)), ": ")
	}
	return e
}

// checkAddr rejects addresses that can never become reachable.
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

// isUnreachable reports whether err may go away when the server has started.
func isUnreachable(err error) bool {
	reported, ok := errors.AsType[*Error](err)
	return ok && (reported.Code == wire.CodeUnavailable || reported.Code == wire.CodeLost) || // by a relay, about the store
		handshake.IsUnreachable(err)
}

// isConnRefused reports whether no process listens at the address, or, reported by a relay, at the
// store's.
func isConnRefused(err error) bool {
	reported, ok := errors.AsType[*Error](err)
	return errors.Is(err, syscall.ECONNREFUSED) || ok && reported.Code == wire.CodeLost
}

// processName is the name of this process in the logs of its peers.
func processName() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("pid %d on %s", os.Getpid(), host)
}

func logger(l *slog.Logger) *slog.Logger {
	return cmp.Or(l, slog.New(slog.DiscardHandler))
}
