package pgroup

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// What an error of this package matches, with errors.Is.
var (
	// ErrTimeout matches context.DeadlineExceeded too.
	ErrTimeout = store.ErrTimeout
	// ErrCancelled matches context.Canceled too.
	ErrCancelled = store.ErrCancelled
	// ErrLost: a rank's process or connection ended without goodbye. The group is over; Shrink has the rest of it.
	ErrLost = store.ErrLost
	// ErrLeft: a rank closed the group.
	ErrLeft = store.ErrLeft
	// ErrMismatch: ranks called different verbs, or the same with another root, type or length. The group is over.
	ErrMismatch = store.ErrMismatch
	// ErrAborted: a rank called Abort. The group is over.
	ErrAborted = store.ErrAborted
	// ErrFailed: a rank could not do its part of what packages gather or collective do. The group goes on.
	ErrFailed = store.ErrFailed
	// ErrSkipped: a rank went on to a later verb without taking part in this one, as it may after ErrUnknown. The group goes on.
	ErrSkipped = store.ErrSkipped
	// ErrUnknown: the store did not answer in time, and may have decided either way.
	ErrUnknown = store.ErrUnknown
	// ErrUnavailable: the store that nobody of the group hosts is gone.
	ErrUnavailable = store.ErrUnavailable
	// ErrConflict: another process holds this rank.
	ErrConflict = store.ErrConflict
	// ErrExpired: nobody fetched the message within Config.Expiry.
	ErrExpired = store.ErrExpired
	// ErrTooLarge: an object is over the limit of a store.
	ErrTooLarge = store.ErrTooLarge
	// ErrInvalid: an argument makes no sense, or an object cannot be encoded.
	ErrInvalid = store.ErrInvalid
	// ErrClosed: this handle was closed.
	ErrClosed = store.ErrClosed
	// ErrBusy: another goroutine is in a collective verb of this group, or waits for the same rank's messages.
	ErrBusy = errors.New("another verb of this group is in progress")
)

// RankError is the verdict of a verb that failed, the same on every rank. Packages gather, collective and strategy return it too.
type RankError struct {
	Op         string // "barrier", "create", "collective.allreduce"
	Group      string
	Channel    string // "" is the group itself
	Rank, Size int    // who tells
	Seq        uint64 // of the verb on its channel; 0 if it has none

	*wire.Failure       // why, and who; never nil
	Err           error // what is wrapped
}

// Error says what failed, why, whose fault it is, and what the ranks at fault do instead.
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

// Unwrap returns what is wrapped.
func (e *RankError) Unwrap() error { return e.Err }

// Is matches the error that the verdict's code stands for. A deadline is context.DeadlineExceeded too, and a
// cancel context.Canceled, whichever rank it came from.
func (e *RankError) Is(target error) bool {
	if e.Failure == nil {
		return false
	}
	switch target {
	case context.DeadlineExceeded:
		return e.Code == wire.CodeTimeout
	case context.Canceled:
		return e.Code == wire.CodeCancelled
	}
	return e.Code != wire.CodeOK && target == store.CodeError(e.Code)
}

// Timeout reports whether a deadline passed.
func (e *RankError) Timeout() bool { return errors.Is(e, context.DeadlineExceeded) }

// of is e as the failure of another verb, that it made impossible.
func (e *RankError) of(op string) *RankError {
	own := *e
	own.Op, own.Seq, own.Channel = op, 0, ""
	return &own
}

// why is the verdict in words.
func (e *RankError) why() string {
	v := e.Failure
	if v == nil {
		return fmt.Sprint(e.Err)
	}
	switch v.Code {
	case wire.CodeTimeout, wire.CodeCancelled:
		return e.overdue()
	case wire.CodeLost:
		return join("lost "+ranks(v.Lost), v.Reason)
	case wire.CodeLeft:
		return join(ranks(v.Left)+" left", v.Reason)
	case wire.CodeMismatch:
		return join("ranks disagree", clash(v.Clash), v.Reason)
	}
	if v.Code == wire.CodeConflict {
		return join(v.Code.String(), v.Reason, "each process needs a rank of its own, and each run a name of its own (MUSTER_RUN)")
	}
	if v.By >= 0 {
		return fmt.Sprintf("rank %d: %s", v.By, join(v.Code.String(), v.Reason))
	}
	if v.Reason == "" && e.Err != nil {
		return join(e.Err.Error(), late(v))
	}
	return join(v.Code.String(), v.Reason, late(v))
}

// overdue tells of a verb that took too long for a rank, and of those who kept it waiting.
func (e *RankError) overdue() string {
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
	if v.Waited > 0 {
		what += fmt.Sprintf(" after %.2fs", v.Waited.Round(10*time.Millisecond).Seconds())
	}
	reason := v.Reason
	if reason == context.Canceled.Error() || v.By >= 0 && v.Code == wire.CodeTimeout { // the context's own words, that what has said
		reason = ""
	}
	return join(what, late(v), reason)
}

// late names the ranks that others wait for, and what they do instead.
func late(v *wire.Failure) string {
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

// join puts the parts that are there behind each other.
func join(parts ...string) string {
	var there []string
	for _, p := range parts {
		if p != "" {
			there = append(there, p)
		}
	}
	return strings.Join(there, ": ")
}

// clash says who called what: only that in which they differ, beside the verb.
func clash(cs []wire.Contribution) string {
	if len(cs) != 2 {
		return ""
	}
	a, b := &cs[0], &cs[1]
	say := func(c *wire.Contribution) string {
		typ := a.Type != b.Type && a.Type != "" && b.Type != ""
		return fmt.Sprintf("rank %d called %s", c.Rank, called(c, a.Root != b.Root || a.Verb != b.Verb, typ, a.Label != b.Label))
	}
	return say(a) + ", " + say(b)
}

func called(c *wire.Contribution, root, typ, label bool) string {
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

// ranks is a list of ranks in words: "rank 2", "ranks 2 and 3", "ranks 3–17, 20".
func ranks(rs []int) string {
	const most = 16
	var parts []string
	for i := 0; i < len(rs); {
		n := run(rs[i:])
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

// run is how many ranks at the front of rs follow each other.
func run(rs []int) int {
	n := 1
	for n < len(rs) && rs[n] == rs[n-1]+1 {
		n++
	}
	return n
}

// TypeError says that an object is not what its receiver wants. A message stays where it is, for a Recv that wants it.
type TypeError struct {
	Group      string
	From, To   int // ranks
	Sent, Want string
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("pgroup: group %q: rank %d sent %s, rank %d wants %s", e.Group, e.From, e.Sent, e.To, e.Want)
}

// Is makes it a mismatch.
func (e *TypeError) Is(target error) bool { return target == ErrMismatch }
