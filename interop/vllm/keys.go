package vllm

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/muster-pg/muster/interop/tcpstore"
)

// payloadKind is what a message carries. vLLM has separate keys for tensors, and counts both kinds
// together.
type payloadKind int

const (
	object payloadKind = iota
	array
)

func (m payloadKind) String() string { return [...]string{"an object", "a tensor"}[m] }

func (m payloadKind) other() payloadKind { return array - m }

// messageKey returns the key of message n to dst, from 0.
func (m payloadKind) messageKey(dst int, n uint64) string {
	return fmt.Sprintf("%s/%d/%d", [...]string{"send_to", "send_tensor"}[m], dst, n)
}

// broadcastKey returns the key of broadcast n of src, from 0.
func (m payloadKind) broadcastKey(src int, n uint64) string {
	return fmt.Sprintf("%s/%d/%d", [...]string{"broadcast_from", "broadcast_tensor"}[m], src, n)
}

// barrierID is the prefix of barrier names.
const barrierID = "barrier_"

// isBarrierID reports whether s is "barrier_" and a UUID, as vLLM makes them.
func isBarrierID(s string) bool {
	uuid, ok := strings.CutPrefix(s, barrierID)
	return ok && len(uuid) == 36 && strings.Count(uuid, "-") == 4
}

// joinCount is the key that counts the ranks that have joined: PyTorch's init/, as package
// tcpstore stores it.
const joinCount = tcpstore.InitKey

// notePrefix is the prefix of the keys that Go ranks use among each other, beside those of vLLM.
const notePrefix = "muster/"

// Values of the joined key.
const (
	joined = notePrefix + "joined/"
	alive  = notePrefix + "alive/"
	sent   = notePrefix + "sent/"
	cast   = notePrefix + "cast/"
	doing  = notePrefix + "doing/"
)

// What joined says.
const (
	stateJoined = "here "  // followed by a random ID
	stateLeased = "leased" // and the alive key exists as long as the process
	stateLeft   = "left"
)

func note(kind string, rank int) string { return kind + strconv.Itoa(rank) }
