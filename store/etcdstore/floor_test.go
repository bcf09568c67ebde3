package etcdstore_test

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func BenchmarkFloor(b *testing.B) {
	members := etcd(b, 1, "--data-dir", b.TempDir())
	n := 8
	cs := make([]*clientv3.Client, n)
	ws := make([]clientv3.WatchChan, n)
	for i := range cs {
		cs[i], _ = clientv3.New(clientv3.Config{Endpoints: addresses(members), Logger: zap.NewNop()})
		defer cs[i].Close()
		ws[i] = cs[i].Watch(b.Context(), "v/", clientv3.WithPrefix())
	}
	var barriers, puts []time.Duration
	for seq := 0; b.Loop(); seq++ {
		began := time.Now()
		each(n, func(i int) {
			then := []clientv3.Op{clientv3.OpPut(fmt.Sprintf("b/%d", i), fmt.Sprint(seq))}
			verdict := clientv3.OpPut("v/", fmt.Sprint(seq))
			var when []clientv3.Cmp
			if i > 0 {
				when = append(when, clientv3.Compare(clientv3.Value("b/").WithRange(fmt.Sprintf("b/%d", i)), "=", fmt.Sprint(seq)))
			}
			if i < n-1 {
				when = append(when, clientv3.Compare(clientv3.Value(fmt.Sprintf("b/%d", i+1)).WithRange("b0"), "=", fmt.Sprint(seq)))
			}
			then = append(then, clientv3.OpTxn(when, []clientv3.Op{verdict}, nil))
			resp, err := cs[i].Txn(b.Context()).Then(then...).Commit()
			if err != nil || !resp.Succeeded {
				b.Error(err)
			}
			if seq == 0 && i == 0 {
				_, _ = cs[i].Put(b.Context(), "v/", "0")
			}
			<-ws[i]
		})
		barriers = append(barriers, time.Since(began))
		began = time.Now()
		_, _ = cs[0].Put(b.Context(), "plain", "value")
		puts = append(puts, time.Since(began))
		if seq == 0 {
			<-time.After(100 * time.Millisecond)
			for _, w := range ws {
				select {
				case <-w:
				default:
				}
			}
		}
	}
	barrier, put := median(barriers), median(puts)
	b.ReportMetric(float64(barrier.Microseconds()), "µs/barrier")
	b.ReportMetric(float64(put.Microseconds()), "µs/put")
	b.ReportMetric(float64(barrier)/float64(put), "puts/barrier")
}
