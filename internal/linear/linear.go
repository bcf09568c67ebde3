// Package linear records what clients of a store do with some keys, and checks that the history of each
// key is linearizable.
package linear

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// History is the calls of clients, and their results. It is safe for concurrent use.
type History struct {
	began time.Time
	last  atomic.Int64 // value that was set

	mu      sync.Mutex // protects the fields below
	calls   []porcupine.Operation
	unknown int
}

// NewHistory returns a history without calls.
func NewHistory() *History { return &History{began: time.Now()} }

// Client makes calls, one after the other.
type Client struct {
	history *History
	store   *store.Store
	chance  *rand.Rand
	seen    map[string]output // what its last get or swap of a key returned
}

// Client returns a client whose calls h records. They depend on chance, and on what they return.
func (h *History) Client(s *store.Store, chance *rand.Rand) *Client {
	return &Client{h, s, chance, map[string]output{}}
}

// input is a call.
type input struct {
	op       wire.Op
	key      string
	old, new string
	absent   bool // the old value of a swap is absent
}

// output is the result of a call.
type output struct {
	unknown bool
	there   bool // there is a value
	value   string
	n       int64
	ok      bool // no conflict, no error
}

// operations are those that clients call.
var operations = []wire.Op{wire.OpGet, wire.OpGet, wire.OpSet, wire.OpAdd, wire.OpAdd, wire.OpSwap, wire.OpAppend, wire.OpDelete}

// Call makes a random call for a key.
func (c *Client) Call(ctx context.Context, key string) {
	c.Do(ctx, operations[c.chance.IntN(len(operations))], key)
}

// Do makes a call of one of the operations of Call.
func (c *Client) Do(ctx context.Context, op wire.Op, key string) {
	h := c.history
	in := input{op: op, key: key}
	in.new = strconv.FormatInt(h.last.Add(1), 10)
	seen := c.seen[key]
	in.old, in.absent = seen.value, !seen.there
	began := time.Since(h.began)
	out, happened := in.call(ctx, c.store)
	if happened {
		h.note(in, out, began)
	}
	if in.op == wire.OpGet || in.op == wire.OpSwap {
		c.seen[key] = out
	}
}

// call makes a call. If happened is false, the call certainly had no effect, and is not part of the
// history.
func (in *input) call(ctx context.Context, s *store.Store) (out output, happened bool) {
	var err error
	var v []byte
	switch in.op {
	case wire.OpGet:
		v, err = s.Get(ctx, in.key)
		out.there = err == nil
	case wire.OpSet:
		err = s.Set(ctx, in.key, []byte(in.new), nil)
	case wire.OpAdd:
		out.n, err = s.Add(ctx, in.key, 1)
	case wire.OpSwap:
		var old []byte
		if !in.absent {
			old = []byte(in.old)
		}
		v, err = s.Swap(ctx, in.key, old, []byte(in.new))
		out.there = v != nil
	case wire.OpAppend:
		var n int
		n, err = s.Append(ctx, in.key, []byte("7"))
		out.n = int64(n)
	case wire.OpDelete:
		var n int
		n, err = s.Delete(ctx, in.key)
		out.n = int64(n)
	}
	out.value, out.ok = string(v), err == nil
	out.unknown = errors.Is(err, store.ErrUnknown)
	said := err == nil || errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrInvalid)
	return out, said || out.unknown
}

func (h *History) note(in input, out output, began time.Duration) {
	ended := int64(time.Since(h.began))
	h.mu.Lock()
	defer h.mu.Unlock()
	if out.unknown {
		h.unknown++
		ended = math.MaxInt64 // the effect may come at any later time, or never
	}
	h.calls = append(h.calls, porcupine.Operation{Input: in, Call: int64(began), Output: out, Return: ended})
}

// Counts returns the number of calls, and of those of them whose outcome is unknown.
func (h *History) Counts() (calls, unknown int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.calls), h.unknown
}

// Check returns descriptions of the histories that are not linearizable, or that are too hard to check.
func (h *History) Check() (bad []string) {
	byKey := map[string][]porcupine.Operation{}
	for _, op := range h.calls {
		key := op.Input.(input).key
		byKey[key] = append(byKey[key], op)
	}
	for key, ops := range byKey {
		switch porcupine.CheckOperationsTimeout(model, ops, 20*time.Second) {
		case porcupine.Illegal:
			bad = append(bad, fmt.Sprintf("the history of %s is not linearizable (%d calls):\n%s", key, len(ops), textOf(ops)))
		case porcupine.Unknown:
			bad = append(bad, fmt.Sprintf("the history of %s is too hard to check (%d calls)", key, len(ops)))
		}
	}
	return bad
}

func textOf(ops []porcupine.Operation) (text string) {
	for i, op := range ops {
		if i == 400 {
			return text + "…"
		}
		text += fmt.Sprintf("%v … %v: %s\n", time.Duration(op.Call), time.Duration(op.Return), model.DescribeOperation(op.Input, op.Output))
	}
	return text
}

// state is the state of an entry.
type state struct {
	there bool
	value string
}

var model = porcupine.Model{
	Init: func() any { return state{} },
	Step: func(before, in, result any) (bool, any) {
		out := result.(output)
		next, said := before.(state).step(in.(input))
		return out.unknown || said == out, next
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v gave %+v", in, out) },
}

// step is the sequential model of a store.
func (s state) step(in input) (next state, out output) {
	out.ok = true
	switch in.op {
	case wire.OpGet:
		out.there, out.value, out.ok = s.there, s.value, s.there
	case wire.OpSet:
		s = state{true, in.new}
	case wire.OpAdd:
		n, err := strconv.ParseInt(s.value, 10, 64)
		if s.there && (err != nil || n == math.MaxInt64) {
			out.ok = false
			break
		}
		s.there, s.value, out.n = true, strconv.FormatInt(n+1, 10), n+1
	case wire.OpSwap:
		if s.there == in.absent || s.there && s.value != in.old {
			out.ok = false
		} else {
			s = state{true, in.new}
		}
		out.there, out.value = s.there, s.value
	case wire.OpAppend:
		s.there, s.value = true, s.value+"7"
		out.n = int64(len(s.value))
	case wire.OpDelete:
		if s.there {
			out.n = 1
		}
		s = state{}
	}
	return s, out
}
