package shm_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/shm"
)

// children are the roles of the test binary when it does not run tests.
var children = map[string]func() error{
	"owner":   beOwner,
	"reader":  beReader,
	"share":   fillShare,
	"address": fillAddressSpace,
	"files":   useUpDescriptors,
	"size":    exceedFileSize,
}

// sharedRef is the message between a child and its test about a shared block.
type sharedRef struct {
	Ref     shm.Ref
	Sum     uint32
	Release bool // by a reader
}

// process is a child process, with a Conn to it.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// child returns a command that is the test binary in the role what, started by another command or by none.
func child(t testing.TB, what string, by ...string) *exec.Cmd {
	args := append(by, os.Args[0])
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), childIs+"="+what, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// begin starts cmd.
func begin(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return &process{cmd, in, bufio.NewReader(out)}
}

// start starts the test binary in the role what; it returns this side's Conn.
func start(t testing.TB, what string) (*shm.Conn, *process) {
	t.Helper()
	near, far := sockets(t)
	f, err := far.File()
	require.NoError(t, err)
	far.Close()
	cmd := child(t, what)
	cmd.ExtraFiles = []*os.File{f}
	p, c := begin(t, cmd), shm.NewConn(near)
	f.Close()
	t.Cleanup(func() {
		p.kill()
		_ = c.Close()
	})
	return c, p
}

// kill is kill -9.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// receive reads a owner's message about a shared block.
func (p *process) receive(t testing.TB) (got sharedRef) {
	t.Helper()
	line, err := p.out.ReadBytes('\n')
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(line, &got))
	return got
}

func (p *process) send(t testing.TB, what any) {
	t.Helper()
	require.NoError(t, json.NewEncoder(p.in).Encode(what))
}

// parent returns the child's Conn to the test.
func parent() *shm.Conn { return shm.NewConn(must(socket(3))) }

// beOwner shares blocks one after the other, each with its own size and contents, and frees each
// at once; a few are shared at a time.
func beOwner() error {
	ctx, c := context.Background(), parent()
	a := must(shm.NewArena(&shm.Options{Segment: 1 << 18}))
	out := json.NewEncoder(os.Stdout)
	var refs []shm.Ref
	for seed := uint64(os.Getpid()); ; seed++ {
		b := must(a.Alloc(1 + int(seed*7919%300_000)))
		fill(b, seed)
		ref, _ := a.Find(b)
		check(c.Share(ctx, a, ref))
		check(out.Encode(sharedRef{Ref: ref, Sum: sum(b)}))
		a.Free(b)
		if refs = append(refs, ref); len(refs) > 8 {
			check(c.WaitReleased(ctx, refs[0]))
			refs = refs[1:]
		}
	}
}

// beReader maps each block that it is notified of, reports its checksum, and keeps it, or releases it if it is
// told to. Of a block that it has, it reports the checksum again.
func beReader() error {
	c := parent()
	held := map[shm.Ref]*shm.Block{}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var p sharedRef
		check(in.Decode(&p))
		if held[p.Ref] == nil {
			held[p.Ref] = must(c.Map(context.Background(), p.Ref))[0]
		}
		p.Sum = sum(held[p.Ref].Data)
		if p.Release {
			held[p.Ref].Release()
			delete(held, p.Ref)
		}
		check(out.Encode(p))
	}
}

// names returns this package's files in /dev/shm; those of other jobs on the host come and go.
func names(t testing.TB) (list []string) {
	t.Helper()
	entries, err := os.ReadDir("/dev/shm")
	require.NoError(t, err)
	for _, e := range entries {
		if strings.Contains(e.Name(), "muster") {
			list = append(list, e.Name())
		}
	}
	return list
}

// TestLenderIsKilled kills lenders at many points. Blocks that this process has mapped keep their
// contents, blocks that it was notified of can still be mapped, it detects the end, and when it has
// released all and closed, nothing is left. Two lenders at a time check that jobs do not interfere.
func TestLenderIsKilled(t *testing.T) {
	before, files := segments(os.Getpid()), names(t)
	for kill := range 12 {
		c, p := start(t, "owner")
		other, q := start(t, "owner")
		held, sums := make([][]*shm.Block, 2), make([][]uint32, 2) // a few of each owner
		take := func(i int, c *shm.Conn, p *process) {
			got := p.receive(t)
			blocks := mapped(t, c, got.Ref)
			require.Equal(t, got.Sum, sum(blocks[0].Data))
			held[i], sums[i] = append(held[i], blocks[0]), append(sums[i], got.Sum)
			if len(held[i]) > 4 {
				held[i][0].Release()
				held[i], sums[i] = held[i][1:], sums[i][1:]
			}
		}
		for range kill {
			take(0, c, p)
			take(1, other, q)
		}
		last := p.receive(t)
		p.kill()
		if kill%2 == 0 {
			<-c.Done()
			require.ErrorIs(t, c.Err(), io.EOF)
		}
		blocks := mapped(t, c, last.Ref)
		require.Equal(t, last.Sum, sum(blocks[0].Data))
		<-c.Done()
		take(1, other, q)
		q.kill()
		<-other.Done()
		require.NoError(t, other.Close())
		for i := range held {
			for j, b := range held[i] {
				require.Equal(t, sums[i][j], sum(b.Data))
				b.Release()
			}
		}
		require.NoError(t, c.Close())
		require.Equal(t, before+1, segments(os.Getpid()), "the last is mapped until it is released")
		require.Equal(t, last.Sum, sum(blocks[0].Data))
		blocks[0].Release()
		require.Equal(t, before, segments(os.Getpid()))
		require.Zero(t, segments(p.cmd.Process.Pid)+segments(q.cmd.Process.Pid))
	}
	require.Equal(t, files, names(t))
}

// TestBorrowerIsKilled kills borrowers at many points, which share one arena that stays in use.
func TestBorrowerIsKilled(t *testing.T) {
	ctx := within(t)
	before := segments(os.Getpid())
	a := newArena(t, &shm.Options{Segment: 1 << 20})
	for kill := range 12 {
		c, p := start(t, "reader")
		var all []shm.Ref
		for i := range kill {
			b, ref := shared(t, c, a, 200_000, uint64(i))
			shared := sharedRef{Ref: ref, Sum: sum(b), Release: i%2 == 0}
			p.send(t, shared)
			a.Free(b)
			all = append(all, ref)
			if i < kill-1 { // the last may be in any state
				require.Equal(t, shared, p.receive(t))
			}
		}
		p.kill()
		<-c.Done()
		require.ErrorIs(t, c.Err(), io.EOF)
		if kill > 2 { // the second was not released
			require.ErrorIs(t, c.WaitReleased(ctx, all...), io.EOF)
		}
		require.Zero(t, a.Stats().InUse)
		require.Zero(t, a.Stats().Retired, "nothing else of them was in use")
	}
	a.Trim()
	require.Equal(t, before, segments(os.Getpid()))
}

// TestFrozenIsNotDead stops a reader, ends the Conn, and uses all available memory: blocks that
// the reader has are not touched, nor are those of which it is still to be notified.
func TestFrozenIsNotDead(t *testing.T) {
	ctx := within(t)
	c, p := start(t, "reader")
	a := newArena(t, &shm.Options{Segment: 1 << 20, Limit: 3 << 20})
	b, ref := filled(t, a, 1<<19, 1)
	kept := alloc(t, a, 100)
	want := sharedRef{Ref: ref, Sum: sum(b)}
	require.NoError(t, c.Share(ctx, a, ref))
	p.send(t, want)
	require.Equal(t, want, p.receive(t))
	a.Free(b)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	late, more := filled(t, a, 100, 3)
	untouched := sharedRef{Ref: more, Sum: sum(late)}
	require.NoError(t, c.Share(ctx, a, more), "Lend does not wait for the peer")
	a.Free(late)
	short := testcluster.Within(t, 10*time.Millisecond)
	require.ErrorIs(t, c.WaitReleased(short, ref), context.DeadlineExceeded)
	require.NoError(t, c.Close())
	for n := 1 << 18; n > 100; {
		b, err := a.Alloc(n)
		if err != nil {
			require.ErrorIs(t, err, shm.ErrFull)
			n /= 2
			continue
		}
		fill(b, 2)
	}
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGCONT))
	for _, refs := range []sharedRef{want, untouched} {
		p.send(t, refs)
		require.Equal(t, refs, p.receive(t))
	}
	require.Equal(t, 1, a.Stats().Retired)
	fill(kept, 3)
}

// TestLimitsOfTheProcess runs into kernel limits: they cause errors, and no signals.
func TestLimitsOfTheProcess(t *testing.T) {
	for _, what := range []string{"address", "files", "size"} {
		t.Run(what, func(t *testing.T) {
			out, err := child(t, what).CombinedOutput()
			require.NoError(t, err, "%s", out)
			t.Logf("%s", out)
		})
	}
}

// limit sets a limit of this process.
func limit(resource int, to uint64) error {
	var lim unix.Rlimit
	if err := unix.Getrlimit(resource, &lim); err != nil {
		return err
	}
	lim.Cur = to
	return unix.Setrlimit(resource, &lim)
}

func fillAddressSpace() error {
	a := must(shm.NewArena(nil))
	var pages uint64
	must(fmt.Sscan(string(must(os.ReadFile("/proc/self/statm"))), &pages))
	check(limit(unix.RLIMIT_AS, pages*uint64(os.Getpagesize())+256*mib))
	_, err := a.Alloc(1 << 30)
	return wantFull(err)
}

func wantFull(err error) error {
	if !errors.Is(err, shm.ErrFull) {
		return fmt.Errorf("%w: is not ErrFull", err)
	}
	fmt.Print(err)
	return nil
}

func exceedFileSize() error {
	a := must(shm.NewArena(nil))
	check(limit(unix.RLIMIT_FSIZE, mib))
	_, err := a.Alloc(1)
	return wantFull(err)
}

// useUpDescriptors lacks a descriptor for its own segment, and then one for a segment of the
// peer.
func useUpDescriptors() error {
	a := must(shm.NewArena(&shm.Options{Segment: 1 << 16}))
	var conns [2]*shm.Conn
	for i, fd := range must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)) {
		conns[i] = shm.NewConn(must(socket(fd)))
	}
	b := must(a.Alloc(1 << 16))
	check(limit(unix.RLIMIT_NOFILE, 3))
	_, err := a.Alloc(1 << 16)
	if !errors.Is(err, unix.EMFILE) || errors.Is(err, shm.ErrFull) {
		return fmt.Errorf("%w: is not about descriptors", err)
	}
	fmt.Println(err)
	ref, _ := a.Find(b)
	// The peer ends as it reads the segment, which may be before Share has returned.
	if err := conns[0].Share(context.Background(), a, ref); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_, err = conns[1].Map(context.Background(), ref)
	if err == nil {
		return errors.New("a descriptor came where there is room for none")
	}
	fmt.Print(err)
	return nil
}

// fillShare is a rank that takes 64 MiB at a time, until there is no more, while other ranks of its
// control group do the same. It keeps its memory until all of them have finished.
func fillShare() error {
	a := must(shm.NewArena(nil))
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	_, err := in.ReadString('\n')
	for err == nil {
		var b []byte
		if b, err = a.Alloc(64 * mib); err == nil {
			fill(b, 1)
		}
	}
	check(wantFull(err))
	fmt.Printf(" (this rank has %d MiB)\n", a.Stats().Taken/mib)
	_, err = io.Copy(io.Discard, in)
	return err
}
