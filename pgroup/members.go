package pgroup

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/wire"
)

// Member is one rank, as all ranks know it.
type Member struct {
	Rank      int
	LocalRank int    // number of lower ranks on its node
	Node      int    // ranks with the same number can share memory; numbered from 0, in the order of ranks
	PID       int    // in its own PID namespace
	Host      string // name of its node, at most 64 bytes
	Addr      string // at which it hosts the group's store; "" if it does not
}

// selfInfo returns what this process sends the others.
func (c *Config) selfInfo(host string, at *sharedStore) *wire.Member {
	h := fnv.New64a()
	h.Write([]byte(cmp.Or(c.Host, thisNode())))
	m := &wire.Member{Node: h.Sum64(), PID: uint32(os.Getpid()), Hosts: at.hosts(), Host: host}
	if m.Hosts {
		m.Addr = clip(at.addr, wire.MaxAddr)
	}
	return m
}

// nodeName returns the name of this node for errors.
func (c *Config) nodeName() string {
	name := c.Host
	if name == "" {
		name, _ = os.Hostname()
	}
	return clip(cmp.Or(name, "?"), wire.MaxHost)
}

// thisNode identifies what can share memory: a boot of a machine, and a container on it. Host names
// do not suffice: containers and clones may have the same one.
var thisNode = sync.OnceValue(func() string {
	var id []string
	if runtime.GOOS == "linux" {
		if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
			id = append(id, strings.TrimSpace(string(boot)))
		}
		for _, ns := range []string{"mnt", "ipc"} {
			if link, err := os.Readlink("/proc/self/ns/" + ns); err == nil {
				id = append(id, link)
			}
		}
	}
	if len(id) == 0 {
		name, _ := os.Hostname()
		id = append(id, name)
	}
	return strings.Join(id, " ")
})

// Members returns the ranks in their order. In a group of more than 64 ranks the first call is a
// request to the store; ctx bounds it, and Config.Timeout if ctx has no deadline. Its error is a
// *RankError.
func (g *Group) Members(ctx context.Context) ([]Member, error) {
	ms := g.knownMembers()
	if ms == nil {
		ctx, cancel := g.withTimeout(ctx, time.Now())
		defer cancel()
		infos, err := g.store.Members(ctx, g.request(), 0, 0)
		if err == nil {
			ms, err = parseMembers(infos, g.size)
		}
		if err != nil {
			return nil, g.asRankError("members", 0, err)
		}
		g.lock.Lock()
		defer g.lock.Unlock()
		g.members = ms
	}
	return slices.Clone(ms), nil
}

func (s *membership) knownMembers() []Member {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.members
}

// parseMembers parses and validates the infos of all ranks of a group: they come from the network.
func parseMembers(infos [][]byte, size int) ([]Member, error) {
	if len(infos) != size {
		return nil, fmt.Errorf("%w: %d members of a group of %d", store.ErrProtocol, len(infos), size)
	}
	ms := make([]Member, size)
	local, nodes := map[uint64]int{}, map[uint64]int{}
	for rank, b := range infos {
		m, err := wire.ParseMember(b)
		if err != nil {
			return nil, fmt.Errorf("the entry of rank %d: %w", rank, err)
		}
		if _, ok := nodes[m.Node]; !ok {
			nodes[m.Node] = len(nodes)
		}
		ms[rank] = Member{Rank: rank, LocalRank: local[m.Node], Node: nodes[m.Node], PID: int(m.PID), Host: m.Host, Addr: m.Addr}
		local[m.Node]++
	}
	return ms, nil
}

// LocalRank returns the number of lower ranks on this rank's node. Like the methods below it needs
// no request: the answer to the join has it.
func (g *Group) LocalRank() int { return g.local.Below(g.rank) }

// SameNode reports whether rank is on this rank's node, so that they can share memory. It is false
// for a rank that does not exist.
func (g *Group) SameNode(rank int) bool { return g.local.Has(rank) }

// NodeCount returns the number of nodes that the ranks are on.
func (g *Group) NodeCount() int { return g.nodes }
