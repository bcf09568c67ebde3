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

// fault is a failure as the first rank tells the others of it. Its ranks are indexes in the list.
type fault struct {
	Code    wire.Code
	By      int // the rank at fault; -1: none in particular
	Missing []int
	Lost    []int
	Reason  string

	err error // what it was, on the rank where it was
}

func (f *fault) Error() string { return f.Reason }
func (f *fault) Unwrap() error { return f.err }

// mismatch is what ranks disagree about; by is the one that differs from those before it.
func mismatch(by int, format string, args ...any) error {
	return &fault{Code: wire.CodeMismatch, By: by, Reason: fmt.Sprintf(format, args...)}
}

// linkError is of a connection to a rank. That it broke is a suspicion: who is lost, the store says.
type linkError struct{ error }

func (e linkError) Unwrap() error { return e.error }

// errLate ends what the first rank waits for.
var errLate = errors.New("it took too long")

// late is what is said of ranks that the first rank has waited for, until err.
func late(err error) error {
	return &fault{Code: wire.CodeTimeout, By: -1, Missing: culprits(err), Reason: asFault(err).Reason, err: err}
}

// culprits are those that err is of.
func culprits(err error) (all []int) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			all = append(all, culprits(e)...)
		}
	} else if f, ok := errors.AsType[*fault](err); ok && f.By > 0 {
		all = []int{f.By}
	}
	return all
}

// failed is what went wrong at a rank, or on the way from it, unless that is known better.
func failed(by int, err error) error {
	if _, ok := errors.AsType[*fault](err); ok {
		return err
	}
	if _, ok := errors.AsType[*pgroup.RankError](err); ok {
		return err
	}
	return &fault{Code: wire.CodeFailed, By: by, Reason: err.Error(), err: err}
}

// verdict is a failure as the caller gets it: of this verb, with the ranks of the group.
func (v *verb) verdict(err error) error {
	if errors.Is(err, pgroup.ErrAborted) {
		err = v.ga.aborted(err)
	}
	return v.ga.verdict(v.op, v.ranks, err)
}

// aborted is why the Gatherer's group was aborted, if that is why that of a list was: who, and the reason.
func (ga *Gatherer) aborted(err error) error {
	whole := ga.group.Context()
	select {
	case <-whole.Done():
	case <-ga.life.Done():
	case <-time.After(lossTime): // it is not
	}
	if cause := context.Cause(whole); errors.Is(cause, pgroup.ErrAborted) {
		return cause
	}
	return err
}

// verdict is a failure of op. Ranks in err are indexes in ranks, unless it is of the whole group.
func (ga *Gatherer) verdict(op string, ranks []int, err error) error {
	told := &wire.Failure{By: -1, Reason: err.Error()}
	if re, ok := errors.AsType[*pgroup.RankError](err); ok && re.Failure != nil {
		copied := *re.Failure
		told = &copied
		if re.Group == ga.group.Name() {
			ranks = nil
		}
	} else if f, ok := errors.AsType[*fault](err); ok {
		told = &wire.Failure{Code: f.Code, By: f.By, Missing: f.Missing, Lost: f.Lost, Reason: f.Reason}
	} else {
		return fmt.Errorf("%s on rank %d of %d: ranks %v: %w", op, ga.group.Rank(), ga.group.Size(), ranks, err)
	}
	told.By = rankOf(ranks, told.By)
	for _, list := range []*[]int{&told.Missing, &told.Lost, &told.Left} {
		*list = slices.Clone(*list)
		for i, r := range *list {
			(*list)[i] = rankOf(ranks, r)
		}
	}
	told.Clash = slices.Clone(told.Clash)
	for i := range told.Clash {
		told.Clash[i].Rank = rankOf(ranks, told.Clash[i].Rank)
	}
	return &pgroup.RankError{Op: op, Group: ga.group.Name(), Rank: ga.group.Rank(), Size: ga.group.Size(), Failure: told, Err: err}
}

// because makes a verdict about this rank wrap what happened here.
func because(err, cause error) error {
	re, ok := errors.AsType[*pgroup.RankError](err)
	if !ok || cause == nil || re.Failure == nil || re.By != re.Rank {
		return err
	}
	own := *re
	own.Err = cause
	return &own
}

// named says which tensor err is about.
func named(name string, err error) error {
	return fmt.Errorf("%s%w", prefix(name), err)
}

// rankOf is the rank in the group of an index in the list; a nil list is the whole group.
func rankOf(ranks []int, i int) int {
	if i < 0 || i >= len(ranks) {
		return i
	}
	return ranks[i]
}
