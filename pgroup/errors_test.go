package pgroup_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/wire"
)

func TestRankErrorText(t *testing.T) {
	for want, v := range map[string]wire.Failure{
		`timed out after 1.00s: missing ranks 2 and 3; 2: in recv from rank 3 for 4s; 3: in no call`: {
			Code: wire.CodeTimeout, By: -1, Waited: time.Second, Missing: []int{2, 3}, Doing: []string{"in recv from rank 3 for 4s", "in no call"},
		},
		`timed out after 0.50s: missing ranks 1–3`:         {Code: wire.CodeTimeout, By: -1, Waited: time.Second / 2, Missing: []int{1, 2, 3}},
		`cancelled here after 0.50s: missing rank 2`:       {Code: wire.CodeCancelled, By: 1, Waited: time.Second / 2, Missing: []int{2}},
		`cancelled by rank 3`:                              {Code: wire.CodeCancelled, By: 3},
		`cancelled by rank 3: out of budget`:               {Code: wire.CodeCancelled, By: 3, Reason: "out of budget"},
		`cancelled by rank 4`:                              {Code: wire.CodeCancelled, By: 4, Reason: "context canceled"},
		`the deadline of rank 3 had passed when it called`: {Code: wire.CodeTimeout, By: 3, Reason: "context deadline exceeded"},

		`lost rank 2`: {Code: wire.CodeLost, By: -1, Lost: []int{2}},

		`lost rank 0: it hosted the store at 127.0.0.1:1`:                     {Code: wire.CodeLost, By: -1, Lost: []int{0}, Reason: "it hosted the store at 127.0.0.1:1"},
		`ranks 0 and 2 left`:                                                  {Code: wire.CodeLeft, By: -1, Left: []int{0, 2}},
		`rank 3: aborted: the disk is full`:                                   {Code: wire.CodeAborted, By: 3, Reason: "the disk is full"},
		`rank 3: invalid: 3 objects for a group of 4`:                         {Code: wire.CodeInvalid, By: 3, Reason: "3 objects for a group of 4"},
		`full: 1024 records behind the others: missing rank 2; 2: in no call`: {Code: wire.CodeFull, By: -1, Missing: []int{2}, Doing: []string{"in no call"}, Reason: "1024 records behind the others"},
		`ranks disagree: rank 0 (pid 1 on a) has a world size of 4, rank 1 (pid 2 on b) has 5`: {
			Code: wire.CodeMismatch, By: -1, Reason: "rank 0 (pid 1 on a) has a world size of 4, rank 1 (pid 2 on b) has 5",
		},
		`ranks disagree: rank 1 called broadcast(root 0), rank 2 called barrier`: {Code: wire.CodeMismatch, By: -1, Clash: []wire.Contribution{
			{Rank: 1, Verb: "broadcast", Root: 0, Type: "int"}, {Rank: 2, Verb: "barrier", Root: -1},
		}},
		`ranks disagree: rank 1 called gather(int), rank 2 called gather(string)`: {Code: wire.CodeMismatch, By: -1, Clash: []wire.Contribution{
			{Rank: 1, Verb: "gather", Root: 3, Type: "int"}, {Rank: 2, Verb: "gather", Root: 3, Type: "string"},
		}},
	} {
		e := &pgroup.RankError{Op: "barrier", Group: "world", Rank: 1, Size: 4, Seq: 12, Failure: &v}
		if got := e.Error(); got != `pgroup: barrier #12 of group "world" on rank 1 of 4: `+want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	e := &pgroup.RankError{Op: "collective.allreduce", Group: "world", Channel: "grads", Size: 4, Failure: &wire.Failure{Code: wire.CodeLost, Lost: []int{2}, By: -1}}
	if got, want := e.Error(), `collective.allreduce of group "world" channel "grads" on rank 0 of 4: lost rank 2`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestRankErrorMatches(t *testing.T) {
	for code, want := range map[wire.Code][]error{
		wire.CodeTimeout: {pgroup.ErrTimeout, context.DeadlineExceeded}, wire.CodeCancelled: {pgroup.ErrCancelled, context.Canceled},
		wire.CodeLost: {pgroup.ErrLost}, wire.CodeLeft: {pgroup.ErrLeft}, wire.CodeMismatch: {pgroup.ErrMismatch}, wire.CodeAborted: {pgroup.ErrAborted},
		wire.CodeUnavailable: {pgroup.ErrUnavailable}, wire.CodeInvalid: {pgroup.ErrInvalid}, wire.CodeTooLarge: {pgroup.ErrTooLarge},
		wire.CodeConflict: {pgroup.ErrConflict}, wire.CodeExpired: {pgroup.ErrExpired}, wire.CodeClosed: {pgroup.ErrClosed},
	} {
		e := &pgroup.RankError{Failure: &wire.Failure{Code: code, By: -1}}
		assert.Equal(t, code == wire.CodeTimeout, e.Timeout())
		var err error = e
		for _, target := range []error{
			pgroup.ErrTimeout, context.DeadlineExceeded, pgroup.ErrCancelled, context.Canceled, pgroup.ErrLost, pgroup.ErrLeft, pgroup.ErrMismatch,
			pgroup.ErrAborted, pgroup.ErrUnavailable, pgroup.ErrInvalid, pgroup.ErrTooLarge, pgroup.ErrConflict, pgroup.ErrExpired, pgroup.ErrClosed,
			pgroup.ErrUnknown, pgroup.ErrBusy,
		} {
			assert.Equal(t, slices.Contains(want, target), errors.Is(err, target), "%v is %v", code, target)
		}
	}
}

func TestRankList(t *testing.T) {
	even := make([]int, 40)
	for i := range even {
		even[i] = 2 * i
	}
	for want, rs := range map[string][]int{
		"no rank": nil, "rank 2": {2}, "ranks 2 and 3": {2, 3}, "ranks 2, 4, 6": {2, 4, 6}, "ranks 0–2": {0, 1, 2},
		"ranks 3–17, 20": append(upTo(18)[3:], 20), "ranks 1, 2, 5–7": {1, 2, 5, 6, 7}, "ranks 0–4998": upTo(4999),
		"ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 and 24 more": even,
	} {
		assert.Equal(t, want, pgroup.RankList(rs), rs)
	}
}

func TestClip(t *testing.T) {
	long := strings.Repeat("ü", 100)
	for n := 10; n < 30; n++ {
		got := pgroup.Clip(long, n)
		if len(got) > n || !utf8.ValidString(got) || !strings.HasSuffix(got, "…") {
			t.Errorf("%d: got %q", n, got)
		}
	}
	assert.Equal(t, "short", pgroup.Clip("short", 5))
}
