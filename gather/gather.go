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
	"github.com/muster-pg/muster/wire"
)

// Options are the options of Open. Zero fields have defaults. Whether Dir is set must be the same on
// all ranks.
type Options struct {
	// Dir is a directory that the hosts of all ranks share; it is created if its parent exists.
	// Several jobs may use the same one at the same time. A job that was killed leaves files there,
	// which the next job with the same pgroup.Config.Name and Run removes, or any job when they are
	// a week old. A job that gathers less often than that needs a directory that others do not use.
	Dir string
	// host or host:port that ranks on other hosts connect to; default: the interface that leads to
	// the store
	Listen string
	// tensors allocated here are not copied. The caller owns it, and closes it after the Gatherer
	Arena *shm.Arena
	Limit int64 // bytes of shared memory for copies; 0: as many as the host allows
}

// Gatherer is one rank's part in gathers. It keeps connections and segments between them. It is
// safe for concurrent use; on each list of ranks there is one verb at a time.
//
// It owns a goroutine for each connection to a rank that it gathers with, those of its link.Mesh,
// its own arena, and in Dir the files that it has published. Close releases all of them.
type Gatherer struct {
	group *pgroup.Group
	id    uint64 // of this Gatherer, the same on all ranks
	name  string // of the groups of its lists; each Gatherer has its own
	opts  Options
	mesh  *link.Mesh       // nil with Dir
	arena *shm.Arena       // for copies; nil where there is no shared memory
	files *nfsws.Workspace // nil without Dir

	generation uint64 // of files

	in      inbound // from ranks that send to this one
	exports exports // tensors that ranks may fetch from this one

	life context.Context // ends with Close
	die  context.CancelFunc
	once sync.Once

	mu         sync.Mutex // protects the fields below
	subgroups  map[string]*subgroup
	unreleased map[*resources]struct{} // of Results that are not released
	closed     bool
}

// settings are the options that all ranks must agree on, and the values that rank 0 decides.
type settings struct {
	Dir        bool
	ID         uint64 // identifies this Gatherer; random, chosen by rank 0
	Generation uint64 // of the workspace, of rank 0
	Err        string // rank 0's error of creating the workspace
}

// Open creates a Gatherer. Every rank of g calls it; it takes a few round trips. A nil o is
// Options{}. The caller still owns the group, and closes it after the Gatherer. The group's sink
// (pgroup.Config.Trace) gets an event for every verb.
func Open(ctx context.Context, g *pgroup.Group, o *Options) (*Gatherer, error) {
	ga := &Gatherer{group: g, subgroups: map[string]*subgroup{}, unreleased: map[*resources]struct{}{}}
	ga.life, ga.die = context.WithCancel(context.Background())
	if o != nil {
		ga.opts = *o
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
		ga.files, err = openFiles(ctx, ga.opts.Dir, ga.group, agreed.ID, agreed.Generation)
		return ga.agreeOnError(ctx, "gather.open", err)
	}
	if ga.group.Config().SharedMemory != pgroup.SharedMemoryOff {
		ga.arena, err = shm.NewArena(&shm.Options{Limit: ga.opts.Limit})
	}
	if errors.Is(err, shm.ErrUnsupported) {
		err = nil
	}
	if err := ga.agreeOnError(ctx, "gather.open", err); err != nil {
		return err
	}
	ga.mesh, err = link.Open(ctx, ga.group, link.Options{Name: "gather", Listen: ga.opts.Listen, Accept: ga.in.accept})
	return err
}

// agree compares the settings of all ranks, and returns those of rank 0.
func (ga *Gatherer) agree(ctx context.Context) (agreed settings, err error) {
	mine := settings{Dir: ga.opts.Dir != "", ID: rand.Uint64()}
	if mine.Dir && ga.group.Rank() == 0 {
		if mine.Generation, err = beginFiles(ctx, ga.opts.Dir, ga.group, mine.ID); err != nil {
			mine.Err = err.Error()
		}
	}
	all, gone := pgroup.AllGather(ctx, ga.group.Channel(controlChannel), mine)
	if gone != nil {
		return agreed, gone
	}
	if all[0].Err != "" {
		return agreed, ga.rankError("gather.open", nil, &fault{Code: wire.CodeFailed, By: 0, Reason: all[0].Err, err: err})
	}
	for rank, s := range all {
		if s.Dir != all[0].Dir {
			return agreed, ga.rankError("gather.open", nil, mismatch(rank, "rank %d %s Options.Dir, and rank 0 %s", rank, has(s.Dir), has(all[0].Dir)))
		}
	}
	return all[0], nil
}

// removeTime bounds the time that Close takes to remove the files that this rank has published.
const removeTime = 5 * time.Second

// bound adds the group's timeout to ctx if it has no deadline.
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

// agreeOnError returns the same error on all ranks: that of the lowest rank with an error.
func (ga *Gatherer) agreeOnError(ctx context.Context, op string, err error) error {
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
			return ga.rankError(op, nil, failed(rank, err))
		case text != "":
			return ga.rankError(op, nil, failed(rank, errors.New(text)))
		}
	}
	return nil
}

// subgroup returns the subgroup of a list, and makes it when the list is first used. It returns nil
// if this rank is not in the list.
func (ga *Gatherer) subgroup(op string, ranks []int) (*subgroup, error) {
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
	c := ga.subgroups[key]
	if c == nil {
		c = &subgroup{ga: ga, ranks: slices.Clone(ranks), name: ga.name}
		ga.subgroups[key] = c
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

// Close ends this rank's part. Ranks that wait for it in a verb get an error that it left (or that
// it is missing, on a list that was not used before). It releases all Results that are not yet
// released: their memory must no longer be used. It may be called repeatedly; each call returns
// when everything has ended.
func (ga *Gatherer) Close() (err error) {
	ga.once.Do(func() { err = ga.close() })
	return err
}

func (ga *Gatherer) close() error {
	ga.die()
	ga.mu.Lock()
	subgroups := slices.Collect(maps.Values(ga.subgroups))
	unreleased := slices.Collect(maps.Keys(ga.unreleased))
	ga.closed = true
	ga.mu.Unlock()
	for _, l := range unreleased {
		l.release()
	}
	var errs []error
	for _, c := range subgroups {
		errs = append(errs, c.close())
	}
	if ga.mesh != nil {
		ga.mesh.Close()
	}
	ga.in.close()
	// a verb that is in progress ends now, and uses the arena until then
	for _, c := range subgroups {
		c.mu.Lock()
		c.mu.Unlock() //nolint:staticcheck // it waits, and guards nothing
	}
	if ga.arena != nil {
		errs = append(errs, ga.arena.Close())
	}
	if ga.files != nil {
		ctx, cancel := context.WithTimeout(context.Background(), removeTime)
		defer cancel()
		// a newer job has superseded this one, and removes the workspace
		if err := ga.files.Remove(ctx); !errors.Is(err, nfsws.ErrSuperseded) {
			errs = append(errs, err)
		}
		errs = append(errs, ga.files.Close())
		ga.removeDir(ctx)
	}
	return errors.Join(errs...)
}
