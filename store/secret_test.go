package store_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
)

func secretOf(c string) []byte { return []byte(strings.Repeat(c, 16)) }

func TestReadSecret(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	long := strings.Repeat("x", 4096)
	for text, want := range map[string]string{
		"0123456789abcdef":     "0123456789abcdef",
		"0123456789abcdef\n":   "0123456789abcdef",
		"0123456789abcdef\r\n": "0123456789abcdef",
		" 0123456789abcdef \n": " 0123456789abcdef ",
		"0123456789abcdef\n\n": "0123456789abcdef\n",
		long + "\r\n":          long,
	} {
		got, err := store.ReadSecret(write("good", text))
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
	for text, want := range map[string]string{
		"":                  "0 bytes are too few",
		"0123456789abcde\n": "15 bytes are too few, it needs 16",
		long + "x":          "more than 4096",
		long + "xxxxxxx":    "more than 4096",
		long + "\nx":        "more than 4096",
	} {
		file := write("bad", text)
		_, err := store.ReadSecret(file)
		require.ErrorIs(t, err, store.ErrInvalid)
		require.ErrorContains(t, err, file)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "(umask 077; head -c 32 /dev/urandom | base64 > secret)")
	}
	_, err := store.ReadSecret(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorIs(t, err, store.ErrInvalid)
	_, err = store.ReadSecret(dir)
	require.Error(t, err)
	for _, mode := range []fs.FileMode{0o644, 0o640, 0o604, 0o620, 0o601} {
		file := write("open", "0123456789abcdef")
		require.NoError(t, os.Chmod(file, mode))
		_, err := store.ReadSecret(file)
		require.ErrorIs(t, err, store.ErrInvalid, mode)
		require.ErrorContains(t, err, "chmod 600 "+file)
	}
}
