package pgroup

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"os"
	"runtime"
	"strings"
	"sync"
)

// Member is one rank, as all ranks know it.
type Member struct {
	Rank      int
	LocalRank int    // among the ranks of its node, by rank
	Node      int    // those of ranks that can share memory are the same; they are numbered as they come, by rank
	PID       int    // in its own namespace
	Host      string // name of its node, 64 bytes at most
	Addr      string // where it hosts the group's store; "" if it does not
}

// member is what a rank says of itself when it joins: node u64 | pid u32 | hosts u8 | host u8 + bytes | address.
// Every rank gets that of every other, so it is short, and only looked at when asked for.
type member struct {
	node  uint64 // equal on the ranks of one node
	pid   uint32
	hosts bool
	host  string
	addr  string
}

const (
	memberLen = 8 + 4 + 1 + 1
	maxHost   = 64
	maxAddr   = 255
)

var errMember = errors.New("malformed member: another version of muster?")

func appendMember(b []byte, m member) []byte {
	m.host = clip(m.host, maxHost)
	b = binary.LittleEndian.AppendUint64(b, m.node)
	b = binary.LittleEndian.AppendUint32(b, m.pid)
	hosts := byte(0)
	if m.hosts {
		hosts = 1
	}
	b = append(b, hosts, byte(len(m.host)))
	b = append(b, m.host...)
	return append(b, clip(m.addr, maxAddr)...)
}

func parseMember(b []byte) (member, error) {
	if len(b) < memberLen {
		return member{}, errMember
	}
	n := int(b[13])
	if b[12] > 1 || n > maxHost || len(b) < memberLen+n || len(b) > memberLen+n+maxAddr {
		return member{}, errMember
	}
	return member{
		node:  binary.LittleEndian.Uint64(b),
		pid:   binary.LittleEndian.Uint32(b[8:]),
		hosts: b[12] == 1,
		host:  string(b[memberLen : memberLen+n]),
		addr:  string(b[memberLen+n:]),
	}, nil
}

// node is the node of a member, without a look at the rest.
func node(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// self is what this process says of itself.
func (c *Config) self(host string, at *site) member {
	id := c.Host
	if id == "" {
		id = thisNode()
	}
	h := fnv.New64a()
	h.Write([]byte(id))
	m := member{node: h.Sum64(), pid: uint32(os.Getpid()), hosts: at.hosts(), host: host}
	if m.hosts {
		m.addr = at.addr
	}
	return m
}

// nodeName is what errors call this node.
func (c *Config) nodeName() string {
	if c.Host != "" {
		return clip(c.Host, maxHost)
	}
	name, err := os.Hostname()
	if err != nil {
		return "?"
	}
	return clip(name, maxHost)
}

// thisNode tells apart what cannot share memory: machines, their boots, and containers. Hostnames would not do, since
// containers and clones may have the same.
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

// Members lists the ranks, in their order. Like all that follows it is known since the group was made, and costs no round trip.
func (g *Group) Members() []Member {
	ms := make([]Member, g.size)
	local, nodes := map[uint64]int{}, map[uint64]int{}
	for rank, b := range g.members {
		m, _ := parseMember(b) // checked when it came
		if _, ok := nodes[m.node]; !ok {
			nodes[m.node] = len(nodes)
		}
		ms[rank] = Member{Rank: rank, LocalRank: local[m.node], Node: nodes[m.node], PID: int(m.pid), Host: m.host, Addr: m.addr}
		local[m.node]++
	}
	return ms
}

// LocalRank is the number of lower ranks on this rank's node.
func (g *Group) LocalRank() int {
	n := 0
	for _, b := range g.members[:g.rank] {
		if node(b) == node(g.members[g.rank]) {
			n++
		}
	}
	return n
}

// SameNode reports whether rank is on this rank's node: they can share memory. A rank that does not exist is not.
func (g *Group) SameNode(rank int) bool {
	return rank >= 0 && rank < g.size && node(g.members[rank]) == node(g.members[g.rank])
}

// NodeCount is the number of nodes that the ranks are on.
func (g *Group) NodeCount() int {
	nodes := map[uint64]bool{}
	for _, b := range g.members {
		nodes[node(b)] = true
	}
	return len(nodes)
}
