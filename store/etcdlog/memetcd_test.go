package etcdlog_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// TestMemetcdIsLikeEtcd sends the same random requests, of the kinds that this package uses, to an
// etcd and to the simulation's etcd in memory, and checks that their answers and watch events are
// equal.
func TestMemetcdIsLikeEtcd(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	memory := newMemEtcd()
	played, real := memory.Client(direct{}), client(t, etcd(t))
	first, err := real.Get(ctx, "none")
	require.NoError(t, err)
	require.Equal(t, first.Header.Revision, memory.Revision(), "both are fresh")
	watched := make(chan []string, 2)
	for _, c := range []*clientv3.Client{played, real} {
		changes := c.Watch(ctx, "k/", clientv3.WithPrefix(), clientv3.WithRev(2))
		go func() { watched <- events(changes) }()
	}

	chance := rand.New(rand.NewPCG(1, 2))
	key := func() string { return fmt.Sprint("k/", chance.IntN(6)) }
	revision := func() int64 { return 1 + chance.Int64N(memory.Revision()) }
	get := func() clientv3.Op {
		switch chance.IntN(3) {
		case 0:
			return clientv3.OpGet(key(), clientv3.WithKeysOnly())
		case 1:
			return clientv3.OpGet("k/", clientv3.WithPrefix(), clientv3.WithLimit(1+chance.Int64N(4)))
		}
		return clientv3.OpGet("k/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	}
	change := func(key string) clientv3.Op {
		switch chance.IntN(4) {
		case 0:
			return clientv3.OpDelete(key)
		case 1:
			return clientv3.OpDelete(key, clientv3.WithRange(key+"/x"))
		}
		return clientv3.OpPut(key, fmt.Sprint(chance.IntN(100)))
	}
	both := func(op clientv3.Op) {
		want, wantErr := real.Do(ctx, op)
		got, gotErr := played.Do(ctx, op)
		require.Equal(t, fmt.Sprint(wantErr), fmt.Sprint(gotErr))
		if wantErr == nil {
			require.Equal(t, answer(want), answer(got))
		}
	}
	for range 2000 {
		switch chance.IntN(20) {
		case 0:
			rev := revision() / 2
			if _, err := real.Compact(ctx, rev); err == nil {
				memory.Compact(rev)
			}
		case 1, 2, 3:
			both(get())
		case 4, 5, 6:
			both(clientv3.OpGet(key(), clientv3.WithRange(key()), clientv3.WithRev(revision())))
		default:
			n := chance.IntN(6)
			target := []func(string) clientv3.Cmp{clientv3.ModRevision, clientv3.CreateRevision}[chance.IntN(2)]
			cmp := clientv3.Compare(target(key()), []string{"=", ">"}[chance.IntN(2)], revision()-1)
			both(clientv3.OpTxn([]clientv3.Cmp{cmp}, []clientv3.Op{change(fmt.Sprint("k/", n)), get(), change(fmt.Sprint("k/", (n+1)%6))}, []clientv3.Op{change(key()), get()}))
		}
	}
	both(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("k/", "end")}, nil))
	require.Equal(t, <-watched, <-watched)
}

// headers are parts of answers that differ from cluster to cluster.
var headers = regexp.MustCompile(`header:\{[^}]*\} *`)

// answer formats the response to a read or a transaction.
func answer(r clientv3.OpResponse) string {
	if get := r.Get(); get != nil {
		return headers.ReplaceAllString((*pb.RangeResponse)(get).String(), "")
	}
	txn := (*pb.TxnResponse)(r.Txn())
	return fmt.Sprint(txn.Header.Revision, headers.ReplaceAllString(txn.String(), ""))
}

// events returns the events of a watch up to the value "end", and the error that ends it earlier.
func events(changes clientv3.WatchChan) (all []string) {
	for resp := range changes {
		if resp.Canceled {
			return append(all, fmt.Sprint(resp.Err()))
		}
		for _, e := range resp.Events {
			all = append(all, fmt.Sprint(e.Type, " ", e.Kv))
			if string(e.Kv.Value) == "end" {
				return all
			}
		}
	}
	return append(all, "it has ended")
}
