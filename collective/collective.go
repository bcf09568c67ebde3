package collective

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-pg/muster/internal/alias"
	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/internal/reduce"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/wire"
)

// Op is a reduction.
type Op = pgroup.Op

// The reductions, as in package pgroup:
//
//   - Integers wrap around.
//   - A NaN anywhere is the Min and the Max.
//   - Float16 and BFloat16 are combined as float32.
//   - Avg of integers is truncated toward 0. The average of integers of up to 32 bits, and of
//     Float16 and BFloat16, is correct for any sum. A sum of 64-bit integers wraps around, and one
//     of float32 or float64 may be infinite, also as an intermediate result of an average.
const (
	Sum     = pgroup.Sum
	Product = pgroup.Product
	Min     = pgroup.Min
	Max     = pgroup.Max
	Avg     = pgroup.Avg
)

// Algorithm is an algorithm for reductions over connections. Which one is fastest depends on the
// number of bytes and of ranks.
type Algorithm uint8

const (
	// Auto chooses the fastest algorithm, as measured (docs/explanation/benchmarks.md), and shared
	// memory between ranks that have it.
	Auto Algorithm = iota
	// Ring moves each byte 2(p−1)/p times over each link, in 2(p−1) steps.
	Ring
	// RecursiveDoubling moves each byte log₂ p times, in as many steps.
	RecursiveDoubling
	// HalvingDoubling moves as many bytes as Ring in 2 log₂ p steps. If the number of ranks is no
	// power of two, the excess ranks first combine their data with others.
	HalvingDoubling
	// Hierarchical reduces within each host, then among hosts, and then distributes the result
	// within each host.
	Hierarchical
)

// Options are the options of Open. Zero fields have defaults. All except Listen and Dial must be the same
// on all ranks.
type Options struct {
	Algorithm Algorithm
	// host or host:port that ranks on other hosts connect to; default: the interface that leads to
	// the store
	Listen string
	// makes a connection to a rank on another host; nil: a net.Dialer
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Comm is a group with connections. Verbs run one at a time, in the order in which they are called.
// Several goroutines may call them, if the order is the same on every rank. After an error all
// calls fail.
//
// It owns a separate group with one goroutine that follows it, a link.Mesh, a goroutine for each
// rank that it sends to over a connection and for each call of Start, and the memory that it shares
// with ranks of its host. Close ends all of them.
type Comm struct {
	*core
	inner bool // has the turn
}

// core is the common part of a Comm and of those that Start makes.
type core struct {
	group     *pgroup.Group // its own group, with all ranks of the caller's
	name      string        // of the caller's group, for errors
	opts      Options
	mesh      *link.Mesh
	conns     *conns
	placement placement
	timeout   time.Duration // of calls whose context has no deadline
	local     *local        // shared memory with the ranks of this host; nil: none
	shared    bool          // hosts with several ranks have shared memory: the same on all ranks

	// ends when no operation can succeed from then on; its cause is the error of all verbs
	over context.Context
	end  context.CancelCauseFunc
	once struct{ fail, close sync.Once }

	started sync.WaitGroup // the functions of Start

	turns sync.Mutex
	tail  chan struct{} // closed when the verb that was called last has ended
	using sync.Mutex    // held while a verb of all ranks uses the memory, since Close frees it

	// The fields below belong to the verb that has the turn.
	seq     uint64
	scratch reduce.Scratch
	piece   []byte   // data that has arrived over a connection, to be combined
	result  []byte   // a result of this rank for another one
	wide    []byte   // 16-bit floats as float32
	srcs    []vector // sources of a combination
	of      [][]byte // the next contiguous bytes of these
	parts   []vector // that ranks send this one
	slices  [][]byte // the caller's slices
	aliases alias.Finder
	next    []int

	pairs   pairs
	watch   watch
	waiting atomic.Int64 // 1 + the rank that this one waits for; 0: none
}

// Open connects the ranks of g. Every rank calls it. The caller still owns g, and closes it after
// the Comm. The group's sink (pgroup.Config.Trace) gets an event for every verb that has begun.
func Open(ctx context.Context, g *pgroup.Group, o *Options) (*Comm, error) {
	c := &core{name: g.Name()}
	if o != nil {
		c.opts = *o
	}
	c.over, c.end = context.WithCancelCause(context.Background())
	sub, err := g.Sub(ctx, "collective", allRanks(g.Size())...)
	if err != nil {
		c.end(err)
		return nil, err
	}
	members, err := sub.Members(ctx)
	if err != nil {
		c.end(err)
		return nil, errors.Join(err, sub.Close())
	}
	c.group, c.placement, c.timeout = sub, newPlacement(hosts(members), sub.Rank()), sub.Config().Timeout
	c.conns = newConns(c)
	context.AfterFunc(c.over, c.conns.close) // so that verbs that wait for others end
	if err := c.open(ctx); err != nil {
		comm := &Comm{core: c}
		return nil, errors.Join(err, comm.Close())
	}
	return &Comm{core: c}, nil
}

func (c *core) open(ctx context.Context) (err error) {
	follow := c.group.Context()
	context.AfterFunc(follow, func() { c.onGroupEnd(context.Cause(follow)) })
	if c.mesh, err = link.Open(ctx, c.group, link.Options{Name: "collective", Listen: c.opts.Listen, Dial: c.opts.Dial, Polling: true, Accept: c.conns.accept}); err != nil {
		return err
	}
	return c.share(ctx)
}

func (c *core) rank() int { return c.group.Rank() }
func (c *core) size() int { return c.group.Size() }

func allRanks(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// hosts returns the ranks by host.
func hosts(members []pgroup.Member) (all [][]int) {
	for _, m := range members {
		if m.Node == len(all) {
			all = append(all, nil)
		}
		all[m.Node] = append(all[m.Node], m.Rank)
	}
	return all
}

// Name returns the name of the group that the Comm was opened on.
func (c *Comm) Name() string { return c.name }

// Group returns the Comm's own group, with the ranks of the one that it was opened on.
func (c *Comm) Group() *pgroup.Group { return c.group }

// SharesMemory reports whether all ranks reduce through memory, because they are on one host, and whether
// some do: those of hosts with several ranks. Where all do, a sum has the order of the ranks, whatever its
// position in a slice, so the bits do not depend on how data is split among calls.
func (c *Comm) SharesMemory() (all, some bool) { return c.size() == 1 || c.allShare(), c.someShare() }

func (c *core) someShare() bool {
	return c.shared && (c.opts.Algorithm == Auto || c.opts.Algorithm == Hierarchical)
}

func (c *core) allShare() bool { return c.someShare() && len(c.placement.hosts) == 1 }

// Shutdown returns when all ranks have called it, and closes the Comm, even if it fails. After that
// no rank waits for this one.
func (c *Comm) Shutdown(ctx context.Context) error {
	if c.over.Err() != nil {
		return c.Close()
	}
	return errors.Join(c.Barrier(ctx), c.Close())
}

// Close ends this rank's part at once. Ranks that wait for it in a verb get an error that it left.
// It returns when all functions of Start have returned, unless it is called in such a function, on
// the Comm that the function was passed. It may be called repeatedly.
func (c *Comm) Close() (err error) {
	if !c.inner {
		defer c.started.Wait()
	}
	c.once.close.Do(func() {
		if c.over.Err() == nil { // otherwise the others already have the reason
			c.conns.announceLeave()
			if c.local != nil {
				c.local.leave()
			}
		}
		c.end(pgroup.ErrClosed)
		c.conns.close()
		if c.mesh != nil {
			c.mesh.Close()
		}
		err = c.group.Close()
		c.watch.stop()
		c.using.Lock() // a verb in progress uses the memory until then
		defer c.using.Unlock()
		if c.local != nil {
			c.local.close()
		}
	})
	return err
}

// failureKey is the key of the failure that ended a Comm: the first that was written.
const failureKey = "fault"

// failed begins the reason of an abort by a Comm; the failure is then at failureKey.
const failed = "a verb failed: "

// failTime bounds how long ranks take to agree on a failure.
const failTime = time.Second

// fail ends the Comm on every rank with the failure v, unless another rank's failure was first.
func (c *core) fail(v *wire.Failure) {
	c.once.fail.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), failTime)
		defer cancel()
		b, _ := json.Marshal(v)
		now, err := c.group.Store().Swap(ctx, failureKey, nil, b)
		// this rank itself may be the one that failed: its group reports it
		if err != nil && now == nil {
			select {
			case <-c.over.Done():
			case <-ctx.Done():
				c.end(c.rankError(v)) // the store is not reachable in time
			}
		}
		if reported := parseFailure(now); reported != nil {
			v = reported
		}
		c.group.Abort(errors.New(failed + v.Reason))
		select {
		// the group has the first reason: this failure, that of a rank, or an abort
		case <-c.over.Done():
		case <-ctx.Done():
			c.end(c.rankError(v))
		}
	})
}

// onGroupEnd handles the end of the Comm's group.
func (c *core) onGroupEnd(cause error) {
	if re, ok := errors.AsType[*pgroup.RankError](cause); ok && re.Failure != nil {
		v := re.Failure
		if re.Code == wire.CodeAborted && strings.HasPrefix(re.Reason, failed) {
			v = cmp.Or(c.storedFailure(), v)
		}
		cause = c.rankError(v)
	}
	c.end(cause)
}

// storedFailure returns the failure at failureKey, or nil if there is none.
func (c *core) storedFailure() *wire.Failure {
	ctx, cancel := context.WithTimeout(context.Background(), failTime)
	defer cancel()
	b, err := c.group.Store().Get(ctx, failureKey)
	if err != nil {
		return nil
	}
	return parseFailure(b)
}

// parseFailure parses a failure, and returns nil if b is not one.
func parseFailure(b []byte) *wire.Failure {
	v := new(wire.Failure)
	if json.Unmarshal(b, v) != nil || v.Code == wire.CodeOK {
		return nil
	}
	return v
}

// rankError converts a failure to this rank's error.
func (c *core) rankError(v *wire.Failure) error {
	return &pgroup.RankError{Op: "collective", Group: c.name, Rank: c.rank(), Size: c.size(), Failure: v, Err: errors.New(v.Reason)}
}
