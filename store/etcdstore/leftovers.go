package etcdstore

import (
	"context"
	"math/rand/v2"
)

// A generation takes its keys with it when the last of its ranks says goodbye. Ranks that are killed say nothing: so whoever completes a
// generation looks at some of those before it, and takes out what nobody has a seat in any more. However many jobs crash, what they leave
// does not grow with them.

// swept is at how many generations it looks. With more than one, leftovers become fewer.
const swept = 8

// sweep takes out leftovers of generations before gen. If it cannot, the next one does.
func (e *Engine) sweep(ctx context.Context, gen uint64) {
	k := e.root
	resp, err := e.get(ctx, k.listed(rand.Uint64N(gen)), upTo(k.listed(gen)), atMost(swept))
	if err != nil {
		return
	}
	var outs []op
	for _, kv := range resp.Kvs {
		outs = append(outs, k.takeOut(lastNumber(kv.Key), string(kv.Value)))
	}
	if len(outs) > 0 {
		_, _ = e.txn(ctx, nil, outs, nil)
	}
}

// takeOut takes a generation of a name out, if all of its ranks have gone.
func (k keys) takeOut(gen uint64, name string) op {
	g := k.generation(gen)
	then := []op{opDelete(string(g), prefixed), opDelete(k.listed(gen))}
	if name != "" {
		then = append(then, opTxn([]cond{valueIs(name, complete(gen))}, []op{opDelete(name)}, nil))
	}
	nobody := opTxn([]cond{absent(g.seats(), prefixed)}, then, nil) // no value is that of a key that is not there
	return opTxn([]cond{valueIs(g.seats(), leftSeat, prefixed)}, then, []op{nobody})
}
