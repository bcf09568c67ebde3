package strategy

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

// Options has defaults for nil.
type Options struct {
	// Trace gets an event for every operation: strategy.allreduce_gradients,
	// strategy.broadcast_tensor, strategy.broadcast_tensors, strategy.barrier and
	// strategy.shutdown. Bytes are those of this rank's tensors. Nil is the group's, see
	// pgroup.Group.Trace.
	Trace trace.Sink
}

// AllReduce is data parallelism over a Comm, whose Algorithm says how: flat, or by host. It has no
// goroutine of its own.
//
// It is safe for concurrent use. Calls are served one at a time, and every rank makes the same
// calls in the same order: if two goroutines race, so that ranks differ in which was first, that is
// ErrMismatch on all ranks, and no tensor is changed.
//
// After any other error of a verb the Comm has ended, on every rank with the same
// *pgroup.RankError; the contents of the tensors are undefined.
type AllReduce struct {
	comm  *collective.Comm
	group string // its name
	trace trace.Sink
	view  context.Context // its end is that of all calls; nil: none
	turn  chan struct{}   // is full while a call has it

	// Of the call that has the turn.
	seq       uint64
	closed    bool
	last      *plan            // of the newest set of tensors
	tensors   []*tensor.Tensor // in the order of the plan's parts
	data      [][]byte         // of tensors
	aliases   alias.Finder
	mine, all []uint64 // what ranks compare
}

// The operations.
const (
	allReduceGradients = "allreduce_gradients"
	broadcastTensor    = "broadcast_tensor"
	broadcastTensors   = "broadcast_tensors"
	barrier            = "barrier"
	shutdown           = "shutdown"
)

// New makes a strategy of c. Shutdown closes c, and so may the caller.
func New(c *collective.Comm, o *Options) *AllReduce {
	s := &AllReduce{comm: c, group: c.Name(), turn: make(chan struct{}, 1)}
	s.mine, s.all = make([]uint64, words), make([]uint64, words*s.Size())
	s.trace = c.Group().Trace()
	if o == nil {
		return s
	}
	if o.Trace != nil {
		s.trace = o.Trace
	}
	return s
}

// Rank is this process's number.
func (s *AllReduce) Rank() int { return s.comm.Group().Rank() }

// Size is the number of ranks.
func (s *AllReduce) Size() int { return s.comm.Group().Size() }

// AllReduceGradients replaces each gradient by its average over all ranks, in place, with the same
// bits on every rank and in every run. The sum is divided once, by Size, however many ranks a host
// has. Integers are truncated toward 0; Float16 and BFloat16 are averaged as float32. All gradients
// of a dtype are one collective.AllReduceAll, and are not copied into a contiguous buffer.
//
// All ranks pass the same names, with the same dtypes and shapes. If they do not (ErrMismatch), or
// a tensor is invalid or shares memory with another one (ErrInvalid), all ranks get the same error,
// which names the tensor and the ranks; nothing is changed, and the next call may succeed. The map
// may be empty on all ranks. Of gradients that are the same memory, as those of tied weights, pass
// one.
func (s *AllReduce) AllReduceGradients(ctx context.Context, grads map[string]*tensor.Tensor) error {
	return s.move(ctx, allReduceGradients, -1, grads)
}

// BroadcastTensor brings t of root to all ranks, which have the same dtype and shape.
func (s *AllReduce) BroadcastTensor(ctx context.Context, root int, t *tensor.Tensor) error {
	return s.move(ctx, broadcastTensor, root, map[string]*tensor.Tensor{"tensor": t})
}

// BroadcastTensors brings ts of root to all ranks, which have the same names, dtypes and shapes.
// The dtypes may be any.
func (s *AllReduce) BroadcastTensors(ctx context.Context, root int, ts map[string]*tensor.Tensor) error {
	return s.move(ctx, broadcastTensors, root, ts)
}

// Barrier returns when all ranks have called it.
func (s *AllReduce) Barrier(ctx context.Context) error {
	return s.do(ctx, barrier, func(ctx context.Context) (int64, error) { return 0, s.comm.Barrier(ctx) })
}

// Shutdown waits until all ranks have called it, and closes the Comm, also if ctx ends before. It
// may be called twice.
func (s *AllReduce) Shutdown(ctx context.Context) error {
	err := s.do(ctx, shutdown, func(ctx context.Context) (int64, error) {
		if s.closed {
			return 0, nil
		}
		s.closed = true
		return 0, s.comm.Barrier(ctx)
	})
	return errors.Join(err, s.comm.Close())
}

// do has f take its turn. f returns how many bytes it is about.
func (s *AllReduce) do(ctx context.Context, op string, f func(ctx context.Context) (int64, error)) error {
	e := trace.Event{
		Op: "strategy." + op, Group: s.group, Generation: s.comm.Group().Generation(), Rank: s.Rank(), Size: s.Size(), Last: -1, Start: trace.Now(s.trace),
	}
	bounded, cancel := s.bound(ctx)
	defer cancel()
	if e.Err = s.begin(bounded, op); e.Err == nil {
		s.seq++
		e.Seq = s.seq
		e.Bytes, e.Err = f(bounded)
		e.Err = s.named(op, e.Err)
		<-s.turn
	}
	e.Err = s.ofView(e.Err)
	trace.Record(ctx, s.trace, e)
	return e.Err
}

// begin waits for the turn. A call that does not get it in time ends the Comm for all: the other
// ranks wait for this one in it.
func (s *AllReduce) begin(ctx context.Context, op string) error {
	select {
	case s.turn <- struct{}{}: // also if ctx has ended: the Comm fails on all ranks then
	default:
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			err := s.fail(op, fmt.Errorf("another call was in progress: %w", context.Cause(ctx)))
			if !s.viewOver() { // which ends that other call too, on all ranks
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

// bound gives ctx the group's timeout, if it has no deadline: one for all that a call does. The end
// of the view ends it too.
func (s *AllReduce) bound(ctx context.Context) (context.Context, context.CancelFunc) {
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

func (s *AllReduce) viewOver() bool { return s.view != nil && s.view.Err() != nil }

// ofView adds the end of the view to the error that it has caused.
func (s *AllReduce) ofView(err error) error {
	if !s.viewOver() || !errors.Is(err, pgroup.ErrCancelled) && !errors.Is(err, pgroup.ErrLost) && !errors.Is(err, pgroup.ErrLeft) {
		return err
	}
	return fmt.Errorf("%w: %w", err, context.Cause(s.view))
}

func (s *AllReduce) fail(op string, err error) error {
	return fmt.Errorf("strategy: %s of group %q on rank %d of %d: %w", op, s.group, s.Rank(), s.Size(), err)
}

// move moves tensors: from root, or, if that is -1, to their averages.
func (s *AllReduce) move(ctx context.Context, op string, root int, ts map[string]*tensor.Tensor) error {
	return s.do(ctx, op, func(ctx context.Context) (int64, error) {
		defer func() { // the caller's memory is not kept
			clear(s.tensors)
			clear(s.data)
		}()
		p, err := s.agree(ctx, op, root, ts)
		switch {
		case err != nil:
			return 0, err
		case root >= 0:
			return p.bytes, collective.BroadcastAll(ctx, s.comm, root, s.data)
		}
		for from := 0; from < len(p.parts) && err == nil; {
			dt, to := p.parts[from].dtype, from+1
			for to < len(p.parts) && p.parts[to].dtype == dt {
				to++
			}
			err = averages[dt](ctx, s, s.tensors[from:to])
			from = to
		}
		return p.bytes, err
	})
}

// averages are what can be averaged.
var averages = map[tensor.DType]func(ctx context.Context, s *AllReduce, ts []*tensor.Tensor) error{
	tensor.F16: average[tensor.Float16], tensor.BF16: average[tensor.BFloat16], tensor.F32: average[float32], tensor.F64: average[float64],
	tensor.I8: average[int8], tensor.I16: average[int16], tensor.I32: average[int32], tensor.I64: average[int64],
	tensor.U8: average[uint8], tensor.U16: average[uint16], tensor.U32: average[uint32], tensor.U64: average[uint64],
}

// average averages tensors of one dtype where they are, or, those that are not aligned, copies.
func average[T tensor.Number](ctx context.Context, s *AllReduce, ts []*tensor.Tensor) error {
	xs := make([][]T, len(ts))
	clones := map[*tensor.Tensor]*tensor.Tensor{}
	for i, t := range ts {
		x, err := tensor.View[T](t)
		if err != nil {
			clones[t] = t.Clone()
			x, err = tensor.View[T](clones[t])
		}
		if err != nil { // a big-endian host
			s.comm.Group().Abort(err) // the others are in the verb already
			return s.fail(allReduceGradients, err)
		}
		xs[i] = x
	}
	if err := collective.AllReduceAll(ctx, s.comm, collective.Avg, xs); err != nil {
		return err
	}
	for t, clone := range clones {
		copy(t.Data, clone.Data)
	}
	return nil
}
