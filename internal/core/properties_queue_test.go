package core_test

import (
	"encoding/binary"
	"fmt"

	"github.com/muster-pg/muster/wire"
)

// queue models the values of a queue, in order. The store also shows them as entries.
type queue struct {
	first  uint64 // the number of values[0]
	values [][]byte
}

func queueHead(name string) string { return name + "\x00queue" }

func queuedKey(name string, number uint64) string {
	return fmt.Sprintf("%s\x00queue/%016x", name, number)
}

func (q *queue) head() []byte {
	b := binary.LittleEndian.AppendUint64(nil, q.first)
	return binary.LittleEndian.AppendUint64(b, q.first+uint64(len(q.values)))
}

func (k *keys) push(a *audit, req *wire.Request, rep *wire.Reply) {
	q := k.queues[req.Key]
	if q == nil {
		q = &queue{}
		k.queues[req.Key] = q
	}
	k.put(queuedKey(req.Key, q.first+uint64(len(q.values))), req.Value, a.now)
	q.values = append(q.values, req.Value)
	rep.Rev = k.put(queueHead(req.Key), q.head(), a.now).rev
	rep.N = int64(len(q.values))
	a.w.tally["values pushed"]++
}

func (k *keys) pop(a *audit, req *wire.Request, rep *wire.Reply) {
	q := k.queues[req.Key]
	if q == nil {
		rep.Code = wire.CodeNotFound
		return
	}
	value := queuedKey(req.Key, q.first)
	rep.Value, rep.N = q.values[0], int64(len(q.values))
	q.first++
	if q.values = q.values[1:]; len(q.values) == 0 {
		delete(k.queues, req.Key)
		k.remove(queueHead(req.Key), wire.ChangeDelete)
	} else {
		k.put(queueHead(req.Key), q.head(), a.now)
	}
	k.remove(value, wire.ChangeDelete)
	rep.Rev = k.rev
	a.w.tally["values popped"]++
}

// k3GivenOnce checks K3: no two pops return the same value, even if connections break and servers
// restart in between. The values that are pushed are all different.
func k3GivenOnce(w *world, rep *wire.Reply) {
	value := string(rep.Value)
	if w.popped[value] {
		breaks("K3 a queue gives each value once", "%q is given a second time", value)
	}
	w.popped[value] = true
}
