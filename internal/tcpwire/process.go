package tcpwire

import (
	"encoding/json"
	"time"
)

// ProcessesKey is the prefix of the entries in which servers of the protocol publish their clients.
// Each server has one entry, with the TTL ProcessesTTL, so that the time left says how old it is.
// The entry has a Processes as JSON.
const (
	ProcessesKey = "\x00torch-processes/"
	ProcessesTTL = 30 * time.Second
)

// PrefixesKey is the prefix of entries in the whole store, with the same TTL, for servers that open
// only a part of the store to the protocol: the value is the prefix of that part, which has the
// processes.
const PrefixesKey = "\x00torch-prefixes/"

// Processes are the client processes of a server.
type Processes struct {
	Processes []Process `json:"processes"`
	More      int       `json:"more,omitempty"` // processes that are not listed
}

// Process is a client process. Durations are as of the publication.
type Process struct {
	ID    string `json:"id"`    // distinguishes it from the other processes of the store
	Label string `json:"label"` // for people: "pid 4242 on node-b, train.py"
	// Rank and Size are from the environment variables RANK and WORLD_SIZE that the process was
	// started with; -1 and 0 if they are unknown.
	Rank int `json:"rank"`
	Size int `json:"size,omitempty"`
	// State is one of the states below, or "" if it is unknown.
	State   string        `json:"state,omitempty"`
	For     time.Duration `json:"for,omitempty"` // time in that state
	Waits   []ProcessWait `json:"waits,omitempty"`
	Members []GroupRank   `json:"members,omitempty"`
}

// States of a process. All but Disconnected are known only for processes on the server's host.
const (
	Stopped      = "stopped"      // by SIGSTOP, or by a debugger
	Computing    = "computing"    // it uses at least half of a processor
	Sleeping     = "sleeping"     // it uses less
	Exiting      = "exiting"      // its connections have ended, and it still runs
	Disconnected = "disconnected" // its connections have ended: it has exited or failed
)

// Ended reports whether the connections of p have ended.
func (p *Process) Ended() bool { return p.State == Disconnected || p.State == Exiting }

// ProcessWait is a call that waits for a key.
type ProcessWait struct {
	Key string        `json:"key"`
	For time.Duration `json:"for"`
}

// GroupRank says that a process has set the key of a rank of a process group, see Arrive.
type GroupRank struct {
	Group string `json:"group"`
	Rank  int    `json:"rank"`
}

// Encode returns p as an entry's value.
func (p *Processes) Encode() ([]byte, error) { return json.Marshal(p) }

// Decode is the inverse of Encode.
func (p *Processes) Decode(value []byte) error { return json.Unmarshal(value, p) }
