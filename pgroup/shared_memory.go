package pgroup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/hostmem"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// sharedMemory is the memory in which a group whose ranks are processes of one host decides its
// collective operations and passes messages, in front of the store (package internal/hostmem). The
// group has one, and each of its first channels (hostmem.Closed says which).
//
// It is set up in the background after some operations, so that short groups do not pay for it: the
// first rank makes the memory and stores how to open it below the group's prefix, and the others
// find it there. If any rank does not find it, cannot open it, or is of another language, no
// collective operation is decided in memory, because not all ranks have joined; messages need their
// two ranks alone.
//
// A rank joins after a vote that the store has received, and the first message of a stream passes
// through the store: so the store knows that this rank uses the channel, and closing it there ends
// the operations that need this rank.
type sharedMemory struct {
	opened atomic.Pointer[hostmem.Memory]
	off    atomic.Bool   // the group has ended, or this rank leaves the rest to the store
	calls  atomic.Uint64 // before it is opened
	passed atomic.Uint64 // messages of this rank that were passed in memory
	begun  bool          // it is open, or being opened; protected by membership.lock

	// The fields below belong to the operation in progress (Group.mu).
	voted   bool // the store has decided an operation
	joined  *hostmem.Memory
	decided int // operations that were decided in memory
}

const (
	// memoryAfter is the number of calls after which a rank begins to set up the memory. It tries
	// again after twice as many, and so on, memoryTries times in all.
	memoryAfter = 32
	memoryTries = 6
	// memoryKey has the hostmem.Ref, below the prefix of the generation. The channel's name follows.
	memoryKey = "\x00memory"
	// maxMemories is from how many on no channel gets one: each takes at least 16 KiB for each rank.
	maxMemories = 16
	// memoryKeyTTL bounds how long memoryKey is kept: a rank that is later does not find it.
	memoryKeyTTL = 10 * time.Minute
	// keptAtStore is the size of a payload that the store should not keep until the next operation
	// that it decides, which may be never.
	keptAtStore = 64 << 10
	// memoryTimeout bounds one set-up.
	memoryTimeout = time.Second
)

// joinedMemory returns the memory if this rank has joined it; the operation of cl is the first that
// uses it if it was opened since the last one.
func (cl *call) joinedMemory() *hostmem.Memory {
	sm := &cl.mem
	if sm.joined == nil {
		if m := cl.memory(); m != nil && sm.voted {
			m.Join(cl.c.Seq)
			m.SlowNext() // the last vote may have been lost
			sm.joined = m
		}
	}
	return sm.joined
}

// memory returns the memory if it is open, and begins to open it after some calls.
func (g *Group) memory() *hostmem.Memory {
	sm := &g.mem
	if sm.off.Load() {
		return nil
	}
	m := sm.opened.Load()
	if m == nil {
		n := sm.calls.Add(1)
		if n&(n-1) == 0 && n >= memoryAfter && n < memoryAfter<<memoryTries && g.onOneHost() {
			g.openMemory()
		}
	}
	return m
}

// onOneHost reports whether the ranks may be processes of one host. Those of a large group do not
// know each other's processes; the one that makes the memory asks for them first.
func (s *membership) onOneHost() bool {
	return s.cfg.SharedMemory != SharedMemoryOff && s.nodes == 1 && s.size > 1 && s.size <= hostmem.MaxRanks && areProcesses(s.knownMembers())
}

// areProcesses reports whether no two members are known to be one process.
func areProcesses(ms []Member) bool {
	pids := map[int]bool{}
	for _, m := range ms {
		pids[m.PID] = true
	}
	return len(pids) == len(ms)
}

// openMemory makes or opens the memory, in a goroutine that Close waits for.
func (g *Group) openMemory() {
	over := g.Context() // follows the group: the end of a rank must turn the memory off
	g.lock.Lock()
	defer g.lock.Unlock()
	if g.hasClosed() || g.mem.begun || g.channel != "" && (g.closedNames.Has(g.channel) || g.memories() >= maxMemories) {
		return
	}
	g.mem.begun = true
	g.wg.Go(func() {
		ctx, cancel := context.WithTimeout(over, memoryTimeout)
		defer cancel()
		m, err := g.newMemory(ctx, memoryKey+g.channel)
		if err != nil {
			g.log.Debug("no shared memory: the store decides all operations", "err", err)
		}
		if m == nil {
			g.lock.Lock()
			g.mem.begun = false
			g.lock.Unlock()
			return
		}
		if g.mem.opened.Store(m); g.isClosed() { // the channel, meanwhile
			g.mem.close()
		}
	})
}

// memories counts the memories that this rank has open, or opens. s.lock must be held.
func (s *membership) memories() (n int) {
	for _, g := range s.channels {
		if g.mem.begun {
			n++
		}
	}
	return n
}

// newMemory makes a memory, unless another rank has made it: then it opens that.
func (g *Group) newMemory(ctx context.Context, key string) (*hostmem.Memory, error) {
	if g.knownMembers() == nil && g.rank > 0 { // one request for all members of a large group is enough
		return g.madeMemory(ctx, key)
	}
	if ms, err := g.Members(ctx); err != nil || !areProcesses(ms) {
		return nil, err
	}
	if err := g.checkMemory(); err != nil {
		return nil, err
	}
	made, ref, err := hostmem.Create(g.rank, g.size, g.cfg.Timeout)
	if errors.Is(err, hostmem.ErrUnsupported) { // here; a seccomp filter may be that of this process alone
		return g.madeMemory(ctx, key)
	}
	if err != nil {
		return nil, err
	}
	var first []byte
	own, err := json.Marshal(ref)
	if err == nil {
		first, err = g.prefixed.SwapFor(ctx, key, nil, own, memoryKeyTTL)
	}
	if err == nil {
		return made, nil
	}
	made.Close()
	if !errors.Is(err, store.ErrConflict) {
		return nil, err
	}
	return g.openedMemory(first)
}

// madeMemory opens the memory that another rank has made.
func (g *Group) madeMemory(ctx context.Context, key string) (*hostmem.Memory, error) {
	ref, err := g.prefixed.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	return g.openedMemory(ref)
}

// checkMemory returns an error unless this process may use all memories that it has opened, and the
// one that it is about to open: they take memory only when they are used.
func (s *membership) checkMemory() error {
	s.lock.Lock()
	n := s.memories()
	s.lock.Unlock()
	return s.cfg.SharedMemory.Check(int64(n) * int64(hostmem.Size(s.size)))
}

// openedMemory opens the memory that a JSON of hostmem.Ref names.
func (s *membership) openedMemory(b []byte) (*hostmem.Memory, error) {
	if err := s.checkMemory(); err != nil {
		return nil, err
	}
	var ref hostmem.Ref
	if err := json.Unmarshal(b, &ref); err != nil {
		return nil, err
	}
	return hostmem.Open(ref, s.rank, s.size, s.cfg.Timeout)
}

// leaveMemory makes the store decide all later operations of the group and its channels, on all
// ranks.
func (s *membership) leaveMemory() {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, g := range s.channels {
		g.mem.leave()
	}
}

// closeMemory frees the memory of the group and its channels.
func (s *membership) closeMemory() {
	s.lock.Lock()
	all := slices.Collect(maps.Values(s.channels))
	s.lock.Unlock()
	for _, g := range all { // each waits for a call in its memory
		g.mem.close()
	}
}

// leave makes the store decide all later operations, on all ranks.
func (sm *sharedMemory) leave() {
	sm.off.Store(true)
	if m := sm.opened.Load(); m != nil {
		m.Leave()
	}
}

// close frees the memory.
func (sm *sharedMemory) close() {
	if m := sm.opened.Swap(nil); m != nil {
		m.Close()
	}
}

// collect decides the operation in shared memory, or at the store.
func (cl *call) collect(ctx context.Context, payload []byte) (got [][]byte, last int, err error) {
	began := time.Now()
	if m := cl.joinedMemory(); m != nil {
		got, last, ok, err := m.Collect(ctx, &cl.c, payload)
		switch {
		case err != nil:
			return nil, -1, cl.disagree(err)
		case ok:
			cl.mem.decided++
			return got, last, nil
		}
	}
	bounded, cancel := cl.withTimeout(ctx, began)
	defer cancel()
	got, last, err = cl.store.CollectLast(bounded, cl.c, payload)
	if m := cl.mem.joined; m != nil {
		if err != nil || len(payload) > keptAtStore || slices.ContainsFunc(got, func(b []byte) bool { return len(b) > keptAtStore }) {
			m.SlowNext()
		}
	}
	cl.mem.voted = cl.mem.voted || err == nil
	return got, last, err
}

// addProgress adds to the description of the missing ranks what the store does not know: how far they
// came in shared memory.
func (cl *call) addProgress(re *RankError) {
	m := cl.mem.joined
	if m == nil || re.Failure == nil || len(re.Doing) == 0 {
		return
	}
	v := *re.Failure // which others may have
	v.Doing = slices.Clone(v.Doing)
	for i := range min(len(v.Doing), len(v.Missing)) {
		if n := m.Passed(v.Missing[i]); n > 0 && n < re.Seq {
			v.Doing[i] += fmt.Sprintf("; it has passed #%d in shared memory", n)
		}
	}
	re.Failure = &v
}

// disagree ends the group: this rank's call differs from the root's, whose operation has succeeded
// in shared memory.
func (cl *call) disagree(cause error) error {
	c := cl.request()
	c.No, c.Reason = wire.CodeMismatch, clip(cause.Error(), wire.MaxKey)
	cl.leave(c)
	return &store.Error{Op: wire.OpCollect.String(), Code: c.No, Err: store.ErrMismatch, Failure: &wire.Failure{Code: c.No, By: cl.rank, Reason: c.Reason}}
}
