package etcdstore

import (
	"fmt"

	"github.com/muster-pg/muster/wire"
)

// Keys are those of a generation whose ranks have all been in a barrier, and all but one have come to the next one: as ranks would have
// put them there. Seats are those that are to be under a lease.
func Keys(root string, gen uint64, group string, size, missing int) (others, seats map[string]string) {
	k := keys(root)
	g := k.generation(gen)
	name := k.roll(&wire.Contribution{Group: group})
	r := roll{gen: gen, name: name, labels: make([]string, size), members: make([][]byte, size)}
	call := wire.Request{Op: wire.OpCollect, Group: wire.Contribution{Verb: "barrier", Root: -1, Want: wire.WantNothing}}
	ch := g.channel("")
	hash := callOf(&call.Group, 0)
	others = map[string]string{
		k.listed(gen): name, name: complete(gen), ch.calls + hash: string(wire.AppendRequest(nil, &call)),
		ch.verdict(1): encodeVerdict(wire.Reply{Verdict: &wire.Verdict{By: -1, Clash: []wire.Contribution{call.Group}}}),
	}
	seats = map[string]string{}
	for rank := range size {
		r.labels[rank], r.members[rank] = fmt.Sprint("pid ", rank), make([]byte, 100)
		seats[g.seat(rank)] = string(make([]byte, 200))
		seq := uint64(2)
		if rank == missing {
			seq = 1
		}
		others[ch.votes+hash+"/"+short(rank)] = hex(seq)
	}
	others[g.rolled()] = r.encode()
	return others, seats
}

// Tally counts as Status does.
type Tally struct{ tally }

func (t *Tally) Count(ask func() (int64, error)) (int64, error) { return t.count(ask) }
