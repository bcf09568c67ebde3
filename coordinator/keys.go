package coordinator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/muster-pg/muster/store"
)

// What a job has in its store, all of it below coordinator/JOB/, where JOB is escaped:
//
//	roster/view                 a record: the newest view. Each takes the place of the one before, by a swap, and of no other
//	roster/worker/NAME          a registration, as long as its lease lives; NAME is drawn by chance
//	checkpoint/ID/is            a Checkpoint
//	checkpoint/ID/ended/NAME    that worker has ended it
//	group/GENERATION/world      the name of the view's pgroup
//
// The view sorts before workers: whoever lists the roster and finds its own registration was a worker when it read the view.
type keys struct{ job, roster, view, workers, checkpoints string }

func keysOf(job string) keys {
	base := "coordinator/" + url.PathEscape(job) + "/"
	return keys{
		job: base, roster: base + "roster/", view: base + "roster/view", workers: base + "roster/worker/",
		checkpoints: base + "checkpoint/",
	}
}

func (k *keys) group(generation uint64) string {
	return fmt.Sprintf("%sgroup/%d/world", k.job, generation)
}

func (k *keys) checkpoint(id string) string { return k.checkpoints + url.PathEscape(id) + "/" }

// registration is a worker's entry.
type registration struct {
	Worker
	Min, Max int

	key string
	rev store.Revision // of its only change: the order of registration
}

// agrees reports whether two workers are told the same of their job. Others are refused, and until they have heard of it they do not count.
func (r *registration) agrees(o *registration) bool { return r.Min == o.Min && r.Max == o.Max }

// seat is a worker in a record.
type seat struct {
	Worker
	Key string // of its registration: a worker that came back with its id is another one
}

// record is a view as it is in the store.
type record struct {
	Run        string // drawn by chance when the job began: another job of this name never meets its groups
	Generation uint64
	Seats      []seat // by rank

	raw []byte // it, as it is in the store
}

// rank is that of the worker with this key, -1 if it is not in r.
func (r *record) rank(key string) int {
	if r == nil {
		return -1
	}
	return slices.IndexFunc(r.Seats, func(s seat) bool { return s.Key == key })
}

// holds reports whether the workers of r are just these.
func (r *record) holds(rs []*registration) bool {
	return r != nil && slices.EqualFunc(r.Seats, rs, func(s seat, g *registration) bool { return s.Key == g.key })
}

// roster is who is registered, and the newest view.
type roster struct {
	workers map[string]*registration // by key
	view    *record                  // nil if there is none
}

// readRoster reads the roster, in the order of its keys: see keys.
func readRoster(ctx context.Context, s *store.Store, k *keys) (*roster, error) {
	r := &roster{workers: map[string]*registration{}}
	for e, err := range s.List(ctx, k.roster) {
		if err != nil {
			return nil, err
		}
		if err := r.take(e, k); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// take takes up an entry: the view, or a worker.
func (r *roster) take(e store.Entry, k *keys) error {
	switch {
	case strings.HasPrefix(e.Key, k.workers):
		return r.register(e)
	case e.Key == k.view:
		return r.see(e)
	}
	return foreign(e, errors.New("it is none of its keys"))
}

// register takes up a worker's entry.
func (r *roster) register(e store.Entry) error {
	g := &registration{key: e.Key, rev: e.Rev}
	if err := decode(e, g); err != nil {
		return err
	}
	r.workers[e.Key] = g
	return nil
}

// see takes up the view.
func (r *roster) see(e store.Entry) error {
	v := &record{raw: e.Value}
	if err := decode(e, v); err != nil {
		return err
	}
	r.view = v
	return nil
}

func decode(e store.Entry, v any) error {
	if err := json.Unmarshal(e.Value, v); err != nil {
		return foreign(e, err)
	}
	return nil
}

// foreign is that somebody else has written there.
func foreign(e store.Entry, why error) error {
	return fmt.Errorf("what is at key %q is not of this package: %w", e.Key, why)
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return b
}

// inOrder are those who agree with self, in the order of registration, each id once: whoever came second is about to be refused.
func (r *roster) inOrder(self *registration) []*registration {
	seen := map[string]bool{}
	all := slices.SortedFunc(maps.Values(r.workers), func(a, b *registration) int { return cmp.Compare(a.rev, b.rev) })
	return slices.DeleteFunc(all, func(g *registration) bool {
		out := seen[g.ID] || !g.agrees(self)
		seen[g.ID] = seen[g.ID] || !out
		return out
	})
}

// refuses is why a worker that has just registered may not stay; nil if it may. Of two only the later one is refused.
func (r *roster) refuses(self *registration) error {
	first := self
	for _, g := range r.workers {
		if g.ID == self.ID && g.rev < self.rev {
			return fmt.Errorf("%w: by worker %v", ErrDuplicate, g.Worker)
		}
		if g.rev < first.rev {
			first = g
		}
	}
	if !first.agrees(self) {
		return fmt.Errorf("%w: Min is %d and Max is %d here, and %d and %d on worker %v", ErrMismatch, self.Min, self.Max, first.Min, first.Max, first.Worker)
	}
	return nil
}
