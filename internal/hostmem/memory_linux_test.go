package hostmem

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/muster-pg/muster/wire"
)

// joined returns the handles of two ranks, which have joined a memory before their first record.
func joined(t *testing.T) (m, other *Memory) {
	t.Helper()
	m, ref, err := Create(0, 2, time.Minute)
	require.NoError(t, err)
	t.Cleanup(m.Close)
	other, err = Open(ref, 1, 2, time.Minute)
	require.NoError(t, err)
	t.Cleanup(other.Close)
	m.Join(1)
	other.Join(1)
	return m, other
}

// TestOpenRefuses checks that only the memory that a Ref names is opened, of the right size.
func TestOpenRefuses(t *testing.T) {
	m, ref, err := Create(0, 2, time.Minute)
	require.NoError(t, err)
	defer m.Close()
	other, err := Open(ref, 1, 2, time.Minute)
	require.NoError(t, err)
	other.Close()

	file, err := os.Create(filepath.Join(t.TempDir(), "x"))
	require.NoError(t, err)
	defer file.Close()
	unsealed, err := unix.MemfdCreate(fileName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(unsealed)
	require.NoError(t, unix.Ftruncate(unsealed, int64(standard(2).size())))
	for name, bad := range map[string]func(r *Ref){
		"no process":  func(r *Ref) { r.PID = 1 << 30 },
		"no file":     func(r *Ref) { r.File = 1 << 20 },
		"a file":      func(r *Ref) { r.File = int(file.Fd()) },
		"unsealed":    func(r *Ref) { r.File = unsealed },
		"other token": func(r *Ref) { r.Token = []byte(strings.Repeat("x", tokenLen)) },
		"no token":    func(r *Ref) { r.Token = nil },
	} {
		r := ref
		bad(&r)
		m, err := Open(r, 1, 2, time.Minute)
		require.Error(t, err, name)
		require.Nil(t, m, name)
	}
	_, err = Open(ref, 1, 3, time.Minute)
	require.Error(t, err, "another number of ranks")
	if os.Geteuid() == 0 { // who may open those of all users
		require.NoError(t, unix.Fchown(ref.File, 1234, -1))
		_, err = Open(ref, 1, 2, time.Minute)
		require.ErrorContains(t, err, "it is of user 1234, and this process of user 0")
	}
	_, _, err = Create(0, MaxRanks+1, time.Minute)
	require.Error(t, err)
}

// TestSizeCannotChange checks that no process can shrink the memory, which would be a SIGBUS for the
// others.
func TestSizeCannotChange(t *testing.T) {
	m, ref, err := Create(0, 2, time.Minute)
	require.NoError(t, err)
	defer m.Close()
	require.ErrorIs(t, unix.Ftruncate(ref.File, 0), unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(ref.File, 1<<40), unix.EPERM)
}

// TestCorruptMemory checks that what a faulty rank writes is an error, or a slow record, and no access
// out of bounds.
func TestCorruptMemory(t *testing.T) {
	for name, corrupt := range map[string]func(m *Memory){
		"offset": func(m *Memory) { copy(m.head(1, 1)[8:], "\xff\xff\xff\xff") },
		"length": func(m *Memory) { copy(m.head(1, 1)[12:], "\xff\xff\xff\x7f") },
		"call":   func(m *Memory) { copy(m.head(1, 1)[16:], "\xff\xff") },
		"texts":  func(m *Memory) { copy(m.head(1, 1)[headFixed+7:], "\xff\xff\xff") },
		"record": func(m *Memory) { copy(m.head(1, 1), "\x07") },
		"rank": func(m *Memory) {
			m.store(m.stateWord(1), uint64(newState(1, phaseDone, 2, 1<<countBits-1)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, other := joined(t)
			c := wire.Contribution{Seq: 1, Rank: 1, Root: 1, RootOnly: true, Verb: "broadcast", Want: wire.WantNothing}
			_, _, ok, err := other.Collect(t.Context(), &c, []byte("payload"))
			require.NoError(t, err)
			require.True(t, ok)
			corrupt(other)
			c.Rank, c.Want = 0, 1
			_, _, ok, err = m.Collect(t.Context(), &c, nil)
			require.Error(t, err)
			require.True(t, ok)
		})
	}
}

// TestSlowNext checks that a rank reads a record that has ended before it makes the next one slow.
func TestSlowNext(t *testing.T) {
	m, other := joined(t)
	broadcast := func(m *Memory, seq uint64, rank, root int) bool {
		t.Helper()
		c := wire.Contribution{Seq: seq, Rank: rank, Root: root, RootOnly: true, Verb: "broadcast", Want: wire.WantNothing}
		_, _, ok, err := m.Collect(t.Context(), &c, nil)
		require.NoError(t, err)
		return ok
	}
	require.True(t, broadcast(other, 1, 1, 1))
	m.SlowNext()
	require.True(t, broadcast(m, 1, 0, 1))
	require.False(t, broadcast(m, 2, 0, 0))
	require.False(t, broadcast(other, 2, 1, 0))
	require.True(t, broadcast(m, 3, 0, 0))
	require.True(t, broadcast(other, 3, 1, 0))
}

// TestEmptyPayload checks that a payload without bytes is not nil, which it is not at the store either.
func TestEmptyPayload(t *testing.T) {
	m, other := joined(t)
	_, _, ok, err := m.Collect(t.Context(), &wire.Contribution{Seq: 1, RootOnly: true, Verb: "broadcast", Want: wire.WantNothing}, nil)
	require.NoError(t, err)
	require.True(t, ok)
	got, _, ok, err := other.Collect(t.Context(), &wire.Contribution{Seq: 1, Rank: 1, RootOnly: true, Verb: "broadcast"}, nil)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, [][]byte{{}}, got)
}

// TestClosedMemory checks that a closed memory leaves all to the store.
func TestClosedMemory(t *testing.T) {
	m, _, err := Create(0, 2, time.Minute)
	require.NoError(t, err)
	m.Join(1)
	m.Close()
	m.Close()
	m.Leave()
	require.Zero(t, m.Passed(0))
	_, _, ok, err := m.Collect(t.Context(), &wire.Contribution{Seq: 1, Verb: "barrier", Root: -1, Want: wire.WantNothing}, nil)
	require.NoError(t, err)
	require.False(t, ok)
}

// TestPartsChange checks that a payload that changes while it is parsed is an error.
func TestPartsChange(t *testing.T) {
	m, other := joined(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := (*uint32)(unsafe.Pointer(&other.data(1)[0])); ; {
			select {
			case <-stop:
				return
			default:
				atomic.StoreUint32(n, 2)
				atomic.StoreUint32(n, 0)
			}
		}
	}()
	for seq := range uint64(20_000) {
		c := wire.Contribution{Seq: seq + 1, Rank: 1, Root: 1, RootOnly: true, Verb: "scatter", Want: wire.WantPart}
		h := other.head(1, c.Seq)
		binary.LittleEndian.PutUint64(h, c.Seq)
		binary.LittleEndian.PutUint32(h[8:], 0)
		binary.LittleEndian.PutUint32(h[12:], 4)
		binary.LittleEndian.PutUint16(h[16:], uint16(callSize(&c)))
		appendCall(h[headFixed:headFixed], &c)
		other.settle(c.Seq, phaseDone)
		other.pass(c.Seq)
		c.Rank = 0
		if _, _, _, err := m.Collect(t.Context(), &c, nil); err == nil {
			t.Fatal("no error: 4 bytes are not two parts")
		}
	}
	close(stop)
	<-stopped
	other.Close()
}

// TestLimitOfAddresses checks that the memory does not take most of the addresses that a process may
// have.
func TestLimitOfAddresses(t *testing.T) {
	const ranks = 512
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_AS, &old))
	var pages uint64
	b, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	_, err = fmt.Sscan(string(b), &pages)
	require.NoError(t, err)
	low := old
	low.Cur = pages*uint64(os.Getpagesize()) + 2*uint64(standard(ranks).size())
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_AS, &low))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_AS, &old)) }()
	m, _, err := Create(0, ranks, time.Minute)
	if err == nil {
		m.Close()
	}
	require.ErrorContains(t, err, "ulimit -v")
	m, _, err = Create(0, 2, time.Minute)
	require.NoError(t, err)
	m.Close()
}

// TestNotInDumps checks that a core dump of a process does not have the memory, most of which no rank
// has used.
func TestNotInDumps(t *testing.T) {
	m, _, err := Create(0, 2, time.Minute)
	require.NoError(t, err)
	defer m.Close()
	b, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	_, own, found := strings.Cut(string(b), fmt.Sprintf("%x-", uintptr(unsafe.Pointer(&m.mem[0]))))
	require.True(t, found)
	_, flags, _ := strings.Cut(own, "VmFlags:")
	flags, _, _ = strings.Cut(flags, "\n")
	require.Contains(t, strings.Fields(flags), "dd")
}

// TestReceiversShareAThread checks that calls that wait for messages do not keep a thread each.
func TestReceiversShareAThread(t *testing.T) {
	const ranks = 64
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // those that run have a thread each
	threads := func() int {
		all, err := os.ReadDir("/proc/self/task")
		require.NoError(t, err)
		return len(all)
	}
	before := threads()
	m, ref, err := Create(0, ranks, time.Hour)
	require.NoError(t, err)
	defer m.Close()
	m.limit = time.Minute
	var others []*Memory
	for rank := 1; rank < ranks; rank++ {
		other, err := Open(ref, rank, ranks, time.Minute)
		require.NoError(t, err)
		defer other.Close()
		other.Stored(0, 1)
		others = append(others, other)
	}
	for range 20 {
		var all sync.WaitGroup
		for src := 1; src < ranks; src++ {
			all.Go(func() {
				typ, _, ok := m.Receive(t.Context(), src, 1)
				assert.True(t, ok)
				assert.Equal(t, fmt.Sprint(src), typ)
			})
		}
		asleep := func() bool { return m.load(m.rankWord(0, wordReceivers)) == ranks-1 }
		require.Eventually(t, asleep, time.Minute, time.Millisecond)
		if n := threads(); n > before+ranks/2 {
			t.Errorf("%d threads, %d before", n, before)
		}
		for _, other := range others {
			require.True(t, other.Send(0, 1, false, fmt.Sprint(other.rank), nil))
		}
		all.Wait()
	}
}

// TestSizesOfMessages checks that messages up to the size of the slot are passed in memory, and larger
// ones are left to the store.
func TestSizesOfMessages(t *testing.T) {
	m, ref, err := Create(0, 2, time.Hour)
	require.NoError(t, err)
	defer m.Close()
	m.limit = time.Minute
	other, err := Open(ref, 1, 2, time.Hour)
	require.NoError(t, err)
	defer other.Close()
	other.Stored(0, 1)
	payload := bytes.Repeat([]byte("x"), m.slot-pairHeader+1)
	typ := strings.Repeat("t", maxType+1)
	got := make(chan bool)
	go func() {
		text, b, ok := m.Receive(t.Context(), 1, 1)
		got <- ok && text == typ[1:] && bytes.Equal(b, payload[1:])
	}()
	waits := func() bool { return m.load(m.pair(1, 0)+pairState) == waiting }
	require.Eventually(t, waits, time.Minute, time.Millisecond)
	require.False(t, other.Send(0, 1, true, typ, nil))
	require.False(t, other.Send(0, 1, true, "", payload))
	require.True(t, other.Send(0, 1, true, typ[1:], payload[1:]))
	require.True(t, <-got)
}
