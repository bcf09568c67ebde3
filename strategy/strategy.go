package strategy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/trace"
)

type Options struct {
	// BucketBytes is how much of small tensors is moved at once, the same on all ranks; default 4 MiB. A tensor of that size or more is
	// reduced where it is.
	BucketBytes int
	// Trace is told of every operation: strategy.allreduce_gradients, strategy.broadcast_tensor, strategy.broadcast_tensors,
	// strategy.barrier and strategy.shutdown. Bytes are those of the tensors of this rank.
	Trace trace.Sink
}

const defaultBucket = 4 << 20

type AllReduce struct {
	comm   *collective.Comm
	group  string // its name
	bucket int
	trace  trace.Sink
	turn   chan struct{} // is full while a call has it

	// Of the call that has the turn.
	seq       uint64
	closed    bool
	last      *plan    // of the newest set of tensors
	room      []byte   // of a bucket
	mine, all []uint64 // what ranks compare
}

const (
	allReduceGradients = "allreduce_gradients"
	broadcastTensor    = "broadcast_tensor"
	broadcastTensors   = "broadcast_tensors"
	barrier            = "barrier"
	shutdown           = "shutdown"
)

func New(c *collective.Comm, o *Options) *AllReduce {
	s := &AllReduce{comm: c, group: strings.TrimSuffix(c.Group().Name(), "/collective"), bucket: defaultBucket, turn: make(chan struct{}, 1)}
	s.mine, s.all = make([]uint64, words), make([]uint64, words*s.Size())
	if o == nil {
		return s
	}
	s.trace = o.Trace
	if o.BucketBytes > 0 {
		s.bucket = o.BucketBytes
	}
	return s
}

func (s *AllReduce) Rank() int { return s.comm.Group().Rank() }

func (s *AllReduce) Size() int { return s.comm.Group().Size() }

func (s *AllReduce) AllReduceGradients(ctx context.Context, grads map[string]*tensor.Tensor) error {
	return s.tensors(ctx, allReduceGradients, -1, grads)
}

func (s *AllReduce) BroadcastTensor(ctx context.Context, root int, t *tensor.Tensor) error {
	return s.tensors(ctx, broadcastTensor, root, map[string]*tensor.Tensor{"tensor": t})
}

func (s *AllReduce) BroadcastTensors(ctx context.Context, root int, ts map[string]*tensor.Tensor) error {
	return s.tensors(ctx, broadcastTensors, root, ts)
}

func (s *AllReduce) Barrier(ctx context.Context) error {
	return s.do(ctx, barrier, func(ctx context.Context) (int64, error) { return 0, s.comm.Barrier(ctx) })
}

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
		<-s.turn
	}
	trace.Record(ctx, s.trace, e)
	return e.Err
}

func (s *AllReduce) begin(ctx context.Context, op string) error {
	select {
	case s.turn <- struct{}{}: // also if ctx has ended, which the Comm tells all
	default:
		select {
		case s.turn <- struct{}{}:
		case <-ctx.Done():
			err := s.fail(op, fmt.Errorf("another call was in progress: %w", context.Cause(ctx)))
			s.comm.Group().Abort(err)
			return err
		}
	}
	if s.closed && op != shutdown {
		<-s.turn
		return s.fail(op, pgroup.ErrClosed)
	}
	return nil
}

func (s *AllReduce) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.comm.Group().Config().Timeout)
}

func (s *AllReduce) fail(op string, err error) error {
	return fmt.Errorf("strategy: %s of group %q on rank %d of %d: %w", op, s.group, s.Rank(), s.Size(), err)
}

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

func (s *AllReduce) step(ctx context.Context, p *plan, st *step, root int, ts map[string]*tensor.Tensor) error {
	parts := p.parts[st.from:st.to]
	if len(parts) == 1 {
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

var averages = map[tensor.DType]func(ctx context.Context, s *AllReduce, t *tensor.Tensor) error{
	tensor.F16: average[tensor.Float16], tensor.BF16: average[tensor.BFloat16], tensor.F32: average[float32], tensor.F64: average[float64],
	tensor.I8: average[int8], tensor.I16: average[int16], tensor.I32: average[int32], tensor.I64: average[int64],
	tensor.U8: average[uint8], tensor.U16: average[uint16], tensor.U32: average[uint32], tensor.U64: average[uint64],
}

func average[T tensor.Number](ctx context.Context, s *AllReduce, t *tensor.Tensor) error {
	if x, err := tensor.View[T](t); err == nil {
		return collective.AllReduce(ctx, s.comm, collective.Avg, x)
	}
	aligned := &tensor.Tensor{DType: t.DType, Shape: t.Shape, Data: s.roomFor(len(t.Data))}
	x, err := tensor.View[T](aligned)
	if err != nil {
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

func (s *AllReduce) roomFor(n int) []byte {
	if len(s.room) < n {
		s.room = tensor.New(tensor.U64, (n+7)/8).Data
	}
	return s.room[:n]
}
