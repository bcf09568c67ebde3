package pgroup_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/wire"
)

// TestRankErrorText checks what testdata/errors.txt says.
func TestRankErrorText(t *testing.T) {
	datadriven.RunTest(t, "testdata/errors.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			e := struct {
				pgroup.RankError
				Code, Waited string // of Failure
			}{RankError: pgroup.RankError{Op: "barrier", Group: "world", Rank: 1, Size: 4, Seq: 12, Failure: &wire.Failure{By: -1}}, Waited: "0s"}
			require.NoError(t, json.Unmarshal([]byte(line), &e))
			for code := range wire.CodeSkipped + 1 {
				if code.String() == e.Code {
					e.Failure.Code = code
				}
			}
			var err error
			e.Failure.Waited, err = time.ParseDuration(e.Waited)
			require.NoError(t, err)
			fmt.Fprintln(&out, e.Error())
		}
		return out.String()
	})
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
