// Package store is where a group's state lives: keys, and the records that decide group verbs.
//
//	s, err := store.Open(ctx, "muster://127.0.0.1:7070")
//	v, err := s.Wait(ctx, "model/ready")
//
// A Store is the verbs; an Engine carries them out. Memory is state in this process, a Server
// serves an Engine, Dial reaches one, Prefix is a part of one. Whoever can use one can use all.
//
// Values passed in may be reused on return; values returned are the caller's.
package store

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/muster-pg/muster/wire"
)

// Engine carries out requests. Package storetest is its contract.
type Engine interface {
	// Do answers req into rep, whatever the answer's code. It waits as req asks, and no longer than ctx.
	// When a deadline passes, an operation that waits is given Grace for the store's own word, which
	// says who or what is missing; when ctx is cancelled, OpJoin, OpCollect, OpSend and OpRecv are
	// withdrawn and given Grace for what was decided. An error means that there is no answer.
	// Do keeps neither req nor rep, and what rep holds is the caller's.
	Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error
	// Close ends every call in progress with ErrClosed. It may be called twice.
	Close() error
}

// Grace is how long a group verb waits past its context for the verdict that all ranks share.
const Grace = 250 * time.Millisecond

// Store is what users hold: the verbs, over an Engine. It may be used by many goroutines at once.
type Store struct {
	engine Engine
	life   context.Context // of what works for it between calls: its leases
	end    context.CancelFunc
}

// New returns the verbs over e.
func New(e Engine) *Store {
	life, end := context.WithCancel(context.Background())
	return &Store{e, life, end}
}

// Engine returns the engine, to put something in front of it.
func (s *Store) Engine() Engine { return s.engine }

// Do passes req to the engine with what is left of ctx, and returns the answer's error.
// It is there for operations that have no verb of their own.
func (s *Store) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if err := ctx.Err(); err != nil {
		return failure(req, err)
	}
	if err := check(req); err != nil {
		return err
	}
	if at, ok := ctx.Deadline(); ok && req.Op.Waits() {
		req.Timeout = min(max(time.Until(at), 1), ages)
	}
	if err := s.engine.Do(ctx, req, rep); err != nil {
		return failure(req, err)
	}
	return answer(req, rep)
}

// ages is for ever, and can be added to a time.
const ages = time.Duration(1 << 62)

// Close closes the engine, and ends the leases that were made here with ErrClosed.
func (s *Store) Close() error {
	defer s.end()
	return s.engine.Close()
}

// SetOptions has defaults for nil: the entry stays until it is deleted.
type SetOptions struct {
	TTL   time.Duration // the entry goes when it has passed, never before; 0 is never
	Reads int           // the entry goes with its last read (Get or Wait); 0 is never
	Lease *Lease        // the entry goes when it ends
}

// Get returns the value of key; ErrNotFound at once if there is none.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpGet, Key: key}, &rep)
	if rep.Code == wire.CodeCounted {
		values, err := s.take(ctx, "get", key)
		if err != nil {
			return nil, err
		}
		return values[0], nil
	}
	return rep.Value, err
}

// take reads entries whose reads are counted: a change, which takes effect once, whatever happens to its answer.
func (s *Store) take(ctx context.Context, op string, keys ...string) ([][]byte, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpTake, Keys: keys}, &rep)
	if e, ok := errors.AsType[*Error](err); ok {
		e.Op = op
	}
	return rep.Values, err
}

// Wait returns the values of all keys, in their order, once all of them exist: one round
// trip. If ctx ends first, its error names the keys that are missing.
func (s *Store) Wait(ctx context.Context, keys ...string) ([][]byte, error) {
	for {
		var rep wire.Reply
		err := s.Do(ctx, &wire.Request{Op: wire.OpWait, Keys: keys}, &rep)
		switch {
		case err == nil:
			return rep.Values, nil
		case rep.Code != wire.CodeCounted:
			return nil, err
		}
		values, err := s.take(ctx, "wait", keys...)
		if !errors.Is(err, ErrNotFound) { // otherwise somebody else was faster
			return values, err
		}
	}
}

// Set gives key a value, and forgets the TTL and the reads that it had.
func (s *Store) Set(ctx context.Context, key string, value []byte, o *SetOptions) error {
	req := wire.Request{Op: wire.OpSet, Key: key, Value: present(value)}
	if o != nil {
		if o.TTL < 0 || o.Reads < 0 || int64(o.Reads) > 1<<32-1 {
			return &Error{Op: "set", Key: key, Code: wire.CodeInvalid, Err: ErrInvalid, Detail: "a TTL or a number of reads is out of range"}
		}
		req.TTL, req.Reads = min(o.TTL, ages), uint32(o.Reads)
		if o.Lease != nil {
			if o.Lease.foreign(s) {
				return &Error{Op: "set", Key: key, Code: wire.CodeDenied, Err: ErrDenied, Detail: "the lease is of another Store: their numbers mean nothing to each other"}
			}
			req.Lease = o.Lease.id
		}
	}
	return s.Do(ctx, &req, new(wire.Reply))
}

// Add adds delta to the counter key, which starts at 0, and returns its new value. Counters
// are decimal text, as PyTorch's TCPStore has them; ErrInvalid if key holds something else. TTL and reads stay.
func (s *Store) Add(ctx context.Context, key string, delta int64) (int64, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpAdd, Key: key, Delta: delta}, &rep)
	return rep.N, err
}

// Swap replaces the value of key by new if it is old, and returns the value that key has
// now. nil is "absent", on both sides: Swap(nil, v) creates, Swap(v, nil) deletes. If
// something else is there, that is returned with ErrConflict.
func (s *Store) Swap(ctx context.Context, key string, old, new []byte) (now []byte, err error) {
	var rep wire.Reply
	err = s.Do(ctx, &wire.Request{Op: wire.OpSwap, Key: key, Old: old, Value: new}, &rep)
	return rep.Value, err
}

// SwapFor is Swap, and gives the entry that it makes a time to live. SwapFor(v, v) gives one that is still the same its time anew.
func (s *Store) SwapFor(ctx context.Context, key string, old, new []byte, ttl time.Duration) (now []byte, err error) {
	var rep wire.Reply
	err = s.Do(ctx, &wire.Request{Op: wire.OpSwap, Key: key, Old: old, Value: new, TTL: ttl}, &rep)
	return rep.Value, err
}

// Append appends to the value of key, which starts empty, and returns its new length. An empty value makes an entry of no bytes if there
// is none. TTL and reads stay.
func (s *Store) Append(ctx context.Context, key string, value []byte) (int, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpAppend, Key: key, Value: present(value)}, &rep)
	return int(rep.N), err
}

// Delete deletes keys and returns how many were there.
func (s *Store) Delete(ctx context.Context, keys ...string) (int, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpDelete, Keys: keys}, &rep)
	return int(rep.N), err
}

// Revision numbers the changes of a store, from 1. Every change of a key has its own.
type Revision uint64

// Revision returns the revision of the store's last change.
func (s *Store) Revision(ctx context.Context) (Revision, error) {
	var rep wire.Reply
	err := s.Do(ctx, &wire.Request{Op: wire.OpPing}, &rep)
	return Revision(rep.Rev), err
}

// Entry is a key and what the store knows of it.
type Entry struct {
	Key   string
	Value []byte
	Rev   Revision      // of its last change
	TTL   time.Duration // what is left of it; 0 is for ever
}

// listPage is how many entries one round trip of List brings.
const listPage = 1000

// List gives the entries whose keys start with prefix, in the order of their keys. What
// changes meanwhile may be seen or not; each entry by itself is true.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		var after []string // the last key seen
		for {
			var rep wire.Reply
			err := s.Do(ctx, &wire.Request{Op: wire.OpList, Key: prefix, Keys: after, Delta: listPage}, &rep)
			if err != nil {
				yield(Entry{}, err)
				return
			}
			for i, k := range rep.Keys {
				e := Entry{k, rep.Values[i], Revision(rep.Nums[2*i]), time.Duration(rep.Nums[2*i+1])}
				if !yield(e, nil) {
					return
				}
			}
			if rep.N == 0 { // nothing left
				return
			}
			after = rep.Keys[len(rep.Keys)-1:]
		}
	}
}

// Keys gives the keys that start with prefix, as List does, without what they hold.
func (s *Store) Keys(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for after := []string(nil); ; {
			var rep wire.Reply
			if err := s.Do(ctx, &wire.Request{Op: wire.OpList, Key: prefix, Keys: after, Delta: -listPage}, &rep); err != nil {
				yield("", err)
				return
			}
			for _, k := range rep.Keys {
				if !yield(k, nil) {
					return
				}
			}
			if rep.N == 0 { // nothing left
				return
			}
			after = rep.Keys[len(rep.Keys)-1:]
		}
	}
}

// Event is a change of an entry.
type Event struct {
	Entry
	Deleted bool // the entry is gone: Value is nil
	Expired bool // and because its time was over, or its reads
}

// Watch gives the changes below prefix after a revision, in their order, each once, until ctx
// ends; that is its last error. After 0 it gives those from now on. If the store has
// forgotten changes that came after the revision, the error is ErrCompacted: list again.
func (s *Store) Watch(ctx context.Context, prefix string, after Revision) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			var rep wire.Reply
			err := s.Do(ctx, &wire.Request{Op: wire.OpWatch, Key: prefix, Rev: uint64(after)}, &rep)
			if err != nil {
				yield(Event{}, err)
				return
			}
			for i, k := range rep.Keys {
				what := wire.Change(rep.Nums[2*i+1])
				e := Event{
					Entry:   Entry{Key: k, Value: rep.Values[i], Rev: Revision(rep.Nums[2*i])},
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

// present is v, but never nil, which would mean "absent".
func present(v []byte) []byte {
	if v == nil {
		return []byte{}
	}
	return v
}
