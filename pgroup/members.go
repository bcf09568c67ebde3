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
	LocalRank int    // number of lower ranks on its node
	Node      int    // ranks with the same number can share memory; numbered from 0, in the order of ranks
	PID       int    // in its own PID namespace
	Host      string // name of its node, at most 64 bytes
	Addr      string // at which it hosts the group's store; "" if it does not
}

// memberInfo is what a rank sends the others when it joins: node u64 | pid u32 | hosts u8 | length
// of host u8, host | address. All ranks get that of all others, so it is short, and decoded only
// when needed.
type memberInfo struct {
	node  uint64 // equal on the ranks of one node
	pid   uint32
	hosts bool
	host  string
	addr  string
}

const (
	memberInfoLen = 8 + 4 + 1 + 1
	maxHost       = 64
	maxAddr       = 255
)

var errMemberInfo = errors.New("malformed member: another version of muster?")

func appendMemberInfo(b []byte, m memberInfo) []byte {
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

func parseMemberInfo(b []byte) (memberInfo, error) {
	if len(b) < memberInfoLen {
		return memberInfo{}, errMemberInfo
	}
	n := int(b[13])
	if b[12] > 1 || n > maxHost || len(b) < memberInfoLen+n || len(b) > memberInfoLen+n+maxAddr {
		return memberInfo{}, errMemberInfo
	}
	return memberInfo{
		node:  binary.LittleEndian.Uint64(b),
		pid:   binary.LittleEndian.Uint32(b[8:]),
		hosts: b[12] == 1,
		host:  string(b[memberInfoLen : memberInfoLen+n]),
		addr:  string(b[memberInfoLen+n:]),
	}, nil
}

// node returns the node of a member without decoding the rest.
func node(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// selfInfo returns what this process sends the others.
func (c *Config) selfInfo(host string, at *sharedStore) memberInfo {
	id := c.Host
	if id == "" {
		id = thisNode()
	}
	h := fnv.New64a()
	h.Write([]byte(id))
	m := memberInfo{node: h.Sum64(), pid: uint32(os.Getpid()), hosts: at.hosts(), host: host}
	if m.hosts {
		m.addr = at.addr
	}
	return m
}

// nodeName returns the name of this node for errors.
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

// Members returns the ranks in their order. Like the methods below it needs no round trip: it is
// known since the group was formed.
func (g *Group) Members() []Member {
	ms := make([]Member, g.size)
	local, nodes := map[uint64]int{}, map[uint64]int{}
	for rank, b := range g.members {
		m, _ := parseMemberInfo(b) // validated by checkMembers
		if _, ok := nodes[m.node]; !ok {
			nodes[m.node] = len(nodes)
		}
		ms[rank] = Member{Rank: rank, LocalRank: local[m.node], Node: nodes[m.node], PID: int(m.pid), Host: m.host, Addr: m.addr}
		local[m.node]++
	}
	return ms
}

// LocalRank returns the number of lower ranks on this rank's node.
func (g *Group) LocalRank() int {
	n := 0
	for _, b := range g.members[:g.rank] {
		if node(b) == node(g.members[g.rank]) {
			n++
		}
	}
	return n
}

// SameNode reports whether rank is on this rank's node, so that they can share memory. It is false
// for a rank that does not exist.
func (g *Group) SameNode(rank int) bool {
	return rank >= 0 && rank < g.size && node(g.members[rank]) == node(g.members[g.rank])
}

// NodeCount returns the number of nodes that the ranks are on.
func (g *Group) NodeCount() int {
	nodes := map[uint64]bool{}
	for _, b := range g.members {
		nodes[node(b)] = true
	}
	return len(nodes)
}
