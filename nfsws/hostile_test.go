package nfsws_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/muster-pg/muster/nfsws"
)

// seal adds the right checksum to a manifest, as an attacker would.
func seal(body string) []byte {
	body = strings.TrimSuffix(body, "\n") + "\n"
	return fmt.Appendf(nil, "%s\"xxh3\":\"%016x\"}\n", body, xxh3.HashString(body))
}

// edit replaces a part of a manifest, or all of it if old is empty.
func edit(manifest, old, by string) error {
	if old == "" {
		return os.WriteFile(manifest, []byte(by), 0o600)
	}
	raw, err := os.ReadFile(manifest)
	if err != nil {
		return err
	}
	body := string(raw[:bytes.LastIndexByte(raw[:len(raw)-1], '\n')])
	if !strings.Contains(body, old) {
		return fmt.Errorf("no %s in %s", old, body)
	}
	return os.WriteFile(manifest, seal(strings.Replace(body, old, by, 1)), 0o600)
}

// TestHostileDirectory tests files that a broken or malicious peer may create: each is refused by
// its name, without other effects.
func TestHostileDirectory(t *testing.T) {
	link := func(to string) func(string, string) error {
		return func(manifest, _ string) error { os.Remove(manifest); return os.Symlink(to, manifest) }
	}
	type hostile struct {
		change func(manifest, weights string) error
		text   string
	}
	all := map[string]hostile{
		"huge":                {func(m, _ string) error { return os.Truncate(m, 1<<40) }, "has 1099511627776 bytes, more than any manifest"},
		"huge weights":        {func(_, w string) error { return os.Truncate(w, 1<<40) }, ".safetensors: corrupt: it has 1099511627776 bytes"},
		"a link":              {link("/etc/passwd"), ".json: corrupt: it is no regular file but L"},
		"a link to nothing":   {link("nothing"), ".json: corrupt: it is no regular file but L"},
		"a pipe":              {func(m, _ string) error { os.Remove(m); return syscall.Mkfifo(m, 0o600) }, ".json: corrupt: it is no regular file but p"},
		"a directory":         {func(m, _ string) error { os.Remove(m); return os.Mkdir(m, 0o700) }, ".json: corrupt: it is no regular file but d"},
		"weights are a link":  {func(_, w string) error { return cmp.Or(os.Rename(w, w+"x"), os.Symlink(w+"x", w)) }, ".safetensors: corrupt: it is no regular file but L"},
		"weights are missing": {func(_, w string) error { return os.Remove(w) }, ".safetensors: corrupt: it is missing"},
		"other weights": {func(_, w string) error {
			return os.WriteFile(w, append([]byte(`{"w"`), must(os.ReadFile(w))[4:]...), 0o600)
		}, ".safetensors: corrupt: bytes 0 to 332 have the checksum"},
	}
	for line := range strings.Lines(string(must(os.ReadFile("testdata/hostile.txt")))) {
		if c := strings.Split(strings.TrimSuffix(line, "\n"), " | "); !strings.HasPrefix(line, "#") {
			all[c[0]] = hostile{func(manifest, _ string) error { return edit(manifest, c[1], must(strconv.Unquote(c[2]))) }, c[3]}
		}
	}
	for name, tc := range all {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // so that timeouts take no real time
				dir := t.TempDir()
				w, other := open(t, dir, 0, nil), open(t, dir, 1, nil)
				v := publish(t, w, 1)
				publish(t, other, 5)
				require.NoError(t, tc.change(filepath.Join(dir, nfsws.ManifestName(0, 0, v)), filepath.Join(dir, nfsws.WeightsName(0, 0, v))))
				begun := time.Now()
				_, err := other.Read(t.Context(), 0, nfsws.Version{})
				require.ErrorIs(t, err, nfsws.ErrCorrupt)
				require.GreaterOrEqual(t, time.Since(begun), nfsws.StaleTime, "it may have come from a cache")
				require.Less(t, time.Since(begun), 3*nfsws.StaleTime)
				require.ErrorContains(t, err, "nfsws: read rank 0 of generation 0: "+dir+"/gen-00000000000000000000/rank-0.")
				require.ErrorContains(t, err, tc.text)
				require.Less(t, len(err.Error()), 1000)
				shows(t, other, 1, 5, "other ranks' states are as they were")
			})
		})
	}
}

// TestNoDirectory checks that the name "" is not taken for the working directory.
func TestNoDirectory(t *testing.T) {
	_, open := nfsws.Open(t.Context(), "", 0, nil)
	_, begin := nfsws.Begin(t.Context(), "")
	for _, err := range []error{open, begin, nfsws.RemoveUnused(t.Context(), "", time.Hour)} {
		require.ErrorContains(t, err, "no directory given")
	}
}

// TestHostilePlaces has something else where a workspace, or its generation, has its directory:
// nothing blocks, no link is followed, and no directory is used that another user could change.
func TestHostilePlaces(t *testing.T) {
	for name, tc := range map[string]struct {
		put  func(path string) error
		text string
	}{
		"a pipe":                 {func(p string) error { return syscall.Mkfifo(p, 0o600) }, ": remove it"},
		"a link":                 {func(p string) error { return os.Symlink(filepath.Dir(filepath.Dir(p)), p) }, ": remove it"},
		"another user's":         {func(p string) error { return cmp.Or(os.Mkdir(p, 0o755), os.Chown(p, 4711, -1)) }, "it belongs to user 4711"},
		"one that all may write": {func(p string) error { return cmp.Or(os.Mkdir(p, 0), os.Chmod(p, 0o777)) }, "every user may write there"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "ws")
			require.NoError(t, os.Mkdir(dir, 0o755))
			generation := nfsws.GenerationDir(dir, 1)
			err := tc.put(generation)
			if errors.Is(err, fs.ErrPermission) {
				t.Skip("SKIPPED: only root may make a directory of another user")
			}
			require.NoError(t, err)
			_, err = nfsws.Open(t.Context(), dir, 0, &nfsws.Options{Generation: 1})
			require.ErrorContains(t, err, tc.text)
			require.Equal(t, 1, strings.Count(err.Error(), generation), err)
			if strings.HasPrefix(name, "one") { // it may be that of a volume of Kubernetes; only what is in it is trusted
				return
			}
			dir += "2"
			require.NoError(t, tc.put(dir))
			_, beginErr := nfsws.Begin(t.Context(), dir)
			_, err = nfsws.Open(t.Context(), dir, 0, nil)
			for _, err := range []error{beginErr, err} {
				require.ErrorContains(t, err, dir)
				require.ErrorContains(t, err, tc.text)
			}
		})
	}
}

// TestBlockedFileSystem blocks each kind of operation of each call, as a network file system whose
// server is gone does: the call ends with its context.
func TestBlockedFileSystem(t *testing.T) {
	type space struct {
		w *nfsws.Workspace
		v nfsws.Version
		d *disk
	}
	prepare := func(t *testing.T) (s space) {
		s.d = newDisk(1)
		s.w = on(t, s.d, 0)
		s.v = publish(t, s.w, 1)
		return s
	}
	all := maps.Clone(calls)
	all["open"] = nil
	for name, call := range all {
		do := func(ctx context.Context, s space) error {
			if call == nil {
				return second(nfsws.Open(ctx, "/d", 0, nfsws.Options{}.On(s.d)))
			}
			return call(ctx, s.w, s.v)
		}
		t.Run(name, func(t *testing.T) {
			s := prepare(t)
			s.d.arm(func(string) *fault { return nil })
			require.NoError(t, do(t.Context(), s))
			kinds := slices.Compact(slices.Sorted(slices.Values(s.d.operations())))
			require.NotEmpty(t, kinds)
			for _, kind := range kinds {
				if strings.HasPrefix(kind, "release") { // a close after reading sends nothing
					continue
				}
				synctest.Test(t, func(t *testing.T) {
					s, answers := prepare(t), make(chan struct{})
					s.d.always(kind, fault{hangs: answers})
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
					defer cancel()
					begun := time.Now()
					err := do(ctx, s)
					require.ErrorIs(t, err, context.DeadlineExceeded, kind)
					require.ErrorContains(t, err, "the file system does not answer", kind)
					require.Less(t, time.Since(begun), 4*time.Second, kind)
					close(answers)
					require.NoError(t, s.w.Close())
				})
			}
		})
	}
}

// TestAnotherVersion tests a version that a peer names, with a checksum that is not that of the
// manifest.
func TestAnotherVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := open(t, t.TempDir(), 0, nil)
		v := publish(t, w, 1)
		v.Sum++
		_, err := read(w, 0, v)
		require.ErrorIs(t, err, nfsws.ErrCorrupt)
		require.ErrorContains(t, err, "as that of the version asked for")
	})
}

func FuzzManifest(f *testing.F) {
	d := newDisk(1)
	w := must(nfsws.Open(f.Context(), "/d", 0, nfsws.Options{}.On(d)))
	v := must(write(w, 1, 10))
	good := d.files()[nfsws.ManifestName(0, 0, v)]
	f.Add(good, false)
	f.Add(good[:len(good)-30], true)
	f.Add([]byte(`{"format":"muster-nfsws/1","weights":{"size":-1,"xxh3":[null]},"config":[[[`), true)
	f.Fuzz(func(t *testing.T, raw []byte, sealed bool) {
		if sealed {
			raw = seal(string(raw))
		}
		config, err := nfsws.ReadManifest(raw, 0, 0, v)
		if err == nil && config != nil && !json.Valid(config) {
			t.Errorf("%q", config)
		}
	})
}

// FuzzNames searches for names that are accepted as names of this package and are not, or are
// paths.
func FuzzNames(f *testing.F) {
	for _, name := range []string{
		"rank-3.0000000001-00000001.json", "rank-3.0000000001-00000001.json.tmp", "rank-3.0000000001-00000001.safetensors",
		"gen-00000000000000000007", "gen-18446744073709551615", "gen-7", "rank--3.0000000001-00000001.json",
		"rank-+3.0000000001-00000001.json", "rank-3.0000000001-00000001.jsonx", "rank-3.1-1.json", "rank-3/../4.1-1.json",
		"rank-3.0000000001-0000000A.json", "rank-9223372036854775808.0000000001-00000001.json",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		again, ok := nfsws.ParseName(name)
		if ok && (again != name || !filepath.IsLocal(name) || strings.Contains(name, "/")) {
			t.Errorf("%q passes for %q", name, again)
		}
	})
}
