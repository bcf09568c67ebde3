package gather

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/wire"
)

// fault is a failure in the form in which the first rank sends it to the others. Its ranks are
// indexes in the list.
type fault struct {
	Code    wire.Code
	By      int // the rank at fault; -1: no single rank
	Missing []int
	Lost    []int
	Reason  string

	err error // the original error, on the rank where it occurred
}

func (f *fault) Error() string { return f.Reason }
func (f *fault) Unwrap() error { return f.err }

// mismatch returns the failure of ranks that disagree; by is the first one that differs from those
// before it.
func mismatch(by int, format string, args ...any) error {
	return &fault{Code: wire.CodeMismatch, By: by, Reason: fmt.Sprintf(format, args...)}
}

// linkError is the error of a connection to a rank. The rank is only suspected: the store detects
// failures.
type linkError struct{ error }

func (e linkError) Unwrap() error { return e.error }

// errTooLong ends the first rank's wait for data.
var errTooLong = errors.New("it took too long")

// timedOut returns the failure that names the ranks for which the first rank waited until err.
func timedOut(err error) error {
	return &fault{Code: wire.CodeTimeout, By: -1, Missing: responsible(err), Reason: asFault(err).Reason, err: err}
}

// responsible returns the ranks that err names.
func responsible(err error) (all []int) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			all = append(all, responsible(e)...)
		}
	} else if f, ok := errors.AsType[*fault](err); ok && f.By > 0 {
		all = []int{f.By}
	}
	return all
}

// failed returns the failure of the rank with index by, or of the connection to it, unless err
// already names a rank.
func failed(by int, err error) error {
	if _, ok := errors.AsType[*fault](err); ok {
		return err
	}
	if _, ok := errors.AsType[*pgroup.RankError](err); ok {
		return err
	}
	return &fault{Code: wire.CodeFailed, By: by, Reason: err.Error(), err: err}
}

// rankError converts a failure to the error that the caller gets: with this verb, and with the
// ranks of the group.
func (v *verb) rankError(err error) error {
	if errors.Is(err, pgroup.ErrAborted) {
		err = v.ga.aborted(err)
	}
	return v.ga.rankError(v.op, v.ranks, err)
}

// aborted returns why the Gatherer's group was aborted, if that also aborted the group of a list.
func (ga *Gatherer) aborted(err error) error {
	whole := ga.group.Context()
	select {
	case <-whole.Done():
	case <-ga.life.Done():
	case <-time.After(lossTime): // it was not aborted
	}
	if cause := context.Cause(whole); errors.Is(cause, pgroup.ErrAborted) {
		return cause
	}
	return err
}

// rankError returns the error of a failure of op. The ranks in err are indexes in ranks, unless it
// is a failure of the whole group.
func (ga *Gatherer) rankError(op string, ranks []int, err error) error {
	result := &wire.Failure{By: -1, Reason: err.Error()}
	if re, ok := errors.AsType[*pgroup.RankError](err); ok && re.Failure != nil {
		copied := *re.Failure
		result = &copied
		if re.Group == ga.group.Name() {
			ranks = nil
		}
	} else if f, ok := errors.AsType[*fault](err); ok {
		result = &wire.Failure{Code: f.Code, By: f.By, Missing: f.Missing, Lost: f.Lost, Reason: f.Reason}
	} else {
		return fmt.Errorf("%s on rank %d of %d: ranks %v: %w", op, ga.group.Rank(), ga.group.Size(), ranks, err)
	}
	result.By = rankOf(ranks, result.By)
	for _, list := range []*[]int{&result.Missing, &result.Lost, &result.Left} {
		*list = slices.Clone(*list)
		for i, r := range *list {
			(*list)[i] = rankOf(ranks, r)
		}
	}
	result.Clash = slices.Clone(result.Clash)
	for i := range result.Clash {
		result.Clash[i].Rank = rankOf(ranks, result.Clash[i].Rank)
	}
	return &pgroup.RankError{Op: op, Group: ga.group.Name(), Rank: ga.group.Rank(), Size: ga.group.Size(), Failure: result, Err: err}
}

// withCause makes a failure of this rank wrap the error that occurred on it.
func withCause(err, cause error) error {
	re, ok := errors.AsType[*pgroup.RankError](err)
	if !ok || cause == nil || re.Failure == nil || re.By != re.Rank {
		return err
	}
	own := *re
	own.Err = cause
	return &own
}

// named adds the name of the tensor to err.
func named(name string, err error) error {
	return fmt.Errorf("%s%w", prefix(name), err)
}

// rankOf returns the rank in the group of an index in the list; a nil list is the whole group.
func rankOf(ranks []int, i int) int {
	if i < 0 || i >= len(ranks) {
		return i
	}
	return ranks[i]
}
