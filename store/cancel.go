package store

import (
	"context"
	"errors"
	"strings"
	"unicode"

	"github.com/muster-pg/muster/internal/transport"
	"github.com/muster-pg/muster/wire"
)

// What a waiting call does when its context ends, in a Memory and in a client.

// cancellation is why a waiting call is cancelled.
type cancellation struct {
	code  wire.Code // CodeTimeout or CodeCancelled
	cause string    // text of the context's cause, for a cancel
}

// request returns the cancel of the call id.
func (w *cancellation) request(id uint64) *wire.Request {
	return &wire.Request{Op: wire.OpCancel, ID: id, Group: wire.Contribution{No: w.code, Reason: w.cause}}
}

// await returns nil when done is closed. When ctx ends first, it asks the store to cancel the call.
// The store then decides the call for all ranks, so its reply is awaited for up to ResultGrace. The
// store knows the deadline and applies it itself; if it is late, as a busy store may be, it is sent
// a cancel with CodeTimeout.
func await(ctx context.Context, op wire.Op, done <-chan struct{}, withdraw func(cancellation)) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	err := ctx.Err()
	passed := errors.Is(err, context.DeadlineExceeded)
	if !passed {
		withdraw(cancellation{wire.CodeCancelled, causeOf(ctx)})
	}
	if passed && op.Waits() || decidesForAll(op) {
		if transport.WaitGrace(done, ResultGrace) {
			return nil
		}
	}
	if passed {
		withdraw(cancellation{code: wire.CodeTimeout})
	}
	return err
}

// causeOf returns the text of the cause that ctx was cancelled with, or "".
func causeOf(ctx context.Context) string {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(ctx.Err(), cause) {
		return ""
	}
	text := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) { // it becomes part of other ranks' errors, on one line
			return ' '
		}
		return r
	}, cause.Error())
	return strings.ToValidUTF8(text[:min(len(text), maxCause)], "")
}

// maxCause bounds the bytes of a cause in the errors of other ranks.
const maxCause = 512

// decidesForAll reports whether other ranks must agree on the end of a call to op.
func decidesForAll(op wire.Op) bool {
	switch op {
	case wire.OpJoin, wire.OpCollect, wire.OpRecv:
		return true
	}
	return false
}
