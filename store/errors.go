package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/internal/handshake"
	"github.com/muster-pg/muster/wire"
)

// The errors that an *Error wraps.
var (
	ErrNotFound    = errors.New("not found")
	ErrExpired     = errors.New("expired")
	ErrConflict    = errors.New("conflict")
	ErrLost        = errors.New("peer lost")
	ErrLeft        = errors.New("peer left")
	ErrTimeout     = errors.New("timed out")
	ErrCancelled   = errors.New("cancelled")
	ErrMismatch    = errors.New("ranks disagree")
	ErrAborted     = errors.New("aborted")
	ErrTooLarge    = errors.New("too large")
	ErrFull        = errors.New("store full")
	ErrDenied      = errors.New("denied")
	ErrInvalid     = errors.New("invalid request")
	ErrUnavailable = errors.New("store unavailable")
	ErrUnsupported = errors.New("unsupported by this engine")
	ErrCompacted   = errors.New("revision compacted")
	ErrStale       = errors.New("generation over or sequence passed")
	ErrClosed      = errors.New("closed")
	ErrFailed      = errors.New("a rank failed")
	ErrSkipped     = errors.New("a rank skipped it")
	ErrStalled     = errors.New("a rank stalled") // also ErrTimeout

	// ErrUnknown means that the operation may or may not have taken effect.
	ErrUnknown = errors.New("outcome unknown")
	// ErrSessionLost means that the store has ended this client's session, because the client was
	// disconnected or not responding for too long: for other ranks its ranks have failed, and its
	// leases have ended. Later calls use a new session. The error also matches ErrUnavailable.
	ErrSessionLost = errors.New("session lost")
	// ErrProtocol means that the peer is not a muster store.
	ErrProtocol = handshake.ErrProtocol
	// ErrInsecure means that a server would accept unauthenticated peers from other hosts, and
	// Insecure is not set.
	ErrInsecure = errors.New("refusing to serve beyond loopback")
	// ErrServerClosed is the error of Serve after Close or Shutdown.
	ErrServerClosed = errors.New("store: server closed")
)

var codeErrs = map[wire.Code]error{
	wire.CodeNotFound: ErrNotFound, wire.CodeExpired: ErrExpired, wire.CodeConflict: ErrConflict, wire.CodeLost: ErrLost,
	wire.CodeLeft: ErrLeft, wire.CodeTimeout: ErrTimeout, wire.CodeCancelled: ErrCancelled, wire.CodeMismatch: ErrMismatch,
	wire.CodeAborted: ErrAborted, wire.CodeTooLarge: ErrTooLarge, wire.CodeFull: ErrFull, wire.CodeDenied: ErrDenied,
	wire.CodeInvalid: ErrInvalid, wire.CodeUnavailable: ErrUnavailable, wire.CodeUnsupported: ErrUnsupported,
	wire.CodeCompacted: ErrCompacted, wire.CodeStale: ErrStale, wire.CodeClosed: ErrClosed,
	wire.CodeFailed: ErrFailed, wire.CodeSkipped: ErrSkipped,
	wire.CodeStalled: ErrStalled,
	wire.CodeAgain:   ErrFull,
}

// CodeError returns the error of code c; nil for wire.CodeOK.
func CodeError(c wire.Code) error {
	if c == wire.CodeOK {
		return nil
	}
	if err, ok := codeErrs[c]; ok {
		return err
	}
	return errors.New(c.String())
}

// Error is the typed error of this package. It wraps one of the errors above, and matches
// context.DeadlineExceeded or context.Canceled if that is the reason.
type Error struct {
	Op      string   // name of the operation: "get", "collect", …
	Key     string   // key or name of the group; the first of several keys
	Keys    []string // the first 10 keys of an operation on several; for a Wait that timed out, the missing ones
	Code    wire.Code
	Detail  string        // what the code does not say
	Reason  wire.Reason   // why the store denied access, or could not be reached
	Failure *wire.Failure // why a group operation failed
	Err     error

	more bool // there are more keys than Keys has
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "store: %s", e.Op)
	keys := e.Keys
	if len(keys) == 0 && e.Key != "" {
		keys = []string{e.Key}
	}
	for i, k := range keys {
		b.WriteString([]string{" ", ", "}[min(i, 1)])
		b.WriteString(strconv.Quote(k))
	}
	if e.more {
		b.WriteString(" and others")
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// Is makes a deadline or a cancel the same error on both sides, whichever noticed it first.
func (e *Error) Is(target error) bool {
	switch target {
	case context.DeadlineExceeded:
		return e.Code == wire.CodeTimeout
	case context.Canceled:
		return e.Code == wire.CodeCancelled
	}
	return target == codeErrs[e.Code] || target == ErrTimeout && e.Code == wire.CodeStalled
}

// Timeout reports whether a deadline passed, as in net.Error.
func (e *Error) Timeout() bool { return errors.Is(e, context.DeadlineExceeded) }

// answer returns the error that the reply to req means, or nil.
func answer(req *wire.Request, rep *wire.Reply) error {
	if rep.Code == wire.CodeOK {
		return nil
	}
	e := &Error{Op: req.Op.String(), Code: rep.Code, Detail: rep.Detail, Failure: rep.Failure, Err: CodeError(rep.Code)}
	e.setSubject(req)
	if e.Detail == "" && rep.Failure != nil {
		e.Detail = rep.Failure.Reason
	}
	if req.Op == wire.OpWait && len(rep.Keys) > 0 {
		e.setKeys(rep.Keys)
	}
	return e
}

// failure returns the error of a call without a reply. An err without an operation is why the
// connection, which all calls share, has ended.
func failure(req *wire.Request, err error) error {
	e, ok := errors.AsType[*Error](err)
	switch {
	case ok && e.Op != "":
		return err
	case ok:
		detail := strings.TrimPrefix(e.Key+": "+e.Detail, ": ")
		e = &Error{Code: e.Code, Err: e.Err, Detail: detail, Reason: e.Reason}
	default:
		e = &Error{Code: failureCode(err), Err: err}
	}
	e.Op = req.Op.String()
	e.setSubject(req)
	return e
}

func failureCode(err error) wire.Code {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return wire.CodeTimeout
	case errors.Is(err, context.Canceled):
		return wire.CodeCancelled
	case errors.Is(err, ErrClosed):
		return wire.CodeClosed
	}
	return wire.CodeUnavailable
}

// unknownOutcome adds ErrUnknown to err, for a call that may have taken effect.
func unknownOutcome(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	own := *e
	own.Err = fmt.Errorf("%w: %w", ErrUnknown, e.Err)
	return &own
}

// setSubject sets Key and Keys to the subject of req.
func (e *Error) setSubject(req *wire.Request) {
	switch {
	case req.Key != "":
		e.Key = clip(req.Key)
	case len(req.Keys) > 0:
		e.setKeys(req.Keys)
	case req.Lease != 0:
		e.Key = strconv.FormatUint(req.Lease, 10)
	default:
		e.Key = clip(req.Group.Group)
	}
}

// maxNamedKeys is how many keys an error names.
const maxNamedKeys = 10

// setKeys sets Key and Keys. There is at least one key.
func (e *Error) setKeys(keys []string) {
	e.Key, e.Keys, e.more = clip(keys[0]), nil, false
	if len(keys) == 1 {
		return
	}
	for _, k := range keys[:min(len(keys), maxNamedKeys)] {
		e.Keys = append(e.Keys, clip(k))
	}
	e.more = len(keys) > maxNamedKeys
}
