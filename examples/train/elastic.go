package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/muster-pg/muster/dataparallel"
	"github.com/muster-pg/muster/tensor"
)

// runElastic runs one worker of an elastic job. A worker that starts again receives the weights from the
// others.
func (o *options) runElastic(ctx context.Context, out io.Writer) (err error) {
	data, err := load(o.data)
	if err != nil {
		return err
	}
	if o.batch > len(data.train) {
		return fmt.Errorf("-batch %d is more than the %d examples that there are to learn from", o.batch, len(data.train))
	}
	node, err := dataparallel.WorkerFromEnv()
	if err != nil {
		return err
	}
	defer node.Close()
	log, err := newMemberLog(o.logs, node.Worker.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.close()) }()
	t := newTrainer(o, data)
	t.net.draw(seed)
	var death *time.Timer
	if o.life > 0 {
		death = time.AfterFunc(o.life/2+rand.N(o.life), killSelf)
	}
	err = node.Train(ctx, t.training(node, log))
	if death != nil {
		death.Stop()
	}
	if errors.Is(err, dataparallel.ErrFinished) { // a standby
		fmt.Fprintln(out, "the others have finished")
		return nil
	}
	if err != nil {
		return err
	}
	right, of := t.net.right(data.heldOut), len(data.heldOut)
	fmt.Fprintf(out, "%s: held out: %d of %d right, %.1f %%; weights: sha256 %s\n", node.Worker.ID, right, of, 100*float64(right)/float64(of), t.checksum())
	if o.plot == "" || node.Rank() != 0 {
		return nil
	}
	logs, err := readMemberLogs(o.logs)
	if err != nil {
		return err
	}
	return drawMembers(o.plot, logs)
}

// training returns the loop of t. All that a step changes is the weights and their velocity.
func (t *trainer) training(node *dataparallel.WorkerNode, log *memberLog) *dataparallel.Training {
	state := map[string]*tensor.Tensor{"velocity": tensor.From(t.sgd.velocity)}
	maps.Copy(state, t.net.tensors())
	b := batches{n: len(t.data.train), size: t.batch}
	loop := &dataparallel.Training{Goal: int64(t.steps), Tensors: state}
	var loss float64
	loop.Step = func(ctx context.Context, s *dataparallel.Strategy) (err error) {
		select {
		case <-time.After(t.pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		t.comm, t.dp = node.Comm(), s
		loss, err = t.step(ctx, b.of(int(loop.Completed)))
		return err
	}
	loop.After = func(_ context.Context, s *dataparallel.Strategy) error {
		return log.add(entry{time.Now(), int(loop.Completed), loss, s.Size()})
	}
	return loop
}

func killSelf() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }

// entry is a step that a worker has completed.
type entry struct {
	at   time.Time
	step int
	loss float64
	size int // of the view
}

// memberLog is the file of a worker's entries.
type memberLog struct{ file *os.File }

// newMemberLog creates the log of a worker in dir; "" means none.
func newMemberLog(dir, worker string) (*memberLog, error) {
	if dir == "" {
		return &memberLog{}, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(dir, filepath.Base(worker)+".log"))
	return &memberLog{f}, err
}

// add writes one line. It has no buffer: the worker may be killed.
func (l *memberLog) add(e entry) error {
	if l.file == nil {
		return nil
	}
	_, err := fmt.Fprintf(l.file, "%d %d %v %d\n", e.at.UnixMicro(), e.step, e.loss, e.size)
	return err
}

func (l *memberLog) close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}

// readMemberLogs returns the entries of all workers that have completed a step, in no order.
func readMemberLogs(dir string) (logs [][]entry, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		es, err := readMemberLog(name)
		if err != nil {
			return nil, err
		}
		if len(es) > 0 {
			logs = append(logs, es)
		}
	}
	return logs, nil
}

func readMemberLog(name string) (es []entry, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for {
		var micros int64
		var e entry
		n, err := fmt.Fscanf(f, "%d %d %g %d\n", &micros, &e.step, &e.loss, &e.size)
		switch {
		case errors.Is(err, io.EOF), n > 0 && errors.Is(err, io.ErrUnexpectedEOF): // its worker was killed
			return es, nil
		case err != nil:
			return nil, fmt.Errorf("%s: entry %d: %w", name, len(es)+1, err)
		}
		e.at = time.UnixMicro(micros)
		es = append(es, e)
	}
}
