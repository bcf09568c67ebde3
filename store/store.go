// Package store is a key-value store for groups of processes: keys with watches, leases and queues,
// and the records by which ranks decide group operations.
//
//	s, err := store.Open(ctx, "muster://127.0.0.1:7070")
//	v, err := s.Wait(ctx, "model/ready")
//
// A Store has the operations; an Engine carries them out. Memory is an engine in this process,
// Server serves a Memory over the network, Dial connects to a Server, and Prefix is a part of a
// store. All of them are used in the same way.
//
// Values that are passed in may be reused when the call returns; returned values belong to the
// caller.
package store

import (
	"context"
	"iter"
	"time"

	"github.com/muster-pg/muster/wire"
)

// Engine carries out requests. The scenarios of internal/scenario are its rules.
type Engine interface {
	// Do carries out req, and fills rep, whatever the code of the reply. It waits as req asks, and
	// no longer than ctx. When a deadline passes, an operation that waits gets ResultGrace for the
	// store's own result, which names the missing ranks or keys. When ctx is cancelled, the store
	// is asked to cancel OpJoin, OpCollect and OpRecv, and gets ResultGrace for the result. An
	// error means that there is no reply. Do keeps neither req nor rep, and the content of rep
	// belongs to the caller.
	Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error
	// Close ends all calls in progress with ErrClosed. It may be called twice.
	Close() error
}

// ResultGrace is how long a group operation waits past its context for the result that all ranks
// share.
const ResultGrace = 500 * time.Millisecond

// Store has the operations on an Engine. It may be used by many goroutines at once.
type Store struct {
	engine Engine
	ctx    context.Context // of goroutines between calls: those of leases
	cancel context.CancelFunc
}

// New returns a Store on e.
func New(e Engine) *Store {
	life, end := context.WithCancel(context.Background())
	return &Store{e, life, end}
}

// Engine returns the engine, for wrappers.
func (s *Store) Engine() Engine { return s.engine }

// Do passes req to the engine, with the time that is left of ctx, and returns the error of the
// reply. It is for operations without their own method.
func (s *Store) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if err := ctx.Err(); err != nil {
		return failure(req, err)
	}
	if err := validate(req); err != nil {
		return err
	}
	if at, ok := ctx.Deadline(); ok && req.Op.Waits() {
		req.Timeout = min(max(time.Until(at), 1), maxTimeout)
	}
	if err := s.engine.Do(ctx, req, rep); err != nil {
		return failure(req, err)
	}
	return answer(req, rep)
}

// maxTimeout means no deadline; adding it to the current time cannot overflow.
const maxTimeout = time.Duration(1 << 62)

// Close closes the engine, and ends the leases that were granted here with ErrClosed.
func (s *Store) Close() error {
	defer s.cancel()
	return s.engine.Close()
}

// SetOptions configures Set. nil means that the entry stays until it is deleted.
type SetOptions struct {
	TTL   time.Duration // the entry expires after this time, never before; 0: never
	Lease *Lease        // the entry is deleted when the lease ends
}

// Get returns the value of key, or ErrNotFound.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpGet, Key: key}, &rep)
	return rep.Value, err
}

// Wait returns the values of all keys, in their order, as soon as all of them exist, in one round
// trip. If ctx ends first, the error names the missing keys.
func (s *Store) Wait(ctx context.Context, keys ...string) ([][]byte, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpWait, Keys: keys}, &rep)
	return rep.Values, err
}

// Set sets the value of key, and replaces its TTL.
func (s *Store) Set(ctx context.Context, key string, value []byte, o *SetOptions) error {
	req := wire.Request{Op: wire.OpSet, Key: key, Value: nonNil(value)}
	if o != nil {
		if o.TTL < 0 {
			return &Error{Op: "set", Key: key, Code: wire.CodeInvalid, Err: ErrInvalid, Detail: "a negative TTL"}
		}
		req.TTL = min(o.TTL, maxTimeout)
		if o.Lease != nil {
			if o.Lease.foreign(s) {
				return &Error{Op: "set", Key: key, Code: wire.CodeDenied, Err: ErrDenied, Detail: "the lease is of another Store: their numbers mean nothing to each other"}
			}
			req.Lease = o.Lease.id
		}
	}
	return s.Do(ctx, &req, new(wire.Reply))
}

// Add adds delta to the counter key, which starts at 0, and returns its new value. Counters are
// decimal text, as in PyTorch's TCPStore; ErrInvalid if the value of key is something else. The
// TTL is kept.
func (s *Store) Add(ctx context.Context, key string, delta int64) (int64, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpAdd, Key: key, Add: delta}, &rep)
	return rep.N, err
}

// Swap replaces the value of key by new if it is old (compare-and-swap), and returns the current
// value. nil means absent: Swap(nil, v) creates, Swap(v, nil) deletes. If the value is not old, it
// is returned with ErrConflict.
func (s *Store) Swap(ctx context.Context, key string, old, new []byte) (now []byte, err error) {
	return s.SwapFor(ctx, key, old, new, 0)
}

// SwapFor is Swap with a time to live. SwapFor(v, v) renews that of an unchanged entry.
func (s *Store) SwapFor(ctx context.Context, key string, old, new []byte, ttl time.Duration) (now []byte, err error) {
	var rep wire.Reply
	err = s.Do(ctx, &wire.Request{Op: wire.OpSwap, Key: key, Expect: old, Value: new, TTL: ttl}, &rep)
	return rep.Value, err
}

// Append appends to the value of key, which starts empty, and returns its new length. Appending
// nothing creates an empty entry if there is none. The TTL is kept.
func (s *Store) Append(ctx context.Context, key string, value []byte) (int, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpAppend, Key: key, Value: nonNil(value)}, &rep)
	return int(rep.N), err
}

// deleteAtOnce is how many keys fit into one request, however long they are.
const deleteAtOnce = wire.MaxValue / wire.MaxKey / 2

// Delete deletes keys, and returns how many of them existed. Up to 1,024 of them are deleted at once.
// If there are more, an error may leave the later ones.
func (s *Store) Delete(ctx context.Context, keys ...string) (int, error) {
	deleted := 0
	for {
		some := keys[:min(len(keys), deleteAtOnce)]
		var rep wire.Reply
		err := s.Do(ctx, &wire.Request{Op: wire.OpDelete, Keys: some}, &rep)
		deleted += int(rep.N)
		if keys = keys[len(some):]; err != nil || len(keys) == 0 {
			return deleted, err
		}
	}
}

// Revision numbers the changes of a store, from 1. Each change of a key has its own revision.
type Revision uint64

// Revision returns the revision of the store's last change.
func (s *Store) Revision(ctx context.Context) (Revision, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpPing}, &rep)
	return Revision(rep.Rev), err
}

// Entry is a key with its value and metadata.
type Entry struct {
	Key   string
	Value []byte
	Rev   Revision      // of its last change
	TTL   time.Duration // time left; 0: no expiry
}

// listPage is how many entries a round trip of List returns.
const listPage = 1000

// List yields the entries whose keys start with prefix, in key order. Concurrent changes may be
// seen or not; each entry by itself is consistent.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[Entry, error] {
	return s.pages(ctx, prefix, false)
}

// pages yields the entries below prefix, which it reads in pages.
func (s *Store) pages(ctx context.Context, prefix string, keysOnly bool) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		var after []string // the last key seen
		for more := true; more; {
			var entries []Entry
			var err error
			if entries, more, err = s.page(ctx, prefix, after, keysOnly); err != nil {
				yield(Entry{}, err)
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			if more {
				after = []string{entries[len(entries)-1].Key}
			}
		}
	}
}

// page returns a page of entries that follow after, if that is a key.
func (s *Store) page(ctx context.Context, prefix string, after []string, keysOnly bool) (entries []Entry, more bool, err error) {
	var rep wire.Reply
	if err := s.Do(ctx, &wire.Request{Op: wire.OpList, Key: prefix, Keys: after, Limit: listPage, KeysOnly: keysOnly}, &rep); err != nil {
		return nil, false, err
	}
	for i, k := range rep.Keys {
		rev, left := rep.Listed(i)
		e := Entry{Key: k, Rev: Revision(rev), TTL: left}
		if !keysOnly {
			e.Value = rep.Values[i]
		}
		entries = append(entries, e)
	}
	return entries, rep.N != 0, nil
}

// Keys yields the keys that start with prefix, as List does, without values.
func (s *Store) Keys(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for e, err := range s.pages(ctx, prefix, true) {
			if !yield(e.Key, err) {
				return
			}
		}
	}
}

// Event is a change of an entry.
type Event struct {
	Entry
	Deleted bool // the entry was deleted: Value is nil
	Expired bool // it expired
}

// Watch yields the changes below prefix after a revision, in order and each exactly once, until ctx
// ends, which is its last error. With revision 0 it begins with the next change. If the store has
// compacted changes after the revision, the error is ErrCompacted: use List again.
func (s *Store) Watch(ctx context.Context, prefix string, after Revision) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			var rep wire.Reply
			err := s.Do(ctx, &wire.Request{Op: wire.OpWatch, Key: prefix, After: uint64(after)}, &rep)
			if err != nil {
				yield(Event{}, err)
				return
			}
			for i, k := range rep.Keys {
				rev, what := rep.Changed(i)
				e := Event{
					Entry:   Entry{Key: k, Value: rep.Values[i], Rev: Revision(rev)},
					Deleted: what != wire.ChangeSet,
					Expired: what == wire.ChangeExpire,
				}
				if !yield(e, nil) {
					return
				}
			}
			after = Revision(rep.Rev)
		}
	}
}

// nonNil returns v, or an empty slice for nil, which would mean absent.
func nonNil(v []byte) []byte {
	if v == nil {
		return []byte{}
	}
	return v
}
