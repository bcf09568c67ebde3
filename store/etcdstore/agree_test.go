package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/store/etcdstore"
	"github.com/muster-pg/muster/wire"
)

// TestAgreement has ranks vote yes and no by chance, in records of several kinds, in one process and in several: of each record all hear
// the same.
func TestAgreement(t *testing.T) {
	const n, records = 3, 300
	addrs := addresses(etcd(t))
	for name, attempt := range map[string]time.Duration{"one engine": 0, "an engine each": 0, "requests that come twice, and late": 2 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			o := &etcdstore.Options{Root: newRoot(), Attempt: attempt}
			own := name != "one engine"
			shared := dial(t, addrs, &etcdstore.Options{Root: o.Root})
			heard := make([][]string, n)
			each(n, func(i int) {
				e := shared
				if own {
					e = dial(t, addrs, o)
				}
				heard[i] = voteByChance(t, store.New(e), i, n, records)
			})
			for seq := range records {
				for i := range n {
					require.Equal(t, heard[0][seq], heard[i][seq], "record %d, rank %d", seq+1, i)
				}
			}
		})
	}
}

func voteByChance(t *testing.T, s *store.Store, rank, n, records int) (heard []string) {
	roll, err := s.Join(bounded(t), wire.Contribution{Group: "g", Rank: rank, Size: n}, nil)
	require.NoError(t, err)
	all := rand.New(rand.NewPCG(1, 2)) // the same for all
	for seq := range uint64(records) {
		c := wire.Contribution{Generation: roll.Generation, Rank: rank, Seq: seq + 1, Root: -1, Verb: fmt.Sprint(all.IntN(12)), Want: wire.WantAll}
		if all.IntN(4) == 0 {
			c.No, c.Reason = wire.CodeFailed, "by chance"
		}
		if no := all.IntN(n); no != rank {
			c.No, c.Reason = wire.CodeOK, ""
		}
		payload := fmt.Sprint(seq, " of ", rank)
		values, err := s.Collect(bounded(t), c, []byte(payload))
		said := fmt.Sprintf("%s", values)
		if e, ok := errors.AsType[*store.Error](err); ok && e.Verdict != nil {
			said = fmt.Sprintf("%+v", *e.Verdict)
		} else if err != nil {
			said = err.Error()
		}
		heard = append(heard, said)
	}
	return heard
}

// TestShortDeadlines gives one rank a deadline that ends somewhere within the verb, by chance: it hears what the others hear, also when that
// is a success whose values it has still to fetch, and nobody waits for it.
func TestShortDeadlines(t *testing.T) {
	const n, records = 3, 200
	addrs := addresses(etcd(t))
	shared := store.New(dial(t, addrs, &etcdstore.Options{Root: newRoot()}))
	heard := make([][]string, n)
	each(n, func(i int) {
		roll, err := shared.Join(bounded(t), wire.Contribution{Group: "g", Rank: i, Size: n}, nil)
		require.NoError(t, err)
		for seq := range uint64(records) {
			ctx := bounded(t)
			if i == 1 && seq%2 == 1 {
				hurried, cancel := context.WithTimeout(ctx, rand.N(5*time.Millisecond))
				defer cancel()
				ctx = hurried
			}
			values, err := shared.Collect(ctx, wire.Contribution{Generation: roll.Generation, Rank: i, Seq: seq + 1, Root: -1, Want: wire.WantAll}, fmt.Append(nil, i))
			said := fmt.Sprintf("%s", values)
			if e, ok := errors.AsType[*store.Error](err); ok && e.Verdict != nil {
				said = fmt.Sprint(e.Code, e.Verdict.By, e.Verdict.Missing)
			} else if err != nil {
				said = err.Error()
			}
			heard[i] = append(heard[i], said)
		}
	})
	for seq := range records {
		require.Equal(t, heard[0][seq], heard[1][seq], "record %d", seq+1)
		require.Equal(t, heard[0][seq], heard[2][seq], "record %d", seq+1)
	}
	require.Contains(t, heard[0], "[0 1 2]")
}
