package durable

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/wire"
)

// starterVar makes the test binary start stores in the directories that it reads from standard
// input, one per line.
const starterVar = "MUSTER_TEST_STARTER"

func TestMain(m *testing.M) {
	if os.Getenv(starterVar) != "" {
		startAll(os.Stdin, json.NewEncoder(os.Stdout))
		return
	}
	os.Exit(m.Run())
}

// started is the result of a start.
type started struct {
	Err     string
	Entries map[string]string
}

func startAll(dirs io.Reader, out *json.Encoder) {
	for in := bufio.NewScanner(dirs); in.Scan(); {
		var s started
		d, m, err := Open(in.Text(), core.Limits{}, nil)
		if err != nil {
			s.Err = err.Error()
		} else {
			s.Entries = entries(m)
			err = d.Close()
		}
		if err != nil && s.Err == "" {
			s.Err = "close: " + err.Error()
		}
		_ = out.Encode(s)
	}
}

// starter is a process that starts stores, since damage may end the process that starts one.
type starter struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

func newStarter(t *testing.T) *starter {
	t.Helper()
	s := &starter{cmd: exec.Command(os.Args[0])}
	s.cmd.Env = append(os.Environ(), starterVar+"=1", "GORACE=atexit_sleep_ms=0")
	var err error
	s.in, err = s.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	s.out = json.NewDecoder(out)
	require.NoError(t, s.cmd.Start())
	return s
}

// start starts a store in dir. ok reports whether the process survived it.
func (s *starter) start(dir string) (st started, ok bool) {
	_, err := fmt.Fprintln(s.in, dir)
	if err == nil {
		err = s.out.Decode(&st)
	}
	return st, err == nil
}

func (s *starter) end() {
	_ = s.in.Close()
	_ = s.cmd.Wait()
}

// stored is a directory of a store that has ended, and the changes that were acknowledged in it.
type stored struct {
	name    string
	files   map[string][]byte
	entries map[string]string
}

// storedDirs makes directories in different states: of a store that was killed, of one that was
// closed, and after checkpoints that were completed or interrupted.
func storedDirs(t *testing.T, rng *rand.Rand) (all []stored) {
	dir := t.TempDir()
	d, m, err := Open(dir, core.Limits{}, nil)
	require.NoError(t, err)
	write := func(n int) {
		for range n {
			req := wire.Request{Op: wire.OpSet, Key: fmt.Sprint("key ", rng.IntN(2000)), Value: bytes.Repeat([]byte{byte(rng.IntN(3))}, rng.IntN(600))}
			m.Apply(m.Now(), core.Local, &req, new(wire.Reply))
			require.NoError(t, d.Sync(d.Apply(m.Now(), core.Local, &req)))
		}
	}
	note := func(name string) { all = append(all, stored{name, filesOf(t, dir), entries(m)}) }
	checkpoint := func(fail int) {
		err := d.Checkpoint(func(f func(*core.Machine)) error {
			if fail--; fail == 0 {
				return os.ErrClosed
			}
			f(m)
			return nil
		})
		if fail > 0 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, os.ErrClosed)
		}
	}
	write(200)
	note("only a log")
	checkpoint(100)
	note("only a checkpoint")
	write(100)
	note("killed")
	checkpoint(2)
	write(50)
	note("a checkpoint was interrupted")
	checkpoint(2)
	note("another one too")
	require.NoError(t, d.Close())
	require.ErrorIs(t, d.Checkpoint(func(func(*core.Machine)) error { return nil }), os.ErrClosed)
	note("closed")
	return all
}

func filesOf(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range names {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		files[f.Name()] = b
	}
	return files
}

// TestDamage flips bits in a directory, or truncates or removes files of it, and starts the store.
// The store has all acknowledged changes, or refuses to start and has changed nothing. No start ends
// the process.
func TestDamage(t *testing.T) {
	damages := 150
	if os.Getenv("MUSTER_SOAK") != "" {
		damages = 10_000
	}
	rng := rand.New(rand.NewPCG(1, 1))
	dirs := storedDirs(t, rng)
	s := newStarter(t)
	defer func() { s.end() }()
	complete, refused, ended, lost, changed := 0, 0, 0, 0, 0
	try := func(was stored, what string, files map[string][]byte) (whole bool) {
		dir := filepath.Join(t.TempDir(), "d")
		require.NoError(t, os.Mkdir(dir, 0o700))
		defer func() { _ = os.RemoveAll(dir) }()
		for name, b := range files {
			used := bytes.TrimRight(b, "\x00")
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), used, 0o600))
			require.NoError(t, os.Truncate(filepath.Join(dir, name), int64(len(b))))
		}
		st, ok := s.start(dir)
		switch {
		case !ok:
			ended++
			s.end()
			s = newStarter(t)
			t.Errorf("%s: %s: the process has ended", was.name, what)
		case st.Err != "":
			refused++
			now := filesOf(t, dir)
			if _, there := files[lockName]; !there {
				delete(now, lockName)
			}
			if !maps.EqualFunc(files, now, bytes.Equal) {
				changed++
				t.Errorf("%s: %s: refused, and changed: %s", was.name, what, st.Err)
			}
		case maps.Equal(was.entries, st.Entries):
			complete++
			return true
		default:
			lost++
			t.Errorf("%s: %s: %d entries of %d", was.name, what, len(st.Entries), len(was.entries))
		}
		return false
	}
	for _, was := range dirs {
		require.True(t, try(was, "untouched", was.files))
		names := slices.Sorted(maps.Keys(was.files))
		for _, name := range names {
			less := maps.Clone(was.files)
			delete(less, name)
			require.Equal(t, name == lockName, try(was, "without "+name, less), "%s: without %s", was.name, name)
		}
	}
	for n := range damages {
		was := dirs[n%len(dirs)]
		name, at := bitOf(rng, was.files)
		files := maps.Clone(was.files)
		b, what := files[name][:at/8], "truncated"
		if n/len(dirs)%2 == 0 {
			b, what = slices.Clone(files[name]), "flipped"
			b[at/8] ^= 1 << (at % 8)
		}
		files[name] = b
		try(was, fmt.Sprintf("%s %s at bit %d", what, name, at), files)
	}
	t.Logf("%d flips and truncations, and %d other cases: %d complete, %d refused; %d ended the process, %d lost something, %d refusals changed something",
		damages, complete+refused+ended+lost-damages, complete, refused, ended, lost, changed)
}

// bitOf chooses a bit of a file, mostly where the file has data.
func bitOf(rng *rand.Rand, files map[string][]byte) (name string, at int) {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(files)), func(name string) bool { return len(files[name]) == 0 })
	name = names[rng.IntN(len(names))]
	b := files[name]
	if used := len(bytes.TrimRight(b, "\x00")); used > 0 && strings.HasPrefix(name, logPrefix) && rng.IntN(20) > 0 {
		b = b[:min(used+64, len(b))]
	}
	return name, rng.IntN(8 * len(b))
}
