package core

import (
	"fmt"
	"hash/fnv"

	"github.com/muster-pg/muster/wire"
)

// summary is what the answer to a join says of a group as a whole: what each rank needs at once, and
// cannot get from its own node's ranks.
type summary struct {
	id    uint64 // see wire.Formed
	host  int    // -1: none
	nodes int
}

// summarize sets g.summary, and returns the ranks of each node, as the answers to their joins have
// them.
func (g *group) summarize() (byNode map[uint64]wire.RankSet) {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%d", g.key.name, g.key.run, g.gen)
	g.summary.host, byNode = -1, map[uint64]wire.RankSet{}
	for rank, info := range g.infos {
		_, _ = h.Write(info)
		node, hosts := wire.MemberNode(info)
		if hosts {
			g.summary.host = rank
		}
		byNode[node] = byNode[node].Append(rank)
	}
	g.summary.id, g.summary.nodes = max(h.Sum64(), 1), len(byNode)
	return byNode
}

// node returns the node of a rank.
func (g *group) node(rank int) uint64 {
	node, _ := wire.MemberNode(g.infos[rank])
	return node
}

// local returns the ranks on the node of rank.
func (g *group) local(rank int) (ranks wire.RankSet) {
	for other := range g.infos {
		if g.node(other) == g.node(rank) {
			ranks = ranks.Append(other)
		}
	}
	return ranks
}

// joinReply returns the answer to the ranks of one node, which have joined g. It has the infos of
// all members only if they are few: their bytes grow with the square of the size.
func (m *Machine) joinReply(g *group, local wire.RankSet) *wire.Reply {
	f := wire.Formed{Size: len(g.members), Host: g.summary.host, Nodes: g.summary.nodes, ID: g.summary.id, Local: local}
	rep := &wire.Reply{Rev: g.gen, Nums: wire.AppendFormed(nil, &f)}
	if len(g.members) <= m.bounds.inline {
		rep.Values = g.infos
	}
	return rep
}

// renumbered returns rep as the answer to a survivor, which has the given rank now.
func renumbered(rep *wire.Reply, rank int) *wire.Reply {
	own := *rep
	own.N = int64(rank) + 1
	return &own
}

// membersFrom returns the infos of the members from rank req.First on: req.Count of them, or all. They
// remain as they were when the group formed: also those of ranks that have left or failed, and of a
// group that is revoked, since its ranks may still ask which processes these were.
func (m *Machine) membersFrom(t Ticket, req *wire.Request, rep *wire.Reply) bool {
	g, _ := m.memberOf(t, &req.Group, rep)
	if g == nil {
		return true
	}
	if req.First < 0 || req.First > int64(len(g.infos)) {
		return refuse(rep, wire.CodeInvalid, fmt.Sprintf("members from rank %d on of a group of %d", req.First, len(g.infos)))
	}
	rep.Values = g.infos[req.First:]
	if req.Count > 0 && req.Count < uint64(len(rep.Values)) {
		rep.Values = rep.Values[:req.Count]
	}
	return true
}
