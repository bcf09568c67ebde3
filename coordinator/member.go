package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/store"
)

// Member is this worker's registration. It sends its own heartbeats, those of its lease, and takes part in deciding views, until it is
// evicted or closed. It may be used by many goroutines at once.
type Member struct {
	cfg   Config // with defaults
	store *store.Store
	keys  keys
	lease *store.Lease
	self  registration // its rev is 0: the store's word is in the roster

	life  context.Context // until it is over
	stop  context.CancelFunc
	tasks sync.WaitGroup
	kick  chan struct{} // holds one: the roster has changed
	bye   sync.Once     // the lease is given back once

	mu      sync.Mutex    // protects the fields below; never held during I/O
	roster  *roster       // as the watch has told, in its order
	epoch   *epoch        // the newest view; nil if there is none
	given   *epoch        // what Next gave last
	over    error         // ErrEvicted or ErrClosed, with the reason, when this worker is out
	changed chan struct{} // closed when something above has changed, and another one made

	unheard, undecided error // why nothing is heard of the store, and why the last attempt to decide a view failed
}

// Join registers this worker in the job, in the order of calls, and returns without waiting for others: that is for Next. It
// is refused if another worker that lives has its id (ErrDuplicate), also if that is its own former life, which the store
// has not given up yet: try again, for Config.TTL.
func Join(ctx context.Context, s *store.Store, c Config) (*Member, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Member{cfg: c, store: s, keys: keysOf(c.Job), kick: make(chan struct{}, 1), changed: make(chan struct{})}
	m.life, m.stop = context.WithCancel(context.Background())
	m.self = registration{Worker: Worker{c.ID, c.Addr}, Min: c.Min, Max: c.Max, key: m.keys.workers + rand.Text()}
	if m.lease, err = s.Lease(ctx, c.TTL); err == nil {
		err = m.register(ctx)
	}
	if err != nil {
		m.stop()
		m.giveBack(ctx)
		return nil, m.fail("join", err)
	}
	m.tasks.Go(m.follow)
	m.tasks.Go(m.lead)
	m.tasks.Go(m.guard)
	return m, nil
}

// register enters the worker, and sees who was there before: it is the store's revisions that tell who was first.
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
	m.roster = r
	return nil
}

// follow keeps the roster as the store has it, until the member is over. While the store is away nothing is heard of it; whether that
// is for too long is for the lease to say.
func (m *Member) follow() {
	const firstPause, mostPause = 10 * time.Millisecond, time.Second
	for pause := firstPause; m.life.Err() == nil; {
		begun := time.Now()
		switch err := m.watch(); {
		case errors.Is(err, store.ErrClosed), errors.Is(err, store.ErrDenied): // for good
			m.evict(err)
		case errors.Is(err, store.ErrCompacted), time.Since(begun) > mostPause:
			pause = firstPause
		default:
			m.note(&m.unheard, err)
			pause = min(2*pause, mostPause)
		}
		m.rest(pause)
	}
}

// watch reads the roster, and follows its changes until something fails.
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
	m.note(&m.unheard, nil)
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

// load takes up the whole roster. A view counts only if this worker was registered after it was read.
func (m *Member) load(r *roster) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.workers[m.self.key] == nil {
		m.finish(fmt.Errorf("%w: its registration is gone", ErrEvicted))
		return
	}
	m.roster = r
	if m.epoch != nil {
		for _, s := range m.epoch.Seats {
			if r.workers[s.Key] == nil {
				m.epoch.without(s.Key, false)
			}
		}
	}
	m.adopt(r.view)
	m.tell()
}

// apply takes up one change. Events come in their order, so that a worker hears that it is evicted before it hears of any view that
// was made after that, one of its own included.
func (m *Member) apply(e store.Event) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	switch worker := strings.HasPrefix(e.Key, m.keys.workers); {
	case m.over != nil:
	case worker && e.Deleted && e.Key == m.self.key:
		m.finish(fmt.Errorf("%w: its registration is gone", ErrEvicted))
	case worker && e.Deleted:
		delete(m.roster.workers, e.Key)
		if m.epoch != nil {
			m.epoch.without(e.Key, !e.Expired)
		}
	case e.Deleted && e.Key == m.keys.view:
		m.roster.view = nil
	case e.Deleted:
	default:
		if err = m.roster.take(e.Entry, &m.keys); err == nil && !worker {
			m.adopt(m.roster.view)
		}
	}
	m.tell()
	return err
}

// adopt makes v the view, if it is newer: its time may have been renewed. Called with mu.
func (m *Member) adopt(v *record) {
	if v == nil || m.epoch != nil && v.Generation <= m.epoch.Generation {
		return
	}
	if m.epoch != nil {
		m.epoch.superseded(v)
	}
	m.epoch = m.newEpoch(v)
	for _, s := range v.Seats {
		if m.roster.workers[s.Key] == nil {
			m.epoch.without(s.Key, false)
		}
	}
}

// tell wakes those who wait for a change. Called with mu.
func (m *Member) tell() {
	close(m.changed)
	m.changed = make(chan struct{})
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// finish is the end of the member, for the reason why; the first one counts. Called with mu.
func (m *Member) finish(why error) {
	if m.over != nil {
		return
	}
	m.over = why
	if m.epoch != nil {
		end := m.epoch.over()
		end.Err = why
		m.epoch.end(end)
	}
	m.stop()
	m.tell()
}

// guard hears of the lease's end before the watch may: when the store is away.
func (m *Member) guard() {
	select {
	case <-m.life.Done():
	case <-m.lease.Done():
		m.evict(m.lease.Err())
	}
}

// evict is finish for a worker that cannot know what the store has of it.
func (m *Member) evict(why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.finish(fmt.Errorf("%w: %w", ErrEvicted, why))
}

// note keeps a trouble for those who wait and wonder.
func (m *Member) note(trouble *error, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*trouble = err
}

// rest waits, unless the member is over.
func (m *Member) rest(d time.Duration) {
	select {
	case <-time.After(d):
	case <-m.life.Done():
	}
}

// Next waits for a view that is newer than what it gave last, and that this worker is in. When ctx ends first the error says what is waited for. A view
// that was over before it could be given is left out.
func (m *Member) Next(ctx context.Context) (View, error) {
	for {
		m.mu.Lock()
		e, over, changed := m.epoch, m.over, m.changed
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

// overdue says what Next waits for.
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
	case m.unheard != nil:
		e.Detail = m.unheard.Error()
	case m.undecided != nil:
		e.Detail = m.undecided.Error()
	case len(live) < m.cfg.Min:
		e.Detail = fmt.Sprintf("%d of %d workers are registered: %v", len(live), m.cfg.Min, names(live))
	case m.epoch != nil && m.epoch.rank < 0 && m.epoch.ctx.Err() == nil:
		e.Detail = fmt.Sprintf("it is a standby: view %d has its %d workers", m.epoch.Generation, len(m.epoch.Seats))
	case m.epoch != nil && m.epoch.ctx.Err() == nil:
		e.Detail = fmt.Sprintf("view %d still holds", m.epoch.Generation)
	}
	return e
}

// names lists workers, and not too many.
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

// fail is the error of op.
func (m *Member) fail(op string, err error) *Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &Error{Op: op, Job: m.cfg.Job, ID: m.cfg.ID, Rank: -1, Err: err}
	if m.given != nil {
		e.Rank = m.given.rank
	}
	return e
}

// why is the reason for which the member is over, or nil.
func (m *Member) why() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.over
}

// Close takes this worker out, and returns when its goroutines have ended and the store has heard of it, or a moment over a second has passed: then it
// goes by its TTL. To the others it is lost. It may be called twice, and after Leave.
func (m *Member) Close() error {
	m.quit()
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	m.giveBack(ctx)
	return nil
}

// quit ends everything on this side.
func (m *Member) quit() {
	m.mu.Lock()
	m.finish(ErrClosed)
	m.mu.Unlock()
	m.tasks.Wait()
}

// giveBack ends the lease, and with it what the store has of this worker; a store that does not hear of it before ctx has ended, and Grace
// has passed, ends it by its TTL.
func (m *Member) giveBack(ctx context.Context) {
	m.bye.Do(func() {
		if m.lease == nil {
			return
		}
		ctx, cancel := lingering(ctx)
		defer cancel()
		_ = m.lease.Close(ctx)
	})
}

// Leave is Close, and says goodbye: to the others this worker has left. The last one to leave takes away what the job has in
// the store. The worker is out also if it fails. It may be called after Close, and does nothing then.
func (m *Member) Leave(ctx context.Context) error {
	before := m.why()
	m.quit()
	defer m.giveBack(ctx)
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
	var left []string
	for key, err := range m.store.Keys(ctx, m.keys.checkpoints) {
		if err != nil {
			return err
		}
		left = append(left, key)
	}
	// Another job of this name may have begun: what it has is not there before its view is, and then this swap fails.
	if _, err := m.store.Swap(ctx, m.keys.view, r.view.raw, nil); err != nil || len(left) == 0 {
		return ignore(err, store.ErrConflict)
	}
	_, err = m.store.Delete(ctx, left...)
	return err
}
