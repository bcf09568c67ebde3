package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Member is what a rank sends the others when it joins, the value of OpJoin: node u64 | pid u32 |
// hosts u8 | length of host u8, host | address. The store reads Node and Hosts, and passes on the
// rest.
type Member struct {
	Node  uint64 // equal on the ranks of one node
	PID   uint32
	Hosts bool   // it hosts the store
	Host  string // name of the node, at most MaxHost bytes
	Addr  string // at which it hosts the store, at most MaxAddr bytes
}

const (
	MaxHost = 64  // bytes of the name of a node
	MaxAddr = 255 // bytes of an address

	memberLen = 8 + 4 + 1 + 1 // without Host and Addr
)

var (
	errMember = errors.New("malformed member: another version of muster?")
	errFormed = errors.New("a group without its size: another version of muster?")
)

// AppendMember appends m to b.
func AppendMember(b []byte, m *Member) []byte {
	b = binary.LittleEndian.AppendUint64(b, m.Node)
	b = binary.LittleEndian.AppendUint32(b, m.PID)
	b = append(b, boolByte(m.Hosts), byte(len(m.Host)))
	b = append(b, m.Host...)
	return append(b, m.Addr...)
}

// ParseMember is the inverse of AppendMember.
func ParseMember(b []byte) (m Member, err error) {
	if len(b) < memberLen {
		return m, errMember
	}
	n := int(b[13])
	if b[12] > 1 || n > MaxHost || len(b) < memberLen+n || len(b) > memberLen+n+MaxAddr {
		return m, errMember
	}
	m.Node, m.Hosts = MemberNode(b)
	m.PID, m.Host, m.Addr = binary.LittleEndian.Uint32(b[8:]), string(b[memberLen:memberLen+n]), string(b[memberLen+n:])
	return m, nil
}

// MemberNode returns Node and Hosts of an encoded Member without decoding the rest. Those of a
// value that is too short are 0 and false.
func MemberNode(b []byte) (node uint64, hosts bool) {
	if len(b) < memberLen {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b), b[12] == 1
}

// RankSet is a set of ranks in increasing order: for each arithmetic sequence its first rank, how
// many there are, and the difference between two of them. The ranks of a node are one sequence if
// they are consecutive, even if each node has every hundredth rank.
type RankSet []int64

// Append adds a rank that is greater than those of s.
func (s RankSet) Append(rank int) RankSet {
	n := len(s)
	if n > 0 && s[n-2] == 1 { // any second rank makes a sequence
		s[n-1] = int64(rank) - s[n-3]
	}
	if n > 0 && int64(rank) == s[n-3]+s[n-2]*s[n-1] {
		s[n-2]++
		return s
	}
	return append(s, int64(rank), 1, 1)
}

// Below returns how many ranks of s are less than rank.
func (s RankSet) Below(rank int) (n int) {
	for i := 0; i < len(s); i += 3 {
		if ahead := int64(rank) - s[i]; ahead > 0 {
			n += int(min(s[i+1], (ahead-1)/s[i+2]+1))
		}
	}
	return n
}

// Has reports whether rank is in s.
func (s RankSet) Has(rank int) bool { return s.Below(rank+1) > s.Below(rank) }

// check returns whether s is a set of ranks of a group of a size.
func (s RankSet) check(size int) bool {
	if len(s)%3 != 0 {
		return false
	}
	next := int64(0)
	for i := 0; i < len(s); i += 3 {
		first, count, step := s[i], s[i+1], s[i+2]
		if first < next || first >= int64(size) || count < 1 || step < 1 || count-1 > (int64(size)-1-first)/step {
			return false
		}
		next = first + (count-1)*step + 1
	}
	return true
}

// Formed is a group that was formed, as the reply to OpJoin has it for one rank. It is the same for
// all ranks, except Rank and Local.
type Formed struct {
	Generation uint64   // identifies the group; never used again
	ID         uint64   // distinguishes it from one with the same generation in another store
	Rank, Size int      // after a shrink both differ from those before
	Host       int      // the rank that hosts the store; −1: none of the group does
	Nodes      int      // how many nodes have ranks of the group
	Local      RankSet  // the ranks on this rank's node, with this one
	Members    [][]byte // the value of each rank's OpJoin; nil if the group has more than MaxInline ranks
}

// MaxInline is the size up to which the reply to OpJoin has the members. Those of a larger group
// are fetched by OpMembers when they are needed: all members for all ranks would make forming the
// group take time that grows with the square of its size.
const MaxInline = 64

// formedHead is the number of elements of Reply.Nums before Local.
const formedHead = 4

// AppendFormed appends the Nums of the reply to OpJoin to nums. They are the same for all ranks of a
// node.
func AppendFormed(nums []int64, f *Formed) []int64 {
	return append(append(nums, int64(f.Size), int64(f.Host), int64(f.Nodes), int64(f.ID)), f.Local...)
}

// ParseFormed parses the reply to the OpJoin of rank; after a shrink, N is 1 + the new rank. f
// aliases r.
func ParseFormed(r *Reply, rank int) (f Formed, err error) {
	if r.N != 0 {
		rank = int(r.N - 1)
	}
	if len(r.Nums) < formedHead || r.Nums[0] < 1 || r.Nums[0] > math.MaxInt32 {
		return Formed{Rank: rank}, errFormed
	}
	f = Formed{
		Generation: r.Rev, Rank: rank, Size: int(r.Nums[0]), Host: int(r.Nums[1]), Nodes: int(r.Nums[2]), ID: uint64(r.Nums[3]),
		Local: slices.Clip(r.Nums[formedHead:]), Members: r.Values,
	}
	switch {
	case f.Rank < 0 || f.Rank >= f.Size || !f.Local.check(f.Size) || !f.Local.Has(f.Rank):
		err = fmt.Errorf("a group of %d without this rank", f.Size)
	case f.Host < -1 || f.Host >= f.Size || f.Nodes < 1 || f.Nodes > f.Size:
		err = fmt.Errorf("a group of %d on %d nodes whose host is rank %d", f.Size, f.Nodes, f.Host)
	case f.Members != nil && len(f.Members) != f.Size:
		err = fmt.Errorf("a group of %d with %d members", f.Size, len(f.Members))
	}
	return f, err
}
