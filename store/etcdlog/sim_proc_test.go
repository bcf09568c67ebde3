package etcdlog_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/wire"
)

// proc is a process of the store, and a memTransport. While it is stopped, it neither sends nor
// receives.
type proc struct {
	w      *world
	id     int
	chance *chance
	odds   odds
	etcd   *clientv3.Client
	runs   gate            // closed by SIGSTOP
	reach  gate            // closed while etcd is unreachable
	calm   atomic.Bool     // its requests take no time, and all are answered
	life   context.Context // until kill
	die    context.CancelFunc
	ctx    context.Context // until end, or kill
	cancel context.CancelFunc
	ended  chan struct{}

	mu    sync.Mutex // protects the fields below
	store *store.Memory
	conns map[uint64]*conn // by session; frames of other connections are not read
}

// odds are the probabilities of faults between a process and etcd.
type odds struct{ slow, lost, unanswered, late float64 }

var _ memTransport = (*proc)(nil)

func newProc(w *world, id, seed int) *proc {
	p := &proc{w: w, id: id, chance: newChance(seed, id), ended: make(chan struct{}), conns: map[uint64]*conn{}}
	if p.chance.is(0.7) {
		p.odds = odds{slow: 0.02, lost: 0.002, unanswered: 0.01, late: 0.005}
	}
	if w.busy {
		p.odds.slow = 0.2
	}
	p.life, p.die = context.WithCancel(context.Background())
	p.ctx, p.cancel = context.WithCancel(p.life)
	p.etcd = w.etcd.Client(p)
	w.running.Go(func() {
		defer close(p.ended)
		p.run()
	})
	return p
}

// run follows and leads, as etcdlog.Replica does.
func (p *proc) run() {
	o := simOptions
	for {
		l, err := etcdlog.Lead(p.ctx, p.etcd, fmt.Sprint("proc-", p.id, ":1"), &o)
		if err != nil {
			if p.ctx.Err() == nil && !errors.Is(err, errCutOff) {
				p.w.audit.breaks("H2 a process follows or leads until it ends", "process %d: %v", p.id, err)
			}
			return
		}
		m := &store.Memory{Replica: folding{l, 1}, ReconnectTimeout: 20 * time.Second}
		if err := m.Open(); err == nil {
			p.w.audit.count("terms")
			p.serve(m)
		}
		_, _ = m.Close(), l.Close()
		if p.ctx.Err() != nil {
			return
		}
	}
}

// serve accepts connections while m is the store of this process, and makes calls of its own.
func (p *proc) serve(m *store.Memory) {
	p.mu.Lock()
	p.store = m
	p.mu.Unlock()
	term, cancel := context.WithCancel(p.ctx)
	var own sync.WaitGroup
	own.Go(func() { p.own(term, m) })
	select {
	case <-m.Failed():
	case <-p.ctx.Done():
	}
	cancel()
	p.mu.Lock()
	p.store = nil
	p.mu.Unlock()
	p.hangUp()
	own.Wait()
}

// own counts in calls of the process itself, which have no sequence numbers: a batch that is applied
// twice would be visible.
func (p *proc) own(ctx context.Context, m *store.Memory) {
	calls := p.w.history.Client(store.New(ownCalls{m, p}), p.chance.Rand)
	for ctx.Err() == nil && p.w.sleep(p.w.rest(p.chance)) && p.awake() {
		calls.Do(ctx, wire.OpAdd, ownKey)
	}
}

// ownCalls is the store of p for calls of its own. A call whose process has ended, or leads no more, may
// have taken effect.
type ownCalls struct {
	*store.Memory
	p *proc
}

// Do implements store.Engine.
func (o ownCalls) Do(ctx context.Context, req *wire.Request, rep *wire.Reply) error {
	if err := o.Memory.Do(ctx, req, rep); err != nil || !o.p.awake() {
		return store.ErrUnknown
	}
	o.p.w.audit.count("own")
	return nil
}

// serving returns the store that p serves, or nil.
func (p *proc) serving() *store.Memory {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.store
}

// awake waits while p is stopped, and reports whether p is alive.
func (p *proc) awake() bool {
	waited, ok := p.runs.pass(p.life.Done())
	if ok && waited { // pending work continues in any order
		p.w.sleep(p.chance.between(0, time.Millisecond))
	}
	return ok && p.life.Err() == nil
}

// kill is SIGKILL.
func (p *proc) kill() {
	if p == nil {
		return
	}
	p.die()
	p.hangUp()
}

// end is SIGTERM.
func (p *proc) end() {
	p.runs.open()
	p.cancel()
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second): // as systemd's stop timeout
	}
	p.kill()
}

// hangUp breaks all connections.
func (p *proc) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.breaks()
	}
}

// Call implements memTransport.
func (p *proc) Call(ctx context.Context, do func()) error {
	if !p.awake() {
		return errCutOff
	}
	if p.calm.Load() {
		do()
		return nil
	}
	odds := p.odds
	if p.w.healed.Load() {
		odds.lost, odds.unanswered, odds.late = 0, 0, 0
	}
	there, back := p.delay(), p.delay()
	unanswered := p.chance.is(odds.unanswered)
	if p.chance.is(odds.late) { // an etcd member that is stopped has the request
		there = p.chance.between(time.Second, 10*time.Second)
	}
	answered := make(chan struct{})
	if !p.chance.is(odds.lost) {
		p.w.running.Go(func() {
			if _, ok := p.reach.pass(p.w.over.Done()); !ok || !p.w.sleep(there) {
				return
			}
			if _, ok := p.w.quorum.pass(p.w.over.Done()); !ok {
				return
			}
			do()
			if _, ok := p.reach.pass(p.w.over.Done()); ok && !unanswered && p.w.sleep(back) {
				close(answered)
			}
		})
	}
	var err error
	select {
	case <-answered:
	case <-ctx.Done():
		err = ctx.Err()
	case <-p.life.Done():
	}
	if !p.awake() {
		return errCutOff
	}
	select {
	case <-answered: // the answer came while the process was stopped
		if err != nil && p.chance.is(0.5) {
			err = nil
		}
	default:
	}
	return err
}

func (p *proc) delay() time.Duration {
	if p.chance.is(p.odds.slow) {
		return p.chance.between(0, 500*time.Millisecond)
	}
	return p.chance.between(50*time.Microsecond, 2*time.Millisecond)
}

// Deliver implements memTransport.
func (p *proc) Deliver(ctx context.Context) error {
	if _, ok := p.reach.pass(ctx.Done()); !ok {
		return ctx.Err()
	}
	if !p.calm.Load() && !p.w.sleep(p.delay()) || !p.awake() {
		return errCutOff
	}
	return ctx.Err()
}

// conn is a client's connection to a process.
type conn struct {
	p       *proc
	m       *store.Memory
	session uint64
	broken  context.Context // until breaks
	breaks  context.CancelFunc
}

// comes receives a request over c. There is no answer if c is no longer the connection of its
// session.
func (c *conn) comes(req wire.Request, answers chan<- *wire.Reply) {
	w, p := c.p.w, c.p
	if !w.sleep(p.chance.between(20*time.Microsecond, time.Millisecond)) || !p.awake() {
		return
	}
	p.mu.Lock()
	current := p.conns[c.session] == c && p.store == c.m
	p.mu.Unlock()
	if !current {
		return
	}
	rep := new(wire.Reply)
	req.Session = c.session
	if err := c.m.Do(context.Background(), &req, rep); err != nil {
		return
	}
	if w.sleep(p.chance.between(20*time.Microsecond, time.Millisecond)) && p.awake() {
		answers <- rep
	}
}

// opens receives a hello over a connection. It closes the session's other connection.
func (p *proc) opens(hello wire.Request, opened chan<- *conn, welcome *wire.Reply) {
	if !p.w.sleep(p.chance.between(20*time.Microsecond, time.Millisecond)) || !p.awake() {
		return
	}
	p.mu.Lock()
	c := &conn{p: p, m: p.store, session: hello.Resume}
	c.broken, c.breaks = context.WithCancel(p.w.over)
	if c.m != nil && c.session != 0 {
		// Without this, its client would wait for answers until the session is lost.
		if before := p.conns[c.session]; before != nil {
			before.breaks()
		}
		p.conns[c.session] = c
	}
	p.mu.Unlock()
	if c.m == nil || c.m.Do(context.Background(), &hello, welcome) != nil {
		opened <- nil // a standby closes the connection
		return
	}
	if c.session = uint64(welcome.N); c.session != hello.Resume {
		p.mu.Lock()
		p.conns[c.session] = c
		p.mu.Unlock()
	}
	if p.w.sleep(p.chance.between(20*time.Microsecond, time.Millisecond)) && p.awake() {
		opened <- c
	}
}

// closed is called when the process detects the end of the connection. The session may be resumed.
func (c *conn) closed() {
	c.breaks()
	p := c.p
	if !p.w.sleep(p.chance.between(20*time.Microsecond, 10*time.Millisecond)) || !p.awake() {
		return
	}
	p.mu.Lock()
	current := p.conns[c.session] == c && p.store == c.m
	if current {
		delete(p.conns, c.session)
	}
	p.mu.Unlock()
	if current {
		_ = c.m.Do(context.Background(), &wire.Request{Op: wire.OpLost, Session: c.session, TTL: 10 * time.Second}, new(wire.Reply))
	}
}
