package handshake

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/muster-pg/muster/wire"
)

// RefusalTimeout is how long a refused peer gets to read the reason.
const RefusalTimeout = time.Second

// Errors for a peer that uses TLS where the acceptor does not, or the reverse. Neither may look like
// the head of a TLS record: see speaksPlain.
const (
	tlsRequired    = "this server requires TLS"
	tlsUnsupported = "this server does not use TLS: dial it without"
)

var (
	// ErrProtocol means that the peer does not speak this protocol.
	ErrProtocol = errors.New("not a muster store")
	// ErrNoAnswer means that the acceptor has not answered before the dialer's context ended.
	ErrNoAnswer = errors.New("no answer")
)

// RefusalError is the error of both sides after one has refused the other.
type RefusalError struct {
	Code   wire.Code
	Reason wire.Reason
	Detail string
}

func (r *RefusalError) Error() string { return r.Code.String() + ": " + r.Detail }

func denied(reason wire.Reason, why string) *RefusalError {
	return &RefusalError{Code: wire.CodeDenied, Reason: reason, Detail: why}
}

// Refuse answers a hello with r, gives the peer time to read that, and closes conn.
func Refuse(conn net.Conn, r *RefusalError) {
	_ = conn.SetDeadline(time.Now().Add(RefusalTimeout))
	b := wire.AppendReply(nil, wire.OpHello, 0, &wire.Reply{Code: r.Code, Detail: r.Detail, N: int64(r.Reason)})
	if _, err := conn.Write(b); err == nil {
		linger(conn)
	}
	_ = conn.Close()
}

// linger lets the peer read what was written last: closing a socket with unread input discards it.
func linger(conn net.Conn) {
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(RefusalTimeout))
	_ = half.CloseWrite()
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, bufferSize))
}

// DoubtfulError is an error of a TLS handshake that is permanent, or due to bytes that were corrupted on
// the way: another attempt tells. Its text is that of the permanent error.
type DoubtfulError struct{ Err error }

func (d DoubtfulError) Error() string { return d.Err.Error() }
func (d DoubtfulError) Unwrap() error { return d.Err }

// IsDoubtful reports whether err is a DoubtfulError.
func IsDoubtful(err error) bool {
	_, is := errors.AsType[DoubtfulError](err)
	return is
}

// IsHangup reports whether the peer closed the connection without a reply. An acceptor that refuses
// replies.
func IsHangup(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// IsUnreachable reports whether err is of the network, and may go away when the acceptor has started.
func IsUnreachable(err error) bool {
	var dns *net.DNSError
	var timeout net.Error
	return IsHangup(err) || errors.As(err, &dns) || errors.As(err, &timeout) && timeout.Timeout() ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}

// protocolError is ErrProtocol because of what the peer has sent.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrProtocol, fmt.Errorf(format, args...))
}
