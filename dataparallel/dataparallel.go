package dataparallel

import (
	"context"
	"errors"
	"fmt"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/internal/alias"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/trace"
)

// Options of New, the same on all ranks; nil means the defaults.
type Options struct {
	// Bucket is the number of bytes from which on a bucket of StartGradients is full: a larger one costs
	// less, and a smaller one begins earlier. Default: 1 MiB if all ranks share memory, 4 MiB otherwise.
	Bucket int
	// Wire is the dtype of float32 gradients on the network: tensor.BF16 or tensor.F16. Each gradient is
	// rounded to it, the average is computed in float32, and rounded again. So the error of an average is
	// at most u of the mean of the absolute values of its gradients, plus u of itself, with u = 2⁻⁸ for BF16
	// and 2⁻¹¹ for F16. F16 makes numbers beyond ±65504 infinite, and those below 6·10⁻⁵ less precise. It
	// has no effect where ranks of a host share memory: those exchange float32. Default: float32.
	Wire tensor.DType
}

// Strategy averages gradients and broadcasts weights over a Comm, whose Algorithm decides how: flat, or
// first within each host. It owns no goroutine.
//
// A Strategy is safe for concurrent use. It serves one call at a time, and all ranks must make the same
// calls in the same order. If goroutines race, so that the order differs among ranks, the call fails with
// ErrMismatch on all ranks, and no tensor is changed.
//
// After any other error the Comm has ended: all ranks get the same error, a *pgroup.RankError, and the
// contents of the tensors are undefined.
type Strategy struct {
	comm  *collective.Comm
	group string // its name
	trace trace.Sink
	view  context.Context // all calls end when it ends; nil: they do not
	opts  Options
	turn  chan struct{} // a lock that a context can interrupt: full while a call holds it

	// The fields below belong to the call that holds turn.
	seq       uint64
	closed    bool
	last      *plan            // of the last call's tensors
	tensors   []*tensor.Tensor // in the order of the plan's parts
	data      [][]byte         // the data of tensors
	aliases   alias.Finder
	mine, all []uint64 // this rank's and all ranks' words, which agree compares
}

// Operations, in errors and traces.
const (
	allReduceGradients = "allreduce_gradients"
	startGradients     = "start_gradients"
	broadcastTensor    = "broadcast_tensor"
	broadcastTensors   = "broadcast_tensors"
	barrier            = "barrier"
	shutdown           = "shutdown"
)

// New returns a Strategy over c. Shutdown closes c; the caller may close it, too. The sink of c's group
// (pgroup.Config.Trace) receives an event of every operation, such as dataparallel.allreduce_gradients, with
// the size of this rank's tensors as its Bytes.
func New(c *collective.Comm, o *Options) *Strategy {
	s := &Strategy{comm: c, group: c.Name(), trace: c.Group().Trace(), turn: make(chan struct{}, 1)}
	s.mine, s.all = make([]uint64, words), make([]uint64, words*s.Size())
	if o != nil {
		s.opts = *o
	}
	return s
}

// Rank returns the rank of this process.
func (s *Strategy) Rank() int { return s.comm.Group().Rank() }

// Size returns the number of ranks.
func (s *Strategy) Size() int { return s.comm.Group().Size() }

// AllReduceGradients replaces each gradient by its average over all ranks, in place. The result has the
// same bits on every rank and in every run. The sum is divided once, by Size. Integers are rounded toward
// 0; Float16 and BFloat16 are summed as float32. All gradients of one dtype are reduced by one
// collective.AllReduceAll, without copies.
//
// All ranks must pass the same names, with the same dtypes and shapes. Otherwise the call fails with
// ErrMismatch. If a tensor is not valid or shares memory with another one, it fails with ErrInvalid. All
// ranks get the same error, which names the tensor and the ranks; no tensor is changed, and the Strategy
// remains usable. The map may be empty on all ranks. Pass gradients of tied weights, which share memory,
// once.
func (s *Strategy) AllReduceGradients(ctx context.Context, grads map[string]*tensor.Tensor) error {
	return s.move(ctx, allReduceGradients, -1, grads)
}

// BroadcastTensor copies root's t into t on all other ranks. All ranks must pass the same dtype and shape.
func (s *Strategy) BroadcastTensor(ctx context.Context, root int, t *tensor.Tensor) error {
	return s.move(ctx, broadcastTensor, root, map[string]*tensor.Tensor{"tensor": t})
}

// BroadcastTensors copies root's tensors into those of all other ranks. All ranks must pass the same
// names, dtypes and shapes. Every dtype is supported.
func (s *Strategy) BroadcastTensors(ctx context.Context, root int, ts map[string]*tensor.Tensor) error {
	return s.move(ctx, broadcastTensors, root, ts)
}

// Barrier waits until all ranks have called it.
func (s *Strategy) Barrier(ctx context.Context) error {
	return s.do(ctx, barrier, func(ctx context.Context) (int64, error) { return 0, s.comm.Barrier(ctx) })
}

// Shutdown waits until all ranks have called it, and then closes the Comm. If ctx ends before, it closes
// the Comm and returns an error. It may be called more than once.
func (s *Strategy) Shutdown(ctx context.Context) error {
	err := s.do(ctx, shutdown, func(ctx context.Context) (int64, error) {
		if s.closed {
			return 0, nil
		}
		s.closed = true
		return 0, s.comm.Barrier(ctx)
	})
	return errors.Join(err, s.comm.Close())
}

// do calls f while it holds the turn. f returns the number of bytes that it moved.
func (s *Strategy) do(ctx context.Context, op string, f func(ctx context.Context) (int64, error)) error {
	c, err := s.open(ctx, op)
	if err != nil {
		return err
	}
	return c.close(f(c.ctx))
}

// call is a call of a Strategy that has the turn.
type call struct {
	*Strategy
	op     string
	caller context.Context
	ctx    context.Context // bounded
	cancel context.CancelFunc
	event  trace.Event
}

// open waits for the turn.
func (s *Strategy) open(ctx context.Context, op string) (*call, error) {
	c := &call{Strategy: s, op: op, caller: ctx, event: trace.Event{
		Op: "dataparallel." + op, Group: s.group, Generation: s.comm.Group().Generation(), Rank: s.Rank(), Size: s.Size(), Last: -1, Start: trace.Now(s.trace),
	}}
	c.ctx, c.cancel = s.bound(ctx)
	if err := s.begin(c.ctx, op); err != nil {
		return nil, c.end(err)
	}
	s.seq++
	c.event.Seq = s.seq
	return c, nil
}

// close gives the turn back, and returns the error of the call.
func (c *call) close(bytes int64, err error) error {
	c.event.Bytes, err = bytes, c.named(c.op, err)
	clear(c.tensors) // keep no reference to the caller's memory
	clear(c.data)
	<-c.turn
	return c.end(err)
}

func (c *call) end(err error) error {
	c.cancel()
	c.event.Err = c.ofView(err)
	trace.Record(c.caller, c.trace, c.event)
	return c.event.Err
}

// begin takes the turn. If ctx ends before it gets the turn, it aborts the group, because the other ranks
// wait for this call.
func (s *Strategy) begin(ctx context.Context, op string) error {
	select {
	case s.turn <- struct{}{}: // even if ctx has ended: then the verb fails on all ranks
	default:
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			err := s.fail(op, fmt.Errorf("another call was in progress: %w", context.Cause(ctx)))
			if !s.viewOver() { // the end of the view ends the other call, too, on all ranks
				s.comm.Group().Abort(err)
			}
			return err
		}
	}
	if s.closed && op != shutdown {
		<-s.turn
		return s.fail(op, pgroup.ErrClosed)
	}
	return nil
}

// bound returns ctx with the group's timeout as its deadline, unless it has one. The context also ends with
// the view.
func (s *Strategy) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	cancel := func() {}
	if _, ok := ctx.Deadline(); !ok {
		ctx, cancel = context.WithTimeout(ctx, s.comm.Group().Config().Timeout)
	}
	if s.view == nil {
		return ctx, cancel
	}
	ctx, end := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(s.view, func() { end(context.Cause(s.view)) })
	return ctx, func() {
		unhook()
		end(nil)
		cancel()
	}
}

func (s *Strategy) viewOver() bool { return s.view != nil && s.view.Err() != nil }

// ofView adds the reason for which the view has ended to an error that the end of the view has caused.
func (s *Strategy) ofView(err error) error {
	if !s.viewOver() || !errors.Is(err, pgroup.ErrCancelled) && !errors.Is(err, pgroup.ErrLost) && !errors.Is(err, pgroup.ErrLeft) {
		return err
	}
	return fmt.Errorf("%w: %w", err, context.Cause(s.view))
}

func (s *Strategy) fail(op string, err error) error {
	return fmt.Errorf("dataparallel: %s of group %q on rank %d of %d: %w", op, s.group, s.Rank(), s.Size(), err)
}

// move broadcasts the tensors from root or, if root is -1, averages them.
func (s *Strategy) move(ctx context.Context, op string, root int, ts map[string]*tensor.Tensor) error {
	return s.do(ctx, op, func(ctx context.Context) (int64, error) {
		p, err := s.agree(ctx, op, root, ts)
		switch {
		case err != nil:
			return 0, err
		case root >= 0:
			return p.bytes, collective.BroadcastAll(ctx, s.comm, root, s.data)
		}
		return p.bytes, s.averageAll(ctx, p)
	})
}
