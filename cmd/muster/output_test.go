package main_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	muster "github.com/muster-pg/muster/cmd/muster"
)

func (d desk) same(t *testing.T, name string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(d.path(name))
	require.NoError(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("%s has %d bytes, and not the %d that it should have", name, len(got), len(want))
	}
}

// has checks which files are in the desk.
func (d desk) has(t *testing.T, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(string(d))
	require.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("there are %v, not %v", got, want)
	}
}

// TestOutput checks the files that gather, backup and trace write.
func TestOutput(t *testing.T) {
	t.Parallel()
	d := emptyDesk(t)
	out := d.path("out")
	write := func(text string, force, commit bool) error { return muster.WriteOutput(out, text, force, commit) }
	require.NoError(t, write("given up", false, false))
	d.has(t)
	require.NoError(t, write("one", false, true))
	d.same(t, "out", []byte("one"))
	if err := write("two", false, true); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), out) {
		t.Error(err)
	}
	d.same(t, "out", []byte("one"))
	require.NoError(t, write("three", true, true))
	d.same(t, "out", []byte("three"))
	d.has(t, "out")
	long := strings.Repeat("é", 127)
	require.NoError(t, muster.WriteOutput(d.path(long), "long", false, true))
	d.has(t, "out", long)
	assert.ErrorIs(t, muster.WriteOutput(d.path("none/out"), "", false, true), fs.ErrNotExist)
}
