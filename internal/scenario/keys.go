package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// keyVerbs are the verbs of keys, and of sessions. The comments have their arguments behind the
// session.
var keyVerbs = map[string]verb{
	"get":      {do: get},                // KEY
	"set":      {do: set},                // KEY VALUE [ttl=] [lease=NAME]
	"add":      {do: add},                // KEY NUMBER [ttl=]
	"append":   {do: appendTo},           // KEY VALUE [ttl=]
	"swap":     {do: swap},               // KEY [old=] [new=] [ttl=]
	"delete":   {do: remove},             // KEY…
	"list":     {do: listBelow},          // [PREFIX]
	"keys":     {do: keys},               // [PREFIX]
	"wait":     {do: wait, waits: true},  // KEY…
	"watch":    {do: watch, waits: true}, // [PREFIX] [after=NAME]
	"revision": {do: revision},           // NAME: keeps the revision of the last change under a name
	"push":     {do: push},               // QUEUE VALUE
	"pop":      {do: pop, waits: true},   // QUEUE
	"len":      {do: length},             // QUEUE

	"lease":     {do: grant},     // NAME ttl=: a lease that its process keeps alive
	"grant":     {do: grant},     // NAME ttl=: a lease that only keepalive keeps alive
	"keepalive": {do: keepAlive}, // NAME
	"revoke":    {do: revoke},    // NAME

	"close":   {do: closeSession},                                  // the session says goodbye
	"crash":   {do: crash},                                         // its process ends
	"break":   {do: happens(breakLinks)},                           // its connection ends, and it reconnects
	"cut":     {do: happens(func(on *Session) { on.Links.Cut() })}, // its connection ends, and cannot be made again until mend
	"mend":    {do: happens(func(on *Session) { on.Links.Mend() })},
	"stop":    {do: happens(func(on *Session) { on.Stop() })},    // the store ends, or the session's relay
	"restart": {do: happens(func(on *Session) { on.Restart() })}, // and starts again
	"backup":  {do: backup},                                      // keeps a copy of the store
	"restore": {do: happens(func(on *Session) { on.Restore() })}, // the store starts as its last backup
	"cancel":  {do: cancelCalls},                                 // [VERB]: the contexts of its calls that wait, or of those of a verb
}

// do carries out a request for which Store has no method with all of its fields.
func (k *call) do(ctx context.Context, req wire.Request) (rep wire.Reply, err error) {
	if l, ok := k.option("lease"); ok {
		req.Lease = k.w.lease(l).id
	}
	req.TTL = k.duration("ttl")
	req.Number, req.Acked = uint64(k.number("number", 0)), uint64(k.number("acked", 0))
	err = k.s.Do(ctx, &req, &rep)
	return rep, err
}

func get(ctx context.Context, k *call) string {
	v, err := k.s.Get(ctx, k.word(0))
	return outcome(quoted(string(v)), err)
}

func set(ctx context.Context, k *call) string {
	_, err := k.do(ctx, wire.Request{Op: wire.OpSet, Key: k.word(0), Value: []byte(k.word(1))})
	if name, ok := k.option("lease"); ok {
		return named(name, k.w.lease(name), err)
	}
	return outcome("ok", err)
}

func add(ctx context.Context, k *call) string {
	rep, err := k.do(ctx, wire.Request{Op: wire.OpAdd, Key: k.word(0), Add: int64(k.parseInt(k.word(1)))})
	return outcome(strconv.FormatInt(rep.N, 10), err)
}

func appendTo(ctx context.Context, k *call) string {
	rep, err := k.do(ctx, wire.Request{Op: wire.OpAppend, Key: k.word(0), Value: []byte(k.word(1))})
	return outcome(fmt.Sprintf("%d bytes", rep.N), err)
}

func swap(ctx context.Context, k *call) string {
	rep, err := k.do(ctx, wire.Request{Op: wire.OpSwap, Key: k.word(0), Expect: k.bytes("old"), Value: k.bytes("new")})
	now := "absent"
	if rep.Value != nil {
		now = quoted(string(rep.Value))
	}
	switch {
	case errors.Is(err, store.ErrConflict):
		return fmt.Sprintf("%v (now %s)", err, now)
	case err != nil:
		return err.Error()
	}
	return "now " + now
}

func remove(ctx context.Context, k *call) string {
	n, err := k.s.Delete(ctx, k.words()...)
	return outcome(fmt.Sprintf("%d deleted", n), err)
}

func listBelow(ctx context.Context, k *call) string {
	var entries []string
	for e, err := range k.s.List(ctx, k.word(0)) {
		if err != nil {
			return err.Error()
		}
		line := quoted(e.Key) + " = " + quoted(string(e.Value))
		if e.TTL > 0 {
			line += fmt.Sprintf(" (%v left)", e.TTL)
		}
		entries = append(entries, line)
	}
	if len(entries) == 0 {
		return "nothing"
	}
	return strings.Join(entries, ", ")
}

func keys(ctx context.Context, k *call) string {
	var keys []string
	for key, err := range k.s.Keys(ctx, k.word(0)) {
		if err != nil {
			return err.Error()
		}
		keys = append(keys, key)
	}
	return list(keys)
}

func wait(ctx context.Context, k *call) string {
	values, err := k.s.Wait(ctx, k.words()...)
	return outcome(list(values), err)
}

func watch(ctx context.Context, k *call) string {
	after, given := k.option("after")
	k.w.mu.Lock()
	rev, known := k.w.revisions[after]
	k.w.mu.Unlock()
	if given && !known {
		rev = store.Revision(k.parseInt(after))
	}
	for e, err := range k.s.Watch(ctx, k.word(0), rev) {
		switch {
		case err != nil:
			return err.Error()
		case e.Expired:
			k.say(quoted(e.Key)+" expired", waits)
		case e.Deleted:
			k.say(quoted(e.Key)+" deleted", waits)
		default:
			k.say(quoted(e.Key)+" = "+quoted(string(e.Value)), waits)
		}
	}
	return ""
}

func revision(ctx context.Context, k *call) string {
	rev, err := k.s.Revision(ctx)
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	k.w.revisions[k.word(0)] = rev
	return outcome("ok", err)
}

func push(ctx context.Context, k *call) string {
	return outcome("ok", k.s.Push(ctx, k.word(0), []byte(k.word(1))))
}

func pop(ctx context.Context, k *call) string {
	v, err := k.s.Pop(ctx, k.word(0))
	return outcome(quoted(string(v)), err)
}

func length(ctx context.Context, k *call) string {
	n, err := k.s.QueueLen(ctx, k.word(0))
	return outcome(strconv.Itoa(n), err)
}

// lease is a lease of a session.
type lease struct {
	id   uint64
	held *store.Lease // nil: nobody keeps it alive
}

func (w *world) lease(name string) *lease {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.leases[name]; l != nil {
		return l
	}
	return &lease{id: 1 << 60}
}

func (w *world) keep(name string, l *lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leases[name] = l
}

// named returns the output of a call on the lease with a name, which stands for its id.
func named(name string, l *lease, err error) string {
	id := strconv.FormatUint(l.id, 10)
	return strings.NewReplacer(strconv.Quote(id), strconv.Quote(name), "lease "+id+" ", "lease "+name+" ").Replace(outcome("ok", err))
}

func grant(ctx context.Context, k *call) string {
	if k.verb == "grant" {
		rep, err := k.do(ctx, wire.Request{Op: wire.OpGrant})
		k.w.keep(k.word(0), &lease{id: uint64(rep.N)})
		return outcome("ok", err)
	}
	l, err := k.s.Lease(ctx, k.duration("ttl"))
	if err != nil {
		return err.Error()
	}
	own := &lease{id: l.ID(), held: l}
	k.w.keep(k.word(0), own)
	k.say("ok", serves)
	select {
	case <-l.Done():
		return fmt.Sprintf("lease %s has ended: %s", k.word(0), named(k.word(0), own, l.Err()))
	case <-ctx.Done():
		return ""
	}
}

func keepAlive(ctx context.Context, k *call) string {
	l := k.w.lease(k.word(0))
	_, err := k.do(ctx, wire.Request{Op: wire.OpKeepAlive, Lease: l.id})
	return named(k.word(0), l, err)
}

func revoke(ctx context.Context, k *call) string {
	l := k.w.lease(k.word(0))
	if l.held != nil {
		return named(k.word(0), l, l.held.Close(ctx))
	}
	_, err := k.do(ctx, wire.Request{Op: wire.OpRevoke, Lease: l.id})
	return named(k.word(0), l, err)
}

func closeSession(_ context.Context, k *call) string { return outcome("ok", k.s.Close()) }

func crash(_ context.Context, k *call) string {
	k.w.mu.Lock()
	k.s.crashed = true
	k.w.mu.Unlock()
	k.s.on.Links.Cut()
	return ""
}

func breakLinks(on *Session) {
	on.Links.Cut()
	on.Links.Mend()
}

// backup writes the copy in which restore begins.
func backup(ctx context.Context, k *call) string {
	var b bytes.Buffer
	_, err := k.s.Backup(ctx, &b)
	if err == nil {
		err = os.WriteFile(k.s.on.Backup, b.Bytes(), 0o600)
	}
	return outcome("ok", err)
}

// happens returns the verb of what happens to a session or its store, without output.
func happens(what func(on *Session)) func(context.Context, *call) string {
	return func(_ context.Context, k *call) string {
		what(&k.s.on)
		return ""
	}
}

// cancelCalls cancels calls, and waits until they have returned.
func cancelCalls(_ context.Context, k *call) string {
	k.w.mu.Lock()
	calls := slices.Clone(k.s.calls)
	k.w.mu.Unlock()
	for _, c := range calls {
		if c.does.waits && (k.word(0) == "" || c.verb == k.word(0)) {
			c.cancel()
			<-c.returned
		}
	}
	return ""
}
