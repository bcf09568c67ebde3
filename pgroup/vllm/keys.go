package vllm

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/store/torchstore"
)

// medium is what travels. vLLM has keys of its own for tensors, and counts both together.
type medium int

const (
	object medium = iota
	array
)

func (m medium) String() string { return [...]string{"an object", "a tensor"}[m] }

func (m medium) other() medium { return array - m }

// sent is the key of what a rank sends to dst after n others.
func (m medium) sent(dst int, n uint64) string {
	return fmt.Sprintf("%s/%d/%d", [...]string{"send_to", "send_tensor"}[m], dst, n)
}

// cast is the key of what src broadcasts after n others.
func (m medium) cast(src int, n uint64) string {
	return fmt.Sprintf("%s/%d/%d", [...]string{"broadcast_from", "broadcast_tensor"}[m], src, n)
}

// barrierID is what the names of barriers begin with.
const barrierID = "barrier_"

// isBarrierID reports whether s is what vLLM makes: barrier_ and a UUID.
func isBarrierID(s string) bool {
	uuid, ok := strings.CutPrefix(s, barrierID)
	return ok && len(uuid) == 36 && strings.Count(uuid, "-") == 4
}

// comers counts the ranks that have joined: what PyTorch calls init/, as package torchstore keeps it.
const comers = torchstore.InitKey

// notes is what the keys begin with by which ranks of Go tell each other more than vLLM does.
const notes = "muster/"

const (
	joined = notes + "joined/"
	alive  = notes + "alive/"
	sent   = notes + "sent/"
	cast   = notes + "cast/"
	doing  = notes + "doing/"
)

// What joined says.
const (
	isHere   = "here "  // and what no other process says
	isLeased = "leased" // and alive goes when this rank does
	hasLeft  = "left"
)

func note(kind string, rank int) string { return kind + strconv.Itoa(rank) }
