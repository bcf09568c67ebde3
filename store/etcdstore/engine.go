package etcdstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Engine is a store.Engine over etcd. It is one session: what it holds in groups and by leases is lost with it.
type Engine struct {
	o       Options
	members *members
	root    keys
	life    context.Context // until Close
	end     context.CancelCauseFunc
	turn    chan struct{} // has one while a session is being opened
	count   atomic.Uint64 // numbers changes

	running sync.WaitGroup // calls, and what they left behind
	counted tally          // for Status

	mu      sync.Mutex // protects the fields below
	closed  bool
	session *session // nil before the first call that needs one, and after it was lost
	groups  map[uint64]*group
	locks   map[string]*keyLock
	givenUp map[chan struct{}]struct{} // changes whose callers have gone, and whose outcome is not known yet
}

// Dial connects to the members of an etcd cluster, each a host:port. It waits for one that answers until ctx ends, or
// Options.Mend has passed.
func Dial(ctx context.Context, endpoints []string, o *Options) (*Engine, error) {
	e := &Engine{
		o: o.withDefaults(), turn: make(chan struct{}, 1), groups: map[uint64]*group{}, locks: map[string]*keyLock{},
		givenUp: map[chan struct{}]struct{}{},
	}
	e.root = keys(e.o.Root)
	if len(endpoints) == 0 {
		return nil, &store.Error{Op: "dial", Code: wire.CodeInvalid, Err: store.ErrInvalid, Detail: "no endpoints: each is a host:port"}
	}
	e.life, e.end = context.WithCancelCause(context.Background())
	e.members = newMembers(e.life, endpoints, &e.o)
	if why, err := e.reach(ctx); err != nil {
		e.end(store.ErrClosed)
		e.members.close()
		return nil, dialError(strings.Join(endpoints, ","), err, why)
	}
	return e, nil
}

// reach asks until a member answers. why is what stood against that last: that the time is over says little.
func (e *Engine) reach(ctx context.Context) (why, err error) {
	mark := ranged(e.root.mark(), nil)
	err = e.again(ctx, func(ctx context.Context, t *term) error {
		_, err := t.kv.Range(ctx, mark)
		if err != nil && ctx.Err() == nil {
			why = err
		}
		return clientv3.ContextError(ctx, err)
	})
	return why, err
}

func dialError(addr string, err, why error) error {
	var rep wire.Reply
	if err = answered(err, &rep); err == nil {
		return &store.Error{Op: "dial", Key: addr, Code: rep.Code, Err: store.CodeError(rep.Code), Detail: rep.Detail}
	}
	own := store.Error{Code: wire.CodeUnavailable, Err: err}
	switch e, ok := errors.AsType[*store.Error](err); {
	case ok:
		own = *e
	case errors.Is(err, context.DeadlineExceeded):
		own.Code = wire.CodeTimeout
	case errors.Is(err, context.Canceled):
		own.Code = wire.CodeCancelled
	}
	own.Op, own.Key = "dial", addr
	if why != nil && own.Detail == "" {
		own.Detail = "etcd: " + dialed(why)
	}
	return &own
}

// dialed is what stood against a connection, without what gRPC puts around it.
func dialed(why error) string {
	s := text(why)
	if _, inner, ok := strings.Cut(s, "desc = \""); ok {
		s = strings.TrimSuffix(inner, "\"")
	}
	return s
}

// operations are those that the engine has.
var operations = [256]func(e *Engine, ctx context.Context, req *wire.Request, rep *wire.Reply) error{
	wire.OpPing:    (*Engine).ping,
	wire.OpGet:     (*Engine).getEntry,
	wire.OpSet:     (*Engine).set,
	wire.OpWait:    (*Engine).wait,
	wire.OpAdd:     (*Engine).add,
	wire.OpSwap:    (*Engine).swap,
	wire.OpAppend:  (*Engine).append,
	wire.OpDelete:  (*Engine).delete,
	wire.OpTake:    (*Engine).take,
	wire.OpPush:    (*Engine).push,
	wire.OpPop:     (*Engine).pop,
	wire.OpList:    (*Engine).list,
	wire.OpChanges: (*Engine).changes,
	wire.OpGrant:   (*Engine).grant,
	wire.OpKeep:    (*Engine).keep,
	wire.OpRevoke:  (*Engine).revoke,
	wire.OpStatus:  (*Engine).status,
	wire.OpJoin:    (*Engine).join,
	wire.OpLeave:   onSeat((*seat).leaveGroup),
	wire.OpFollow:  onSeat((*seat).followGroup),
	wire.OpCollect: onSeat((*seat).collectVotes),
	wire.OpSend:    onSeat((*seat).sendMessage),
	wire.OpRoom:    onSeat((*seat).awaitRoom),
	wire.OpRecv:    onSeat((*seat).recvMessage),
	wire.OpExpire:  onSeat((*seat).countExpired),
}

// Do implements store.Engine.
func (e *Engine) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	*rep = wire.Reply{}
	if !e.begin() {
		return store.ErrClosed
	}
	defer e.running.Done()
	do := operations[req.Op]
	if do == nil {
		return refuse(rep, wire.CodeUnsupported, "an engine over etcd has no %s", req.Op)
	}
	if req.TTL < 0 {
		return refuse(rep, wire.CodeInvalid, "negative TTL")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.life, func() { cancel(store.ErrClosed) })()
	err := answered(do(e, ctx, req, rep), rep)
	if err != nil && e.life.Err() != nil {
		return store.ErrClosed
	}
	return err
}

// begin counts a call or a goroutine, unless the engine is closed.
func (e *Engine) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.running.Add(1)
	return true
}

// run runs f beside its caller. It has to end with the engine's life.
func (e *Engine) run(f func()) {
	if e.begin() {
		go func() {
			defer e.running.Done()
			f()
		}()
	}
}

// goodbye is how long Close has to tell etcd.
const goodbye = 2 * time.Second

// Close implements store.Engine: its ranks have left, its leases have ended.
func (e *Engine) Close() error {
	if s := e.stop(); s != nil {
		ctx, cancel := context.WithTimeout(context.Background(), goodbye)
		defer cancel()
		s.goodbye(ctx)
	}
	e.members.close()
	return nil
}

// stop ends all calls, and returns the session, which etcd still has.
func (e *Engine) stop() *session {
	e.mu.Lock()
	e.closed = true
	s := e.session
	e.session = nil
	e.mu.Unlock()
	e.end(store.ErrClosed)
	e.running.Wait()
	return s
}

// rest waits.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// jitter is something between half of d and one and a half of it, so that those who began together do not go on so.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d+1) }

var _ store.Engine = (*Engine)(nil)
