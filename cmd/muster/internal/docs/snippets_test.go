// Package docs_test has the Go code that README.md and docs/ show, so that it is compiled.
package docs_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log"
	"net/http"
	"time"

	"github.com/muster-pg/muster/collective"
	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/internal/core"
	"github.com/muster-pg/muster/interop/tcpstore"
	"github.com/muster-pg/muster/interop/vllm"
	"github.com/muster-pg/muster/membership"
	"github.com/muster-pg/muster/pgroup"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdlog"
	"github.com/muster-pg/muster/telemetry/metrics"
	"github.com/muster-pg/muster/telemetry/prom"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/wire"
)

var _ = []any{
	handleAFailure, withoutALauncher, groupsWithinTheJob, overEtcd, aStoreOfPython, rankZeroOfVLLM,
	anotherRankOfVLLM, averageSlices, averageModel, weighted, overlapped, sharded, elastic, elasticTraining, elasticCheckpoints, numbers, records, drive,
}

func handleAFailure(ctx context.Context, g *pgroup.Group) error {
	err := g.Barrier(ctx)
	if re, ok := errors.AsType[*pgroup.RankError](err); ok && errors.Is(err, pgroup.ErrLost) {
		log.Print(re.Lost)       // [2], on every rank
		g2, err := g.Shrink(ctx) // the survivors, as ranks 0 to Size-2
		if err != nil {
			return err
		}
		g = g2
	}
	return g.Close()
}

func withoutALauncher(ctx context.Context, rank, size int) (*pgroup.Group, error) {
	g, err := pgroup.Create(ctx, pgroup.Config{Rank: rank, Size: size, Address: "10.0.0.5:29500"})
	return g, err
}

func groupsWithinTheJob(ctx context.Context, g *pgroup.Group) error {
	pair, err := g.Sub(ctx, "pair", 0, 3) // called by ranks 0 and 3 only
	if err != nil {
		return err
	}
	half, err := g.Split(ctx, g.Rank()%2, g.Rank()) // called by all ranks
	return errors.Join(pair.Close(), half.Close(), err)
}

func overEtcd(ctx context.Context, rank, size int) (*pgroup.Group, error) {
	schemes := store.Builtin()
	schemes["etcd"], schemes["etcds"] = etcdlog.Open, etcdlog.Open
	g, err := pgroup.Create(ctx, pgroup.Config{
		Address: "etcd://etcd-1:2379/jobs", Schemes: schemes, Rank: rank, Size: size,
	})
	return g, err
}

func aStoreOfPython(ctx context.Context) (*store.Store, error) {
	schemes := store.Builtin()
	schemes["tcp"] = tcpstore.Open
	s, err := schemes.Open(ctx, "tcp://10.0.0.1:29500?join=true")
	return s, err
}

func rankZeroOfVLLM(ctx context.Context) error {
	l, err := store.Listen(ctx, "127.0.0.1:29500")
	if err != nil {
		return err
	}
	engine := new(store.Memory)
	torch := &tcpstore.Protocol{
		TTL: []tcpstore.Rule{{Prefix: "", TTL: time.Hour}}, // keys that Python sets expire
		// Python ranks detect failed Python ranks by these keys.
		Ranks: []string{"broadcast_from/{rank}/*", "broadcast_tensor/{rank}/*"},
	}
	srv := &store.Server{Engine: engine, Protocol: torch}
	go func() { log.Print(srv.Serve(l)) }()
	// Join returns when all 4 ranks have joined.
	g, err := vllm.Join(ctx, vllm.Config{Rank: 0, Size: 4, Store: store.New(engine)})
	return errors.Join(g.Close(), err)
}

func anotherRankOfVLLM(ctx context.Context) error {
	// Without Options.Join: vllm.Join counts this rank.
	c, err := tcpstore.Dial(ctx, "127.0.0.1:29500", nil)
	if err != nil {
		return err
	}
	g, err := vllm.Join(ctx, vllm.Config{Rank: 1, Size: 4, Store: store.New(c)})
	return errors.Join(g.Close(), err)
}

func weighted(ctx context.Context, g *pgroup.Group, s *dataparallel.Strategy, grads map[string]*tensor.Tensor, examples []int, scale func(map[string]*tensor.Tensor, float32)) error {
	total, err := pgroup.AllReduce(ctx, g, pgroup.Sum, len(examples))
	if err != nil {
		return err
	}
	scale(grads, float32(len(examples)*g.Size())/float32(total[0]))
	err = s.AllReduceGradients(ctx, grads)
	return err
}

func overlapped(ctx context.Context, s *dataparallel.Strategy, grads map[string]*tensor.Tensor, backward func(map[string]*tensor.Tensor) iter.Seq[string]) error {
	a, err := s.StartGradients(ctx, grads)
	if err != nil {
		return err
	}
	for name := range backward(grads) { // yields the names of gradients when they are computed
		a.Ready(name)
	}
	err = a.Wait(ctx)
	return err
}

func sharded(ctx context.Context, c *collective.Comm, params, grads, part, velocity []float32) error {
	if err := collective.ReduceScatter(ctx, c, collective.Avg, part, grads); err != nil {
		return err
	}
	own := params[c.Group().Rank()*len(part):][:len(part)]
	for i, g := range part { // averaged over all ranks
		velocity[i] = 0.9*velocity[i] + g
		own[i] -= 0.1 * velocity[i]
	}
	return collective.AllGather(ctx, c, params, own) // own is this rank's part of it
}

func averageSlices(ctx context.Context, g *pgroup.Group, grads []float32) error {
	c, err := collective.Open(ctx, g, nil) // on every rank: shared memory on a host, TCP between hosts
	if err != nil {
		return err
	}
	defer c.Close()
	err = collective.AllReduce(ctx, c, collective.Avg, grads) // []float32, in place; any number type
	return err
}

func averageModel(ctx context.Context, g *pgroup.Group, params, grads map[string]*tensor.Tensor) error {
	c, err := collective.Open(ctx, g, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	s := dataparallel.New(c, nil)
	err = s.BroadcastTensors(ctx, 0, params)
	if err != nil {
		return err
	}
	err = s.AllReduceGradients(ctx, grads) // map[string]*tensor.Tensor
	return err
}

func elastic(ctx context.Context, s *store.Store, host, addr string, train func(context.Context, *pgroup.Group) error) error {
	config := membership.Config{Job: "train", ID: host, Addr: addr, Min: 2, Max: 8}
	m, err := membership.Join(ctx, s, config)
	if err != nil {
		return err
	}
	defer m.Close()
	for {
		view, err := m.Next(ctx) // returns when there are enough workers
		if err != nil {
			return err
		}
		g, err := pgroup.Create(view.Context(ctx), view.Config())
		if err == nil {
			err = train(view.Context(ctx), g)
		}
		if err == nil {
			return m.Leave(ctx)
		}
		if !view.Over(err) { // a failure of the program itself
			return err
		}
	}
}

func elasticTraining(ctx context.Context, params map[string]*tensor.Tensor, backward func(params map[string]*tensor.Tensor, batch []int) map[string]*tensor.Tensor,
	batch func(step int64, rank, size int) []int, update func(params, grads map[string]*tensor.Tensor),
) error {
	node, err := dataparallel.WorkerFromEnv()
	if err != nil {
		return err
	}
	defer node.Close()
	t := &dataparallel.Training{Goal: 10_000, Tensors: params} // weights, state of the optimizer
	t.Step = func(ctx context.Context, s *dataparallel.Strategy) error {
		grads := backward(params, batch(t.Completed, s.Rank(), s.Size()))
		err := s.AllReduceGradients(ctx, grads)
		if err == nil {
			update(params, grads) // after the last call of s
		}
		return err
	}
	err = node.Train(ctx, t)
	if errors.Is(err, dataparallel.ErrFinished) {
		return nil // this worker was a standby, or was cut off, and the others have finished
	}
	return err
}

func elasticCheckpoints(ctx context.Context, node *dataparallel.WorkerNode, t *dataparallel.Training, params map[string]*tensor.Tensor, save, load func(path string, params map[string]*tensor.Tensor) error) error {
	t.After = func(ctx context.Context, _ *dataparallel.Strategy) error {
		if t.Completed%100 != 0 {
			return nil
		}
		path := fmt.Sprintf("/ckpt/%d", t.Completed)
		return node.Checkpoint(ctx, t.Completed, path, func() error { return save(path, params) })
	}
	err := node.Start(ctx)
	if err != nil {
		return err
	}
	newest, err := node.Member().NewestCheckpoint(ctx)
	switch {
	case err == nil:
		t.Completed, err = newest.Epoch, load(newest.Path, params)
	case errors.Is(err, membership.ErrNotFound): // begin with step 0
		err = nil
	}
	return err
}

func numbers(s *store.Store, cfg pgroup.Config) error {
	sink, err := prom.New(nil, nil) // muster/telemetry/prom: counts what this process's ranks do
	if err != nil {
		return err
	}
	cfg.Trace = sink                                      // wherever a Config has a Sink
	http.Handle("GET /metrics", metrics.Handler(s, sink)) // muster/telemetry/metrics
	return nil
}

func records(g *pgroup.Group, loss float64) {
	g.Logger().Info("epoch", "loss", loss) // … group=train generation=7 rank=3 seq=4711 loss=0.31
}

func drive(m *core.Machine, now core.Time, session uint64, req wire.Request, rep wire.Reply, send func(any)) (bool, core.Time, bool) {
	answered := m.Apply(now, session, &req, &rep) // rep is the answer, or it follows later
	for _, e := range m.Effects() {               // answers to calls that were waiting
		send(e)
	}
	at, armed := m.Next() // call Tick then
	return answered, at, armed
}
