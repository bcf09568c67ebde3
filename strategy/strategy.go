// Package strategy keeps the replicas of a model together: it averages gradients over all ranks, and spreads weights from one.
//
//	s := strategy.New(comm, nil)
//	err := s.AllReduceGradients(ctx, grads) // in place; the same bits on every rank
package strategy

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/tensor"
)

// Options has defaults for nil.
type Options struct {
	// BucketBytes is how much of small tensors is reduced at once; default 4 MiB. A tensor of that size or more is reduced where it is.
	BucketBytes int
}

// AllReduce is data parallelism over a Comm, which says how: flat, or by host. Many goroutines may use it, one at a time is served.
type AllReduce struct {
	comm    *collective.Comm
	bucket  int
	mu      sync.Mutex // protects room, and keeps verbs apart
	room    map[tensor.DType][]byte
	closed  atomic.Bool
	closing sync.Once
}

const defaultBucket = 4 << 20

// New makes a strategy of c, which it owns: Shutdown closes it.
func New(c *collective.Comm, o *Options) *AllReduce {
	s := &AllReduce{comm: c, bucket: defaultBucket, room: map[tensor.DType][]byte{}}
	if o != nil && o.BucketBytes > 0 {
		s.bucket = o.BucketBytes
	}
	return s
}

// Rank is this process's number.
func (s *AllReduce) Rank() int { return s.comm.Group().Rank() }

// Size is the number of ranks.
func (s *AllReduce) Size() int { return s.comm.Group().Size() }

// Barrier returns when all ranks have called it.
func (s *AllReduce) Barrier(ctx context.Context) error { return s.comm.Barrier(ctx) }

// Shutdown waits until all ranks have called it, and closes the Comm. It may be called twice.
func (s *AllReduce) Shutdown(ctx context.Context) (err error) {
	s.closing.Do(func() {
		s.closed.Store(true)
		err = errors.Join(s.comm.Barrier(ctx), s.comm.Close())
	})
	return err
}

// AllReduceGradients replaces each gradient by its average over all ranks. All ranks pass the same names, with the same dtypes and shapes; it is
// an error on all of them, which says what differs, if they do not.
func (s *AllReduce) AllReduceGradients(ctx context.Context, grads map[string]*tensor.Tensor) error {
	return s.each(ctx, "AllReduceGradients", grads, func(ctx context.Context, dt tensor.DType, data []byte) error {
		return reduceBytes(ctx, s.comm, dt, data)
	})
}

// BroadcastTensor brings t of root to all ranks.
func (s *AllReduce) BroadcastTensor(ctx context.Context, root int, t *tensor.Tensor) error {
	return s.BroadcastTensors(ctx, root, map[string]*tensor.Tensor{"tensor": t})
}

// BroadcastTensors brings ts of root to all ranks, which have the same names, dtypes and shapes.
func (s *AllReduce) BroadcastTensors(ctx context.Context, root int, ts map[string]*tensor.Tensor) error {
	if root < 0 || root >= s.Size() {
		return fmt.Errorf("strategy: BroadcastTensors on rank %d: there is no rank %d in a group of %d: %w", s.Rank(), root, s.Size(), pgroup.ErrInvalid)
	}
	return s.each(ctx, fmt.Sprint("BroadcastTensors from ", root), ts, func(ctx context.Context, _ tensor.DType, data []byte) error {
		return collective.Broadcast(ctx, s.comm, root, data)
	})
}

// each calls f with the data of all tensors: of large ones where they are, of small ones many at once.
func (s *AllReduce) each(ctx context.Context, op string, ts map[string]*tensor.Tensor, f func(ctx context.Context, dt tensor.DType, data []byte) error) error {
	if s.closed.Load() {
		return fmt.Errorf("strategy: %s on rank %d: %w", op, s.Rank(), pgroup.ErrClosed)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	names, err := s.agree(ctx, op, ts)
	if err != nil {
		return err
	}
	var small []*tensor.Tensor // of one dtype, that fit into a bucket
	size := 0
	flush := func() error {
		if len(small) == 0 {
			return nil
		}
		b := s.roomFor(small[0].DType, size)
		at := 0
		for _, t := range small {
			at += copy(b[at:], t.Data)
		}
		if err := f(ctx, small[0].DType, b); err != nil {
			return err
		}
		at = 0
		for _, t := range small {
			at += copy(t.Data, b[at:])
		}
		small, size = small[:0], 0
		return nil
	}
	for _, name := range names {
		t := ts[name]
		if len(t.Data) >= s.bucket {
			if err := f(ctx, t.DType, t.Data); err != nil {
				return err
			}
			continue
		}
		if len(small) > 0 && (small[0].DType != t.DType || size+len(t.Data) > s.bucket) {
			if err := flush(); err != nil {
				return err
			}
		}
		small, size = append(small, t), size+len(t.Data)
	}
	return flush()
}

// roomFor is a bucket's memory, which is used again.
func (s *AllReduce) roomFor(dt tensor.DType, n int) []byte {
	if len(s.room[dt]) < n {
		s.room[dt] = tensor.New(tensor.U64, (max(n, s.bucket)+7)/8).Data // aligned for all
	}
	return s.room[dt][:n]
}

// agree returns the names in the order in which all ranks take them: by dtype, then by name.
func (s *AllReduce) agree(ctx context.Context, op string, ts map[string]*tensor.Tensor) ([]string, error) {
	names, bad := inOrder(ts)
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %v\n", op, bad)
	for _, name := range names {
		fmt.Fprintf(h, "%q %v\n", name, ts[name])
	}
	all := make([]uint64, s.Size())
	if err := collective.AllGather(ctx, s.comm, all, []uint64{h.Sum64()}); err != nil {
		return nil, err
	}
	if bad == nil && !slices.ContainsFunc(all, func(sum uint64) bool { return sum != all[0] }) {
		return names, nil
	}
	return nil, s.explain(ctx, op, ts, names, bad)
}

// inOrder are the names by dtype, then by name; or what is wrong with a tensor.
func inOrder(ts map[string]*tensor.Tensor) ([]string, error) {
	names := make([]string, 0, len(ts))
	for name, t := range ts {
		if t == nil {
			return nil, fmt.Errorf("%q is nil", name)
		}
		if err := t.Check(); err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		if !reducible(t.DType) {
			return nil, fmt.Errorf("%q is of %v, which cannot be averaged", name, t.DType)
		}
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if d := int(ts[a].DType) - int(ts[b].DType); d != 0 {
			return d
		}
		if a < b {
			return -1
		}
		return 1
	})
	return names, nil
}

// explain says what differs, on all ranks alike.
func (s *AllReduce) explain(ctx context.Context, op string, ts map[string]*tensor.Tensor, names []string, bad error) error {
	mine := []string{op}
	if bad != nil {
		mine = append(mine, "! "+bad.Error())
	}
	for _, name := range names {
		mine = append(mine, fmt.Sprintf("%q %v", name, ts[name]))
	}
	all, err := pgroup.AllGather(ctx, s.comm.Group().Channel("strategy"), mine)
	if err != nil {
		return err
	}
	return fmt.Errorf("strategy: %s on rank %d: %s: %w", op, s.Rank(), difference(all), pgroup.ErrMismatch)
}

// difference is the first thing in which a rank differs from rank 0.
func difference(all [][]string) string {
	for rank, list := range all {
		for _, line := range list[1:] {
			if line[0] == '!' {
				return fmt.Sprintf("rank %d: %s", rank, line[2:])
			}
		}
	}
	for rank, list := range all {
		if list[0] != all[0][0] {
			return fmt.Sprintf("rank %d calls %s, and rank 0 %s", rank, list[0], all[0][0])
		}
		for _, line := range list[1:] {
			if !slices.Contains(all[0], line) {
				return fmt.Sprintf("rank %d has %s, and rank 0 has not", rank, line)
			}
		}
		for _, line := range all[0][1:] {
			if !slices.Contains(list, line) {
				return fmt.Sprintf("rank 0 has %s, and rank %d has not", line, rank)
			}
		}
	}
	return "ranks pass different tensors"
}
