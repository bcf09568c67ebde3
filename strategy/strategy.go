package strategy

import (
	"context"
	"errors"
	"fmt"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/trace"
)

// Options has defaults for nil.
type Options struct {
	// BucketBytes is how much of small tensors is moved at once, the same on all ranks; default 256 KiB. A larger tensor is reduced where it is. Where a
	// round trip takes long, larger buckets are fewer.
	BucketBytes int
	// Trace is told of every operation: strategy.allreduce_gradients, strategy.broadcast_tensor, strategy.broadcast_tensors,
	// strategy.barrier and strategy.shutdown. Bytes are those of this rank's tensors. Nil is
	// the group's, see pgroup.Group.Trace.
	Trace trace.Sink
}

// defaultBucket is best over shared memory and over TCP (BenchmarkBuckets): a bucket is copied twice, which costs little as long as it stays in the cache of a
// core.
const defaultBucket = 256 << 10

// AllReduce is data parallelism over a Comm, whose Algorithm says how: flat, or by host. It has no goroutine of its own.
//
// Many goroutines may use it. Their calls are served one at a time, and every rank makes the same calls in the same order: if two goroutines
// race, so that ranks differ in who came first, that is ErrMismatch on all ranks, and no tensor is changed.
//
// After any other error of a verb the Comm is over, on every rank with the same verdict, a *pgroup.RankError; what the tensors hold is not defined.
type AllReduce struct {
	comm   *collective.Comm
	group  string // its name
	bucket int
	trace  trace.Sink
	view   context.Context // its end is that of all calls; nil: none
	turn   chan struct{}   // is full while a call has it

	// Of the call that has the turn.
	seq       uint64
	closed    bool
	last      *plan    // of the newest set of tensors
	room      []byte   // of buckets
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
	s := &AllReduce{comm: c, group: c.Name(), bucket: defaultBucket, turn: make(chan struct{}, 1)}
	s.mine, s.all = make([]uint64, words), make([]uint64, words*s.Size())
	s.trace = c.Group().Trace()
	if o == nil {
		return s
	}
	if o.Trace != nil {
		s.trace = o.Trace
	}
	if o.BucketBytes > 0 {
		s.bucket = o.BucketBytes
	}
	return s
}

// Rank is this process's number.
func (s *AllReduce) Rank() int { return s.comm.Group().Rank() }

// Size is the number of ranks.
func (s *AllReduce) Size() int { return s.comm.Group().Size() }

// AllReduceGradients replaces each gradient by its average over all ranks, in place, with the same bits on every rank and in every run. The
// sum is divided once, by Size, however many ranks a host has. Each dtype is averaged as itself: integers toward 0, Float16 and
// BFloat16 by way of float32. Tensors that share memory are averaged twice: pass one of them.
//
// All ranks pass the same names, with the same dtypes and shapes. If they do not (ErrMismatch), or a tensor makes no sense (ErrInvalid), all ranks
// have the same error, which says of which tensor and which ranks; nothing is changed, and the next call may do better. The map may be empty on all
// ranks.
func (s *AllReduce) AllReduceGradients(ctx context.Context, grads map[string]*tensor.Tensor) error {
	return s.tensors(ctx, allReduceGradients, -1, grads)
}

// BroadcastTensor brings t of root to all ranks, which have the same dtype and shape.
func (s *AllReduce) BroadcastTensor(ctx context.Context, root int, t *tensor.Tensor) error {
	return s.tensors(ctx, broadcastTensor, root, map[string]*tensor.Tensor{"tensor": t})
}

// BroadcastTensors brings ts of root to all ranks, which have the same names, dtypes and shapes. The dtypes may be any.
func (s *AllReduce) BroadcastTensors(ctx context.Context, root int, ts map[string]*tensor.Tensor) error {
	return s.tensors(ctx, broadcastTensors, root, ts)
}

// Barrier returns when all ranks have called it.
func (s *AllReduce) Barrier(ctx context.Context) error {
	return s.do(ctx, barrier, func(ctx context.Context) (int64, error) { return 0, s.comm.Barrier(ctx) })
}

// Shutdown waits until all ranks have called it, and closes the Comm, also if they do not before ctx ends. It may be called twice.
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

// begin waits for the turn. A call that does not get it in time ends the Comm for all: the other ranks wait for this one in it.
func (s *AllReduce) begin(ctx context.Context, op string) error {
	select {
	case s.turn <- struct{}{}: // also if ctx has ended, which the Comm tells all
	default:
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			err := s.fail(op, fmt.Errorf("another call was in progress: %w", context.Cause(ctx)))
			if !s.viewOver() { // which ends that other call too, for everybody
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

// bound gives ctx the group's timeout, if it has no deadline: one for all that a call does. The end of the view ends it too.
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

// ofView adds to an error that the end of the view has brought what that was, which the verdict does not say.
func (s *AllReduce) ofView(err error) error {
	if !s.viewOver() || !errors.Is(err, pgroup.ErrCancelled) && !errors.Is(err, pgroup.ErrLost) && !errors.Is(err, pgroup.ErrLeft) {
		return err
	}
	return fmt.Errorf("%w: %w", err, context.Cause(s.view))
}

func (s *AllReduce) fail(op string, err error) error {
	return fmt.Errorf("strategy: %s of group %q on rank %d of %d: %w", op, s.group, s.Rank(), s.Size(), err)
}

// tensors moves tensors: from root, or, if that is -1, to their averages.
func (s *AllReduce) tensors(ctx context.Context, op string, root int, ts map[string]*tensor.Tensor) error {
	return s.do(ctx, op, func(ctx context.Context) (int64, error) {
		p, err := s.agree(ctx, op, root, ts)
		if err != nil {
			return 0, err
		}
		for i := range p.steps {
			if err := s.step(ctx, p, &p.steps[i], root, ts); err != nil {
				return p.bytes, err
			}
		}
		return p.bytes, nil
	})
}

// step moves the tensors of a step: one where it is, several in a bucket.
func (s *AllReduce) step(ctx context.Context, p *plan, st *step, root int, ts map[string]*tensor.Tensor) error {
	parts := p.parts[st.from:st.to]
	if st.bucket == nil {
		return s.move(ctx, root, ts[parts[0].name])
	}
	at := 0
	for i := range parts {
		at += copy(st.bucket.Data[at:], ts[parts[i].name].Data)
	}
	if err := s.move(ctx, root, st.bucket); err != nil {
		return err
	}
	at = 0
	for i := range parts {
		at += copy(ts[parts[i].name].Data, st.bucket.Data[at:])
	}
	return nil
}

func (s *AllReduce) move(ctx context.Context, root int, t *tensor.Tensor) error {
	switch {
	case len(t.Data) == 0:
		return nil
	case root >= 0:
		return collective.Broadcast(ctx, s.comm, root, t.Data)
	}
	return averages[t.DType](ctx, s, t)
}

// averages are what can be averaged.
var averages = map[tensor.DType]func(ctx context.Context, s *AllReduce, t *tensor.Tensor) error{
	tensor.F16: average[tensor.Float16], tensor.BF16: average[tensor.BFloat16], tensor.F32: average[float32], tensor.F64: average[float64],
	tensor.I8: average[int8], tensor.I16: average[int16], tensor.I32: average[int32], tensor.I64: average[int64],
	tensor.U8: average[uint8], tensor.U16: average[uint16], tensor.U32: average[uint32], tensor.U64: average[uint64],
}

// average averages t where it is, or, if it is not aligned, a copy.
func average[T tensor.Number](ctx context.Context, s *AllReduce, t *tensor.Tensor) error {
	if x, err := tensor.View[T](t); err == nil {
		return collective.AllReduce(ctx, s.comm, collective.Avg, x)
	}
	aligned := &tensor.Tensor{DType: t.DType, Shape: t.Shape, Data: s.roomFor(len(t.Data))}
	x, err := tensor.View[T](aligned)
	if err != nil { // a big-endian host
		s.comm.Group().Abort(err) // the others are in the verb already
		return s.fail(allReduceGradients, err)
	}
	copy(aligned.Data, t.Data)
	if err := collective.AllReduce(ctx, s.comm, collective.Avg, x); err != nil {
		return err
	}
	copy(t.Data, aligned.Data)
	return nil
}

// roomFor is memory of n bytes that is used again, aligned for every dtype.
func (s *AllReduce) roomFor(n int) []byte {
	if len(s.room) < n {
		s.room = tensor.New(tensor.U64, (n+7)/8).Data
	}
	return s.room[:n]
}
