package gather

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/nfsws"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/shm"
	"github.com/muster-pg/muster/trace"
	"github.com/muster-pg/muster/wire"
)

// Options has defaults for nil: through shared memory on one node, over TCP between nodes. Dir (whether it is set), Verify
// and Unequal are the same on all ranks.
type Options struct {
	// Dir is a directory that all ranks' nodes share; made if its parent is there. Jobs may use the same one at the same time. A job that was killed
	// leaves files there: the next job of its pgroup.Config.Name and Run removes them. Without a Run no job does.
	Dir     string
	Listen  string     // host or host:port that ranks on other nodes connect to; default: the interface that leads to the store
	Arena   *shm.Arena // tensors born here are not copied. It stays the caller's, and is closed after the Gatherer
	Limit   int64      // bytes of shared memory that copies may take; 0: as many as the node gives
	Verify  bool       // checksums through memory and TCP too; files have them anyway
	Unequal bool       // Tensors may differ in shape, and TensorMaps in names and shapes

	// Progress is told how much of what a rank gives has arrived, on the first rank, a few times a second at most and at the end. It must
	// be quick.
	Progress func(Progress)

	Trace trace.Sink // is told of every verb; nil: the group's, see pgroup.Group.Trace
}

// Progress is how far a verb is with one rank.
type Progress struct {
	Rank        int   // in the group, who gives
	Done, Total int64 // bytes
}

// Gatherer is one rank's part in gathers. It keeps links and segments between them. Many goroutines may use it; on one list of ranks
// there is one verb at a time.
//
// It owns a goroutine for each connection to a rank that it gathers with, those of its link.Mesh, its own arena, and in
// Dir what it has published. Close ends all of them.
type Gatherer struct {
	group *pgroup.Group
	id    uint64 // of this Gatherer, the same on all ranks
	name  string // of the groups of its lists: other Gatherers of group have others
	opts  Options
	mesh  *link.Mesh       // nil with Dir
	arena *shm.Arena       // for copies; nil where there is no shared memory
	files *nfsws.Workspace // nil without Dir

	generation uint64 // of files

	in      intake  // what comes from ranks that give to this one
	exports exports // what ranks may fetch from this one

	life context.Context // ends with Close
	die  context.CancelFunc
	once sync.Once

	mu      sync.Mutex // protects the fields below
	circles map[string]*circle
	loans   map[*loan]struct{} // of Results that are not released
	closed  bool
}

// settings are what all ranks have to agree on.
type settings struct {
	Dir, Verify, Unequal bool
	ID                   uint64 // random, of rank 0: of this Gatherer, among all that there are
	Generation           uint64 // of the workspace, of rank 0
	Err                  string // of rank 0: why there is no workspace
}

// Open is called by every rank of g, and is a few round trips. A nil o is Options{}. The group stays the caller's, and is
// closed after the Gatherer.
func Open(ctx context.Context, g *pgroup.Group, o *Options) (*Gatherer, error) {
	ga := &Gatherer{group: g, circles: map[string]*circle{}, loans: map[*loan]struct{}{}}
	ga.life, ga.die = context.WithCancel(context.Background())
	if o != nil {
		ga.opts = *o
	}
	if ga.opts.Trace == nil {
		ga.opts.Trace = g.Trace()
	}
	ga.in.init()
	if err := ga.open(ctx); err != nil {
		return nil, errors.Join(err, ga.Close())
	}
	return ga, nil
}

func (ga *Gatherer) open(ctx context.Context) error {
	agreed, err := ga.agree(ctx)
	if err != nil {
		return err
	}
	ga.id, ga.generation, ga.name = agreed.ID, agreed.Generation, fmt.Sprintf("gather %x", agreed.ID)
	if ga.opts.Dir != "" {
		ga.files, err = openFiles(ga.opts.Dir, ga.group, agreed.ID, agreed.Generation)
		return ga.everyone(ctx, "gather.open", err)
	}
	ga.arena, err = shm.NewArena(&shm.Options{Limit: ga.opts.Limit})
	if errors.Is(err, shm.ErrUnsupported) {
		err = nil
	}
	if err := ga.everyone(ctx, "gather.open", err); err != nil {
		return err
	}
	ga.mesh, err = link.Open(ctx, ga.group, link.Options{Name: "gather", Listen: ga.opts.Listen, Accept: ga.in.accept})
	return err
}

// agree compares the settings of all ranks, and returns those of rank 0.
func (ga *Gatherer) agree(ctx context.Context) (agreed settings, err error) {
	mine := settings{Dir: ga.opts.Dir != "", Verify: ga.opts.Verify, Unequal: ga.opts.Unequal, ID: rand.Uint64()}
	if mine.Dir && ga.group.Rank() == 0 {
		if mine.Generation, err = beginFiles(ga.opts.Dir, ga.group, mine.ID); err != nil {
			mine.Err = err.Error()
		}
	}
	all, gone := pgroup.AllGather(ctx, ga.group.Channel(controlChannel), mine)
	if gone != nil {
		return agreed, gone
	}
	if all[0].Err != "" {
		return agreed, ga.verdict("gather.open", nil, &fault{Code: wire.CodeFailed, By: 0, Reason: all[0].Err, err: err})
	}
	for rank, s := range all {
		first := all[0]
		switch {
		case s.Dir != first.Dir:
			return agreed, ga.verdict("gather.open", nil, mismatch(rank, "rank %d %s Options.Dir, and rank 0 %s", rank, has(s.Dir), has(first.Dir)))
		case s.Verify != first.Verify:
			return agreed, ga.verdict("gather.open", nil, mismatch(rank, "rank %d %s Options.Verify, and rank 0 %s", rank, has(s.Verify), has(first.Verify)))
		case s.Unequal != first.Unequal:
			return agreed, ga.verdict("gather.open", nil, mismatch(rank, "rank %d %s Options.Unequal, and rank 0 %s", rank, has(s.Unequal), has(first.Unequal)))
		}
	}
	return all[0], nil
}

// removeTime bounds how long Close takes to remove what this rank has published.
const removeTime = 5 * time.Second

// bound gives ctx the group's timeout, if it has no deadline.
func (ga *Gatherer) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, ga.group.Config().Timeout)
}

func has(on bool) string {
	if on {
		return "has"
	}
	return "has no"
}

const controlChannel = "\x00gather"

// everyone makes one rank's failure that of all: the lowest rank's counts.
func (ga *Gatherer) everyone(ctx context.Context, op string, err error) error {
	mine := ""
	if err != nil {
		mine = err.Error()
	}
	all, gone := pgroup.AllGather(ctx, ga.group.Channel(controlChannel), mine)
	if gone != nil {
		return gone
	}
	for rank, text := range all {
		switch {
		case text != "" && rank == ga.group.Rank():
			return ga.verdict(op, nil, failed(rank, err))
		case text != "":
			return ga.verdict(op, nil, failed(rank, errors.New(text)))
		}
	}
	return nil
}

// circle returns what the ranks of a list share, made when the list is first used; nil if this rank is not in it.
func (ga *Gatherer) circle(op string, ranks []int) (*circle, error) {
	if err := ga.checkRanks(op, ranks); err != nil {
		return nil, err
	}
	if !slices.Contains(ranks, ga.group.Rank()) {
		return nil, nil
	}
	key := strings.Trim(fmt.Sprint(ranks), "[]")
	ga.mu.Lock()
	defer ga.mu.Unlock()
	if ga.closed {
		return nil, fmt.Errorf("%s on rank %d: %w", op, ga.group.Rank(), pgroup.ErrClosed)
	}
	c := ga.circles[key]
	if c == nil {
		c = &circle{ga: ga, ranks: slices.Clone(ranks), name: ga.name}
		ga.circles[key] = c
	}
	return c, nil
}

func (ga *Gatherer) checkRanks(op string, ranks []int) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s on rank %d: ranks %v: %s: %w", op, ga.group.Rank(), ranks, fmt.Sprintf(format, args...), pgroup.ErrInvalid)
	}
	if len(ranks) == 0 {
		return bad("an empty list has no first rank to receive")
	}
	for i, r := range ranks {
		switch {
		case r < 0 || r >= ga.group.Size():
			return bad("there is no rank %d in a group of %d", r, ga.group.Size())
		case slices.Contains(ranks[:i], r):
			return bad("rank %d is in it twice", r)
		}
	}
	return nil
}

// Close ends this rank's part: whoever waits for it in a verb hears that it left (or misses it, on a list that was not used before). Results
// that are not released yet are, by it: what they hold must not be touched any more. It may be called twice; each call returns when all is over.
func (ga *Gatherer) Close() (err error) {
	ga.once.Do(func() { err = ga.close() })
	return err
}

func (ga *Gatherer) close() error {
	ga.die()
	ga.mu.Lock()
	circles := slices.Collect(maps.Values(ga.circles))
	loans := slices.Collect(maps.Keys(ga.loans))
	ga.closed = true
	ga.mu.Unlock()
	for _, l := range loans {
		l.release()
	}
	var errs []error
	for _, c := range circles {
		errs = append(errs, c.close())
	}
	if ga.mesh != nil {
		ga.mesh.Close()
	}
	ga.in.close()
	for _, c := range circles { // a verb that is in progress ends now, and uses the arena until then
		c.mu.Lock()
		c.mu.Unlock() //nolint:staticcheck // it waits, and guards nothing
	}
	if ga.arena != nil {
		errs = append(errs, ga.arena.Close())
	}
	if ga.files != nil {
		ctx, cancel := context.WithTimeout(context.Background(), removeTime)
		defer cancel()
		if err := ga.files.Remove(ctx); !errors.Is(err, nfsws.ErrSuperseded) { // a newer job has taken it over, and will
			errs = append(errs, err)
		}
		errs = append(errs, ga.files.Close())
		ga.removeDir(ctx)
	}
	return errors.Join(errs...)
}
