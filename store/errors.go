package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/wire"
)

// What an *Error wraps.
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

	// ErrUnknown says that it is not known whether the operation took effect.
	ErrUnknown = errors.New("outcome unknown")
	// ErrSession says that the store went on without this client, which was away, or silent, for too long: for others its ranks
	// are lost, and its leases have ended. What is called from now on is in a new session. It comes with ErrUnavailable.
	ErrSession = errors.New("this session is lost")
	// ErrProtocol says that whoever listens there is not a muster store.
	ErrProtocol = errors.New("not a muster store")
	// ErrInsecure says that a server would be open to the network without being told so by name.
	ErrInsecure = errors.New("refusing to serve beyond loopback")
	// ErrServerClosed is what Serve returns after Close or Shutdown.
	ErrServerClosed = errors.New("store: server closed")
)

var codeErrs = map[wire.Code]error{
	wire.CodeNotFound: ErrNotFound, wire.CodeExpired: ErrExpired, wire.CodeConflict: ErrConflict, wire.CodeLost: ErrLost,
	wire.CodeLeft: ErrLeft, wire.CodeTimeout: ErrTimeout, wire.CodeCancelled: ErrCancelled, wire.CodeMismatch: ErrMismatch,
	wire.CodeAborted: ErrAborted, wire.CodeTooLarge: ErrTooLarge, wire.CodeFull: ErrFull, wire.CodeDenied: ErrDenied,
	wire.CodeInvalid: ErrInvalid, wire.CodeUnavailable: ErrUnavailable, wire.CodeUnsupported: ErrUnsupported,
	wire.CodeCompacted: ErrCompacted, wire.CodeStale: ErrStale, wire.CodeClosed: ErrClosed,
	wire.CodeFailed: ErrFailed, wire.CodeSkipped: ErrSkipped,
	wire.CodeAgain: ErrFull,
}

// CodeError is the error that c stands for; nil for wire.CodeOK.
func CodeError(c wire.Code) error {
	if c == wire.CodeOK {
		return nil
	}
	if err, ok := codeErrs[c]; ok {
		return err
	}
	return errors.New(c.String())
}

// Error is the one typed error of this package. It wraps one of the errors above, and
// matches context.DeadlineExceeded or context.Canceled where that is the reason.
type Error struct {
	Op      string   // "get", "collect", …
	Key     string   // or a group's name; of several keys the first
	Keys    []string // of an operation on several keys: the first 10; of a Wait that timed out, of those that are missing
	Code    wire.Code
	Detail  string        // what a user needs to know beyond the code
	Failure *wire.Failure // of a group verb
	Err     error

	more bool // there are keys that Keys does not have
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

// Is makes a deadline or a cancel the same error whether the store noticed it first or this side.
func (e *Error) Is(target error) bool {
	switch target {
	case context.DeadlineExceeded:
		return e.Code == wire.CodeTimeout
	case context.Canceled:
		return e.Code == wire.CodeCancelled
	}
	return target == codeErrs[e.Code]
}

// Timeout reports whether a deadline passed, as net.Error does.
func (e *Error) Timeout() bool { return errors.Is(e, context.DeadlineExceeded) }

// answer is the error that the answer to req means; nil if it is none.
func answer(req *wire.Request, rep *wire.Reply) error {
	if rep.Code == wire.CodeOK {
		return nil
	}
	e := &Error{Op: req.Op.String(), Code: rep.Code, Detail: rep.Detail, Failure: rep.Failure, Err: CodeError(rep.Code)}
	e.about(req)
	if e.Detail == "" && rep.Failure != nil {
		e.Detail = rep.Failure.Reason
	}
	if req.Op == wire.OpWait && len(rep.Keys) > 0 {
		e.names(rep.Keys)
	}
	return e
}

// failure is the error of a call that has no answer. One without an operation is why the connection that all
// calls share has ended.
func failure(req *wire.Request, err error) error {
	e, ok := errors.AsType[*Error](err)
	switch {
	case ok && e.Op != "":
		return err
	case ok && e.Key == "":
		e = &Error{Code: e.Code, Err: e.Err, Detail: e.Detail}
	case ok:
		e = &Error{Code: e.Code, Err: e.Err, Detail: e.Key + ": " + e.Detail}
	default:
		e = &Error{Code: failureCode(err), Err: err}
	}
	e.Op = req.Op.String()
	e.about(req)
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

// inDoubt returns err with ErrUnknown, for a call that may have taken effect.
func inDoubt(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	own := *e
	own.Err = fmt.Errorf("%w: %w", ErrUnknown, e.Err)
	return &own
}

// about has e name what req is about.
func (e *Error) about(req *wire.Request) {
	switch {
	case req.Key != "":
		e.Key = clip(req.Key)
	case len(req.Keys) > 0:
		e.names(req.Keys)
	case req.Lease != 0:
		e.Key = strconv.FormatUint(req.Lease, 10)
	default:
		e.Key = clip(req.Group.Group)
	}
}

// mostNamed is how many keys an error names.
const mostNamed = 10

// names has e name keys, of which there is one at least.
func (e *Error) names(keys []string) {
	e.Key, e.Keys, e.more = clip(keys[0]), nil, false
	if len(keys) == 1 {
		return
	}
	for _, k := range keys[:min(len(keys), mostNamed)] {
		e.Keys = append(e.Keys, clip(k))
	}
	e.more = len(keys) > mostNamed
}
