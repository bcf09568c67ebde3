package store

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode"

	"github.com/muster-pg/muster/wire"
)

// What a waiting call does when its context ends, of a Memory and of a client.

// withdrawal is why a waiting call is given up.
type withdrawal struct {
	code  wire.Code // CodeTimeout or CodeCancelled
	cause string    // of a cancel, in words
}

// request is the cancel of the call id.
func (w *withdrawal) request(id uint64) *wire.Request {
	return &wire.Request{Op: wire.OpCancel, ID: id, Group: wire.Contribution{No: w.code, Reason: w.cause}}
}

// await returns nil when done is closed. When ctx ends first, the call is withdrawn. The store then decides it for all ranks, so
// that its answer is waited for, no longer than Grace: the store keeps the deadline itself, and is sent a cancel. A store that
// keeps the deadline later, as a busy one does, is sent a cancel that says so.
func await(ctx context.Context, op wire.Op, done <-chan struct{}, withdraw func(withdrawal)) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	err := ctx.Err()
	passed := errors.Is(err, context.DeadlineExceeded)
	if !passed {
		withdraw(withdrawal{wire.CodeCancelled, causeOf(ctx)})
	}
	if passed && op.Waits() || decides(op) {
		grace := time.NewTimer(Grace)
		defer grace.Stop()
		select {
		case <-done:
			return nil
		case <-grace.C:
		}
	}
	if passed {
		withdraw(withdrawal{code: wire.CodeTimeout})
	}
	return err
}

// causeOf returns the text of the cause that ctx was cancelled with; "" if there is none.
func causeOf(ctx context.Context) string {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(ctx.Err(), cause) {
		return ""
	}
	text := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) { // it is part of other ranks' errors, on one line
			return ' '
		}
		return r
	}, cause.Error())
	return strings.ToValidUTF8(text[:min(len(text), mostCause)], "")
}

// mostCause bounds the bytes of a cause that the errors of the other ranks contain.
const mostCause = 512

// decides reports whether the end of a call to op is something that others must agree on.
func decides(op wire.Op) bool {
	switch op {
	case wire.OpJoin, wire.OpCollect, wire.OpRecv:
		return true
	}
	return false
}
