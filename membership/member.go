package membership

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/store"
)

// Member is the registration of this worker. It owns three goroutines, which Close and Leave end: one
// follows the roster in the store, one decides views while this worker is the leader, and one waits for
// the end of the lease. The lease renews itself. A Member is safe for concurrent use.
type Member struct {
	cfg   Config // with defaults
	store *store.Store
	keys  keys
	lease *store.Lease
	self  registration // its rev is 0; the roster has it with its revision

	life  context.Context // ends when the member ends
	stop  context.CancelFunc
	tasks sync.WaitGroup
	kick  chan struct{} // holds a token if the roster has changed
	bye   sync.Once     // the lease is closed once

	mu      sync.Mutex    // protects the fields below; never held during I/O
	roster  *roster       // as brought by the watch
	current *viewState    // the newest view, or nil
	given   *viewState    // the view that Next returned last
	found   *viewState    // the view that was there when this worker registered, for the change that follows it; may be nil
	changes []Change      // the newest that this worker has seen: should it decide views, it writes them to the history
	over    error         // ErrEvicted or ErrClosed, with the reason, when the member has ended
	changed chan struct{} // closed and replaced when a field above changes

	unreachable, undecided error // why the store cannot be reached, and why the last attempt to decide a view failed
}

// Join registers this worker in the job on the store s, which the caller keeps open until the Member is
// closed. It does not wait for other workers; Next does. The error matches ErrDuplicate if a live worker
// has the same ID. That may be an earlier process of this worker whose lease has not expired: try again
// for Config.TTL. It matches ErrFinished if the work of Config.Launch is done.
func Join(ctx context.Context, s *store.Store, c Config) (*Member, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Member{cfg: c, store: s, keys: keysOf(c.Job), kick: make(chan struct{}, 1), changed: make(chan struct{})}
	m.life, m.stop = context.WithCancel(context.Background())
	m.self = registration{Worker: Worker{c.ID, c.Addr}, Min: c.Min, Max: c.Max, Settings: c.Settings, key: m.keys.workers + rand.Text()}
	if m.lease, err = s.Lease(ctx, c.TTL); err == nil {
		err = m.register(ctx)
	}
	if err != nil {
		m.stop()
		m.closeLease(ctx)
		return nil, m.fail("join", err)
	}
	m.tasks.Go(m.follow)
	m.tasks.Go(m.lead)
	m.tasks.Go(m.guard)
	return m, nil
}

// register creates the worker's entry, and checks it against those before it: the store's revisions
// give the order.
func (m *Member) register(ctx context.Context) error {
	late := fmt.Errorf("%w: its lease of %v ended while it registered", ErrEvicted, m.cfg.TTL)
	err := m.store.Set(ctx, m.self.key, encode(&m.self), &store.SetOptions{Lease: m.lease})
	switch {
	case errors.Is(err, store.ErrNotFound): // the lease
		return late
	case err != nil:
		return err
	}
	r, err := readRoster(ctx, m.store, &m.keys)
	if err != nil {
		return err
	}
	self := r.workers[m.self.key]
	if self == nil {
		return late
	}
	if err := r.refuses(self); err != nil {
		return err
	}
	if m.cfg.Launch != "" { // even if there is a view: those that are in it are about to leave
		if done, err := finished(ctx, m.store, &m.keys, m.cfg.Launch); done || err != nil {
			return cmp.Or(err, fmt.Errorf("%w before this worker started", ErrFinished))
		}
	}
	m.roster = r
	if r.view != nil {
		m.found = m.newViewState(r.view)
		m.found.without(r)
	}
	return nil
}

// follow keeps the roster up to date until the member ends. While the store cannot be reached, the roster
// does not change; the lease decides whether that takes too long.
func (m *Member) follow() {
	const firstPause, mostPause = 10 * time.Millisecond, time.Second
	for pause := firstPause; m.life.Err() == nil; {
		begun := time.Now()
		switch err := m.watch(); {
		case errors.Is(err, store.ErrClosed), errors.Is(err, store.ErrDenied): // permanent
			m.evict(err)
		case errors.Is(err, store.ErrCompacted), time.Since(begun) > mostPause:
			pause = firstPause
		default:
			m.note(&m.unreachable, err)
			pause = min(2*pause, mostPause)
		}
		m.sleep(pause)
	}
}

// watch reads the roster and applies its changes until it fails.
func (m *Member) watch() error {
	after, err := m.store.Revision(m.life)
	if err != nil {
		return err
	}
	r, err := readRoster(m.life, m.store, &m.keys)
	if err != nil {
		return err
	}
	m.load(r)
	m.note(&m.unreachable, nil)
	for e, err := range m.store.Watch(m.life, m.keys.roster, after) {
		if err == nil {
			err = m.apply(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// load replaces the roster. It ignores a view that was read while this worker was not registered.
func (m *Member) load(r *roster) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.workers[m.self.key] == nil {
		m.finish(fmt.Errorf("%w: its registration has been deleted", ErrEvicted))
		return
	}
	m.roster = r
	if m.current != nil {
		m.current.without(r)
	}
	m.adopt(r.view)
	m.notify()
}

// apply applies one change. Changes come in order: a worker sees its own eviction before any view that was
// created after it, also one that it created itself.
func (m *Member) apply(e store.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	switch worker := strings.HasPrefix(e.Key, m.keys.workers); {
	case m.over != nil:
	case worker && e.Deleted && e.Key == m.self.key && !e.Expired:
		m.finish(fmt.Errorf("%w: %w: another worker has deleted its registration", ErrExcluded, ErrEvicted))
	case worker && e.Deleted && e.Key == m.self.key:
		m.finish(fmt.Errorf("%w: its registration has been deleted", ErrEvicted))
	case worker && e.Deleted:
		delete(m.roster.workers, e.Key)
		if m.current != nil {
			m.current.remove(e.Key, !e.Expired && !m.roster.lost[e.Key])
		}
	case e.Deleted && e.Key == m.keys.view:
		m.roster.view = nil
	case e.Deleted:
		delete(m.roster.lost, m.keys.workers+strings.TrimPrefix(e.Key, m.keys.lost))
	default:
		if err = m.roster.add(e.Entry, &m.keys); err == nil && !worker {
			m.adopt(m.roster.view)
		}
	}
	m.notify()
	return err
}

// adopt makes v the current view if it is newer; it may be the same, renewed. The caller holds mu.
func (m *Member) adopt(v *record) {
	if v == nil || m.current != nil && v.Generation <= m.current.Generation {
		return
	}
	made := m.seen(v)
	if m.current != nil {
		m.current.replaced(v)
	}
	m.current = m.newViewState(v)
	m.current.made = made
	m.current.without(m.roster)
}

// notify wakes the calls that wait for a change. The caller holds mu.
func (m *Member) notify() {
	close(m.changed)
	m.changed = make(chan struct{})
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// finish ends the member for the reason why. Only the first call has an effect. The caller holds mu.
func (m *Member) finish(why error) {
	if m.over != nil {
		return
	}
	m.over = why
	if m.current != nil {
		end := m.current.ended()
		end.Err = why
		m.current.end(end)
	}
	m.stop()
	m.notify()
}

// guard ends the member with its lease, even while the store cannot be reached.
func (m *Member) guard() {
	select {
	case <-m.life.Done():
	case <-m.lease.Done():
		m.evict(m.lease.Err())
	}
}

// evict ends the member as evicted, because the store may have deleted its registration.
func (m *Member) evict(why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.finish(fmt.Errorf("%w: %w", ErrEvicted, why))
}

// note records in field, for the errors of Next, why there is no progress.
func (m *Member) note(field *error, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*field = err
}

// sleep waits for d, or until the member ends.
func (m *Member) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-m.life.Done():
	}
}

// Next waits for a view that is newer than the one it returned last and has this worker, and skips views
// that have ended already. If ctx ends first, the error says what Next was waiting for.
func (m *Member) Next(ctx context.Context) (View, error) {
	for {
		m.mu.Lock()
		e, over, changed := m.current, m.over, m.changed
		if over == nil && ctx.Err() == nil && e != nil && e != m.given && e.rank >= 0 && e.ctx.Err() == nil {
			m.given = e
			m.mu.Unlock()
			return m.view(e), nil
		}
		m.mu.Unlock()
		if over != nil {
			return View{}, m.fail("next", over)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return View{}, m.overdue(ctx)
		}
	}
}

// overdue returns the error of Next when ctx has ended.
func (m *Member) overdue(ctx context.Context) error {
	err := context.Cause(ctx)
	if !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	e := m.fail("next", err)
	m.mu.Lock()
	defer m.mu.Unlock()
	live := m.roster.inOrder(&m.self)
	switch {
	case m.unreachable != nil:
		e.Detail = m.unreachable.Error()
	case m.undecided != nil:
		e.Detail = m.undecided.Error()
	case len(live) < m.cfg.Min:
		e.Detail = fmt.Sprintf("%d of %d workers are registered: %v", len(live), m.cfg.Min, names(live))
	case m.current != nil && m.current.rank < 0 && m.current.ctx.Err() == nil:
		e.Detail = fmt.Sprintf("this worker is a standby: view %d has its %d workers", m.current.Generation, len(m.current.Slots))
	case m.current != nil && m.current.ctx.Err() == nil:
		e.Detail = fmt.Sprintf("view %d has not ended", m.current.Generation)
	}
	return e
}

// names returns the first 16 workers of rs as text.
func names(rs []*registration) string {
	const most = 16
	var b strings.Builder
	for i, r := range rs[:min(len(rs), most)] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(r.String())
	}
	if n := len(rs) - most; n > 0 {
		fmt.Fprintf(&b, " and %d more", n)
	}
	return b.String()
}

// fail returns err as an Error of op.
func (m *Member) fail(op string, err error) *Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &Error{Op: op, Job: m.cfg.Job, ID: m.cfg.ID, Rank: -1, Err: err}
	if m.given != nil {
		e.Rank = m.given.rank
	}
	return e
}

// why returns the reason for which the member has ended, or nil.
func (m *Member) why() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.over
}

// Close ends the registration of this worker. The others see it as failed. Close waits for the Member's
// goroutines, and about a second for the store; without its reply the registration expires after
// Config.TTL. It may be called more than once, and after Leave.
func (m *Member) Close() error {
	m.quit()
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	m.closeLease(ctx)
	return nil
}

// quit ends the member and waits for its goroutines.
func (m *Member) quit() {
	m.mu.Lock()
	m.finish(ErrClosed)
	m.mu.Unlock()
	m.tasks.Wait()
}

// closeLease ends the lease, and with it the registration. If ctx, and store.ResultGrace after it, end
// before the store has replied, the lease expires after its TTL.
func (m *Member) closeLease(ctx context.Context) {
	m.bye.Do(func() {
		if m.lease == nil {
			return
		}
		ctx, cancel := lingering(ctx)
		defer cancel()
		_ = m.lease.Close(ctx)
	})
}

// Leave is Close with a goodbye: the others see that this worker has left, not that it failed. The
// last worker to leave deletes all keys of the job; if the job is not finished, it keeps the newest
// complete checkpoint. The registration ends even if Leave returns an error. After Close, Leave does
// nothing.
func (m *Member) Leave(ctx context.Context) error {
	before := m.why()
	m.quit()
	defer m.closeLease(ctx)
	switch {
	case errors.Is(before, ErrEvicted):
		return m.fail("leave", before)
	case before != nil: // closed
		return nil
	}
	if err := m.goodbye(ctx); err != nil {
		return m.fail("leave", err)
	}
	return nil
}

func (m *Member) goodbye(ctx context.Context) error {
	if _, err := m.store.Delete(ctx, m.self.key); err != nil {
		return err
	}
	r, err := readRoster(ctx, m.store, &m.keys)
	if err != nil || len(r.workers) > 0 || r.view == nil {
		return err
	}
	cs, err := m.checkpoints(ctx)
	if err != nil {
		return err
	}
	_, unfinished := m.store.Get(ctx, m.keys.finished(r.view.Run))
	left, last := []string{m.keys.history}, newest(cs)
	for _, c := range cs {
		if c != last || unfinished == nil { // a job that has been drained begins with it again
			left = append(left, c.keys...)
		}
	}
	// Another job of this name may have begun. It creates its checkpoints after its view, so this swap
	// fails if there are any.
	if _, err := m.store.Swap(ctx, m.keys.view, r.view.raw, nil); err != nil {
		return ignore(err, store.ErrConflict)
	}
	_, err = m.store.Delete(ctx, left...)
	return err
}
