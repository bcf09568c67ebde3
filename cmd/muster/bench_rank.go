package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net"
	"slices"
	"time"

	"github.com/muster-pg/muster/internal/benchcase"
	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/pgroup"
	"github.com/spf13/cobra"
)

const (
	benchFirst = 20 // operations of the first round, which is not counted
	// duration of a round; between rounds rank 0 decides the length of the next
	benchRound = 100 * time.Millisecond
)

// benchSpec is the job that the ranks receive.
type benchSpec struct {
	Sizes []int         `json:"sizes"`
	Time  time.Duration `json:"time"`
	Cases []string      `json:"cases"`
	// whether the launcher hosts the group's store; otherwise rank 0 does
	Launcher bool `json:"launcher"`
}

// benchReport is the result of one rank in one case.
type benchReport struct {
	Rank  int           `json:"rank"`
	Case  string        `json:"case"`
	Size  int           `json:"size"` // 0 if the case has no size
	Took  time.Duration `json:"took"`
	Times histogram     `json:"times"`
}

func newBenchRank() *cobra.Command {
	return &cobra.Command{
		Use: "bench-rank SPEC", Hidden: true, Short: "One of the processes of bench", Args: operands("SPEC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			launch.ExitWithParent()
			var spec benchSpec
			if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
				return usagef(cmd, "SPEC: %v", err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), spec.limit())
			defer cancel()
			return benchRank(ctx, spec, cmd.OutOrStdout())
		},
	}
}

// limit returns the timeout for all cases, which is far more than they need.
func (s benchSpec) limit() time.Duration {
	return 30*time.Second + 5*time.Duration(s.rounds())*(s.Time+time.Second)
}

// rounds returns how many results a group produces.
func (s benchSpec) rounds() (n int) {
	for range s.each() {
		n++
	}
	return n
}

// each iterates over the cases with each size. A case without a size occurs once.
func (s benchSpec) each() iter.Seq2[int, *benchcase.Case] {
	return func(yield func(int, *benchcase.Case) bool) {
		for later, size := range s.Sizes {
			for i := range benchcase.All {
				c := &benchcase.All[i]
				if !slices.Contains(s.Cases, c.Name) || later > 0 && !c.Sized {
					continue
				}
				if !yield(size, c) {
					return
				}
			}
		}
	}
}

// benchProcess is one rank of the benchmark.
type benchProcess struct {
	benchcase.Rank // the rank; its store is that of the launcher
	spec           benchSpec
}

func benchRank(ctx context.Context, spec benchSpec, out io.Writer) error {
	cfg, err := pgroup.FromEnv()
	if err != nil {
		return err
	}
	cfg.Schemes = schemes()
	b := &benchProcess{spec: spec, Rank: benchcase.Rank{Key: fmt.Sprintf("bench/%d", cfg.Rank)}}
	if b.Store, err = schemes().Open(ctx, cfg.Address); err != nil {
		return err
	}
	defer b.Store.Close()
	if err := b.join(ctx, cfg); err != nil {
		return err
	}
	defer b.Group.Close()
	for size, c := range spec.each() {
		b.Object = bytes.Repeat([]byte{7}, size)
		r, err := b.measure(ctx, c)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		if err := report(out, r); err != nil {
			return err
		}
	}
	return b.Group.Shutdown(ctx)
}

// join forms the group. If rank 0 hosts it, the others get its address from the launcher's store,
// so that no free port must be guessed.
func (b *benchProcess) join(ctx context.Context, cfg pgroup.Config) (err error) {
	const where = "bench/address"
	switch {
	case b.spec.Launcher:
	case cfg.Rank == 0:
		if cfg.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return err
		}
		cfg.Address = ""
		if err := b.Store.Set(ctx, where, []byte(cfg.Listener.Addr().String()), nil); err != nil {
			return err
		}
	default:
		values, err := b.Store.Wait(ctx, where)
		if err != nil {
			return err
		}
		cfg.Address = string(values[0])
	}
	b.Group, err = pgroup.Create(ctx, cfg)
	return err
}

// measure runs rounds of a case until rank 0 decides that its time is over. The first round is not
// counted.
func (b *benchProcess) measure(ctx context.Context, c *benchcase.Case) (benchReport, error) {
	r := benchReport{Rank: b.Group.Rank(), Case: c.Name}
	if c.Sized {
		r.Size = len(b.Object)
	}
	if err := b.Store.Set(ctx, b.Key, b.Object, nil); err != nil {
		return r, err
	}
	var warm histogram
	count, took, err := benchFirst, time.Duration(0), error(nil)
	for times := &warm; ; times = &r.Times {
		if times == &r.Times {
			count = b.next(count, took, r.Took)
			if count, err = pgroup.Broadcast(ctx, b.Group, 0, count); err != nil || count == 0 {
				return r, err
			}
		}
		if took, err = b.round(ctx, c, count, times); err != nil {
			return r, err
		}
		if times == &r.Times {
			r.Took += took
		}
	}
}

// next returns how many operations the next round has; 0 means that there is none.
func (b *benchProcess) next(count int, took, total time.Duration) int {
	left := b.spec.Time - total
	if left <= 0 {
		return 0
	}
	each := max(took/time.Duration(count), 1)
	return int(min(max(min(left, benchRound)/each, 1), time.Duration(100*count)))
}

func (b *benchProcess) round(ctx context.Context, c *benchcase.Case, count int, times *histogram) (time.Duration, error) {
	start := time.Now()
	last := start
	for range count {
		if err := c.Run(ctx, &b.Rank); err != nil {
			return 0, err
		}
		now := time.Now()
		times.add(now.Sub(last))
		last = now
	}
	return last.Sub(start), nil
}
