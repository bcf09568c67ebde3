package pgroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Errors that the errors of this package match with errors.Is.
var (
	// ErrTimeout: the deadline has passed, and the error matches context.DeadlineExceeded, too; or it is
	// ErrStalled, and does not.
	ErrTimeout = store.ErrTimeout
	// ErrCancelled: a rank cancelled the operation. It matches context.Canceled, too.
	ErrCancelled = store.ErrCancelled
	// ErrLost: a rank has failed, which means that failure detection has found its process or its
	// connection dead. The group is revoked; Shrink makes a group of the survivors.
	ErrLost = store.ErrLost
	// ErrLeft: a rank has closed the group.
	ErrLeft = store.ErrLeft
	// ErrMismatch: ranks called different operations, or the same one with different roots, types
	// or lengths. The group is revoked.
	ErrMismatch = store.ErrMismatch
	// ErrAborted: a rank called Abort. The group is revoked.
	ErrAborted = store.ErrAborted
	// ErrFailed: a rank could not do its part of an operation of package gather or collective. The
	// group stays active.
	ErrFailed = store.ErrFailed
	// ErrSkipped: a rank went on to a later operation without taking part in this one, as it may
	// after ErrUnknown. The group stays active.
	ErrSkipped = store.ErrSkipped
	// ErrStalled: a missing rank has made no progress for Config.Stall. It matches ErrTimeout too. The
	// group stays active.
	ErrStalled = store.ErrStalled
	// ErrUnknown: the store did not answer in time; the operation may have succeeded or failed.
	ErrUnknown = store.ErrUnknown
	// ErrUnavailable: the store, which no rank of the group hosts, cannot be reached.
	ErrUnavailable = store.ErrUnavailable
	// ErrConflict: another process has this rank.
	ErrConflict = store.ErrConflict
	// ErrExpired: the message was not received within Config.Expiry.
	ErrExpired = store.ErrExpired
	// ErrTooLarge: an object exceeds a limit of the store.
	ErrTooLarge = store.ErrTooLarge
	// ErrInvalid: an argument is invalid, or an object cannot be encoded.
	ErrInvalid = store.ErrInvalid
	// ErrClosed: this handle is closed.
	ErrClosed = store.ErrClosed
	// ErrBusy: another goroutine is in a collective operation of this group, or waits for a message
	// of the same rank.
	ErrBusy = errors.New("another verb of this group is in progress")
)

// RankError is the failure of an operation of a group. All ranks get the same one, but for Rank.
// Packages gather, collective and strategy return it too.
type RankError struct {
	Op         string // "barrier", "create", "collective.allreduce"
	Group      string
	Channel    string // "": the group itself
	Rank, Size int    // of the rank that returns the error
	Seq        uint64 // of the operation on its channel; 0 if it has none

	*wire.Failure       // why it failed, and the ranks at fault; never nil
	Err           error // the wrapped error
}

// Error returns what failed, why, which ranks are at fault, and what those do instead.
func (e *RankError) Error() string {
	var b strings.Builder
	if !strings.Contains(e.Op, ".") {
		b.WriteString("pgroup: ")
	}
	if e.Op != "" {
		b.WriteString(e.Op)
		if e.Seq > 0 {
			fmt.Fprintf(&b, " #%d", e.Seq)
		}
		b.WriteString(" of ")
	}
	fmt.Fprintf(&b, "group %q", e.Group)
	if e.Channel != "" {
		fmt.Fprintf(&b, " channel %q", e.Channel)
	}
	fmt.Fprintf(&b, " on rank %d of %d: %s", e.Rank, e.Size, e.why())
	return b.String()
}

// Unwrap returns the wrapped error.
func (e *RankError) Unwrap() error { return e.Err }

// Is reports whether the code of the failure stands for target. A timeout matches
// context.DeadlineExceeded, too, and a cancel context.Canceled, whichever rank it came from.
func (e *RankError) Is(target error) bool {
	if e.Failure == nil {
		return false
	}
	switch target {
	case context.DeadlineExceeded:
		return e.Code == wire.CodeTimeout
	case context.Canceled:
		return e.Code == wire.CodeCancelled
	case ErrTimeout:
		return e.Code == wire.CodeTimeout || e.Code == wire.CodeStalled
	}
	return e.Code != wire.CodeOK && target == store.CodeError(e.Code)
}

// Timeout reports whether a deadline has passed.
func (e *RankError) Timeout() bool { return errors.Is(e, context.DeadlineExceeded) }

// of returns e as the failure of another operation that it made impossible.
func (e *RankError) of(op string) *RankError {
	own := *e
	own.Op, own.Seq, own.Channel = op, 0, ""
	return &own
}

// why returns the failure in words.
func (e *RankError) why() string {
	v := e.Failure
	if v == nil {
		return fmt.Sprint(e.Err)
	}
	switch v.Code {
	case wire.CodeTimeout, wire.CodeCancelled:
		return e.overdueText()
	case wire.CodeStalled:
		return joinNonEmpty(v.Code.String()+after(v), stalledText(v), v.Reason)
	case wire.CodeLost:
		return joinNonEmpty("lost "+ranks(v.Lost), v.Reason)
	case wire.CodeLeft:
		return joinNonEmpty(ranks(v.Left)+" left", v.Reason)
	case wire.CodeMismatch:
		return joinNonEmpty("ranks disagree", clash(v.Clash), v.Reason)
	}
	if v.By >= 0 {
		return fmt.Sprintf("rank %d: %s", v.By, joinNonEmpty(v.Code.String(), v.Reason))
	}
	if v.Reason == "" && e.Err != nil {
		return joinNonEmpty(e.Err.Error(), missingText(v))
	}
	return joinNonEmpty(v.Code.String(), v.Reason, missingText(v))
}

// overdueText describes an operation that timed out or was cancelled, and the ranks that were
// missing.
func (e *RankError) overdueText() string {
	v := e.Failure
	what := v.Code.String()
	switch {
	case v.By == e.Rank && v.Code == wire.CodeCancelled:
		what = "cancelled here"
	case v.By >= 0 && v.Code == wire.CodeCancelled:
		what = fmt.Sprintf("cancelled by rank %d", v.By)
	case v.By >= 0:
		what = fmt.Sprintf("the deadline of rank %d had passed when it called", v.By)
	}
	what += after(v)
	reason := v.Reason
	if reason == context.Canceled.Error() || v.By >= 0 && v.Code == wire.CodeTimeout { // the context's own words, that what has said
		reason = ""
	}
	return joinNonEmpty(what, missingText(v), reason)
}

// after returns how long the operation had lasted.
func after(v *wire.Failure) string {
	if v.Waited <= 0 {
		return ""
	}
	return fmt.Sprintf(" after %.2fs", v.Waited.Round(10*time.Millisecond).Seconds())
}

// stalledText lists the ranks that have stalled, and the progress that each has made.
func stalledText(v *wire.Failure) string {
	named := v.Missing[:min(len(v.Doing), len(v.Missing))]
	var parts []string
	for i, rank := range named {
		parts = append(parts, fmt.Sprintf("rank %d: %s", rank, v.Doing[i]))
	}
	if more := v.Missing[len(named):]; len(more) > 0 {
		parts = append(parts, ranks(more))
	}
	return strings.Join(parts, "; ")
}

// missingText lists the missing ranks and what they do instead.
func missingText(v *wire.Failure) string {
	if len(v.Missing) == 0 {
		return ""
	}
	const most = 8
	var s strings.Builder
	s.WriteString("missing " + ranks(v.Missing))
	for i, doing := range v.Doing[:min(len(v.Doing), len(v.Missing), most)] {
		fmt.Fprintf(&s, "; %d: %s", v.Missing[i], doing)
	}
	if n := len(v.Missing) - most; n > 0 && len(v.Doing) > 0 {
		fmt.Fprintf(&s, "; and %d more", n)
	}
	return s.String()
}

// joinNonEmpty joins the parts that are not empty with ": ".
func joinNonEmpty(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ": ")
}

// clash describes the calls of two ranks, with only the arguments that differ.
func clash(cs []wire.Contribution) string {
	if len(cs) != 2 {
		return ""
	}
	a, b := &cs[0], &cs[1]
	say := func(c *wire.Contribution) string {
		typ := a.Type != b.Type && a.Type != "" && b.Type != ""
		return fmt.Sprintf("rank %d called %s", c.Rank, describeCall(c, a.Root != b.Root || a.Verb != b.Verb, typ, a.Label != b.Label))
	}
	return say(a) + ", " + say(b)
}

func describeCall(c *wire.Contribution, root, typ, label bool) string {
	var args []string
	if root && c.Root >= 0 {
		args = append(args, fmt.Sprintf("root %d", c.Root))
	}
	if typ && c.Type != "" {
		args = append(args, c.Type)
	}
	if label && c.Label != "" {
		args = append(args, c.Label)
	}
	if args == nil {
		return c.Verb
	}
	return c.Verb + "(" + strings.Join(args, ", ") + ")"
}

// ranks formats a list of ranks: "rank 2", "ranks 2 and 3", "ranks 3–17, 20".
func ranks(rs []int) string {
	const most = 16
	var parts []string
	for i := 0; i < len(rs); {
		n := consecutive(rs[i:])
		switch {
		case len(parts) == most:
			return fmt.Sprintf("ranks %s and %d more", strings.Join(parts, ", "), len(rs)-i)
		case n > 2:
			parts = append(parts, fmt.Sprintf("%d–%d", rs[i], rs[i+n-1]))
		default:
			n = 1
			parts = append(parts, strconv.Itoa(rs[i]))
		}
		i += n
	}
	switch {
	case len(rs) == 0:
		return "no rank"
	case len(rs) == 1:
		return "rank " + parts[0]
	case len(rs) == 2:
		return "ranks " + parts[0] + " and " + parts[1]
	}
	return "ranks " + strings.Join(parts, ", ")
}

// consecutive returns how many ranks at the front of rs are consecutive.
func consecutive(rs []int) int {
	n := 1
	for n < len(rs) && rs[n] == rs[n-1]+1 {
		n++
	}
	return n
}

// TypeError is returned for a message of another type than its receiver wants. The message stays
// for a Recv of the right type.
type TypeError struct {
	Group      string
	From, To   int // ranks
	Sent, Want string
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("pgroup: group %q: rank %d sent %s, rank %d wants %s", e.Group, e.From, e.Sent, e.To, e.Want)
}

// Is matches ErrMismatch.
func (e *TypeError) Is(target error) bool { return target == ErrMismatch }
