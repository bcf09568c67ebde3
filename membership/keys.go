package membership

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

// keys are the keys of a job, all of them below membership/JOB/, where JOB is escaped:
//
//	roster/view                 a record: the newest view, replaced by compare-and-swap
//	roster/lost/NAME            exists when that worker was removed because it has failed
//	roster/worker/NAME          a registration, while its lease is valid; NAME is random
//	history                     a History, which no worker watches
//	checkpoint/ID/is            a Checkpoint
//	checkpoint/ID/ended/NAME    exists when that worker has ended the checkpoint
//	finished/RUN                exists when the work of that run of the job is done; Config.Launch
//	group/JOB view GENERATION   the name of the view's group (View.Config)
//
// The view sorts before the workers: a worker that lists the roster and finds its own registration was
// registered when it read the view.
type keys struct{ job, roster, view, lost, workers, history, checkpoints, groups string }

func keysOf(job string) keys {
	base := "membership/" + url.PathEscape(job) + "/"
	return keys{
		job: base, roster: base + "roster/", view: base + "roster/view", lost: base + "roster/lost/", workers: base + "roster/worker/",
		history: base + "history", checkpoints: base + "checkpoint/", groups: base + "group/",
	}
}

func (k *keys) finished(run string) string { return k.job + "finished/" + run }

func (k *keys) checkpoint(id string) string { return k.checkpoints + url.PathEscape(id) + "/" }

// registration is a worker's entry.
type registration struct {
	Worker
	Min, Max int
	Settings string `json:",omitempty"`

	key string
	rev store.Revision // of its only change; registrations are ordered by it
}

// agrees reports whether two workers have the same Min, Max and Settings. A worker that does not agree with the
// first one is refused; until it has left it does not count.
func (r *registration) agrees(o *registration) bool {
	return r.Min == o.Min && r.Max == o.Max && r.Settings == o.Settings
}

// slot is the place of a worker in a record.
type slot struct {
	Worker
	Key string // of its registration: a worker that joins again with the same ID has another key
}

// flatRecord is the form of a record in the store. Each worker gets and decodes each view: as objects,
// its workers would take twice the bytes.
type flatRecord struct {
	Run        string
	Generation uint64
	Workers    []string // by rank: ID, Addr and the NAME of its registration
}

// record is a view.
type record struct {
	Run        string // random, from the job's first view: a later job of this name cannot meet its groups
	Generation uint64
	Slots      []slot // by rank

	raw   []byte         // the encoded record, for compare-and-swap
	ranks map[string]int // by key; of a record that was decoded
}

// encode returns the form of r in the store.
func (r *record) encode(k *keys) []byte {
	flat := flatRecord{Run: r.Run, Generation: r.Generation, Workers: make([]string, 0, 3*len(r.Slots))}
	for _, s := range r.Slots {
		flat.Workers = append(flat.Workers, s.ID, s.Addr, strings.TrimPrefix(s.Key, k.workers))
	}
	return encode(&flat)
}

// rank returns the rank of the worker with this key, or -1.
func (r *record) rank(key string) int {
	if r != nil {
		if rank, ok := r.ranks[key]; ok {
			return rank
		}
	}
	return -1
}

// holds reports whether the workers of r are exactly rs, in this order.
func (r *record) holds(rs []*registration) bool {
	return r != nil && slices.EqualFunc(r.Slots, rs, func(s slot, g *registration) bool { return s.Key == g.key })
}

// roster is the registered workers and the newest view.
type roster struct {
	workers map[string]*registration // by key
	lost    map[string]bool          // keys of workers that were removed because they have failed
	view    *record                  // nil if there is none
}

// readRoster reads the roster in the order of its keys; see keys.
func readRoster(ctx context.Context, s *store.Store, k *keys) (*roster, error) {
	r := &roster{workers: map[string]*registration{}, lost: map[string]bool{}}
	for e, err := range s.List(ctx, k.roster) {
		if err != nil {
			return nil, err
		}
		if err := r.add(e, k); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// add adds an entry of the store: the view, or a worker.
func (r *roster) add(e store.Entry, k *keys) error {
	switch {
	case strings.HasPrefix(e.Key, k.workers):
		return r.addWorker(e)
	case strings.HasPrefix(e.Key, k.lost):
		r.lost[k.workers+strings.TrimPrefix(e.Key, k.lost)] = true
		return nil
	case e.Key == k.view:
		return r.setView(e, k)
	}
	return foreign(e, errors.New("unknown key"))
}

// addWorker adds a worker's entry.
func (r *roster) addWorker(e store.Entry) error {
	g := &registration{key: e.Key, rev: e.Rev}
	if err := decode(e, g); err != nil {
		return err
	}
	r.workers[e.Key] = g
	return nil
}

// setView sets the view.
func (r *roster) setView(e store.Entry, k *keys) error {
	var flat flatRecord
	if err := decode(e, &flat); err != nil {
		return err
	}
	n := len(flat.Workers) / 3
	if len(flat.Workers) != 3*n {
		return foreign(e, errors.New("a worker is incomplete"))
	}
	v := &record{Run: flat.Run, Generation: flat.Generation, Slots: make([]slot, n), raw: e.Value, ranks: make(map[string]int, n)}
	for rank := range n {
		w := flat.Workers[3*rank:]
		key := k.workers + w[2]
		v.Slots[rank], v.ranks[key] = slot{Worker{w[0], w[1]}, key}, rank
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

// foreign returns the error that e was not written by this package.
func foreign(e store.Entry, why error) error {
	return fmt.Errorf("key %q was not written by this package: %w", e.Key, why)
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return b
}

// inOrder returns the workers that agree with self, in the order of registration. Of several with the
// same ID it has the first: the others are about to be refused.
func (r *roster) inOrder(self *registration) []*registration {
	seen := map[string]bool{}
	all := slices.SortedFunc(maps.Values(r.workers), func(a, b *registration) int { return cmp.Compare(a.rev, b.rev) })
	return slices.DeleteFunc(all, func(g *registration) bool {
		out := seen[g.ID] || !g.agrees(self)
		seen[g.ID] = seen[g.ID] || !out
		return out
	})
}

// refuses returns why a worker that has just registered must leave, or nil. Of two workers that exclude
// each other, only the later one is refused.
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
	switch {
	case first.agrees(self):
		return nil
	case first.Settings != self.Settings:
		return fmt.Errorf("%w: %q here, and %q on worker %v", ErrMismatch, self.Settings, first.Settings, first.Worker)
	default:
		return fmt.Errorf("%w: Min is %d and Max is %d here, and %d and %d on worker %v", ErrMismatch, self.Min, self.Max, first.Min, first.Max, first.Worker)
	}
}
