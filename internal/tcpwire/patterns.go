package tcpwire

import (
	"regexp"
	"strconv"
	"strings"
)

// Awaited is what a process waits for that waits for a key of PyTorch, torchrun or vLLM.
type Awaited struct {
	Group string // the process group, by the name that its keys have
	What  string // the operation that it waits in, as "init of gloo"
	// Rank is the rank, in Group, of the process that sets the key; -1: the last one that arrives.
	Rank int
	// Arrivals is the prefix of the keys that all ranks set when they arrive, each its own: Arrivals
	// and the rank. "": ranks leave no such keys.
	Arrivals string
	// Counter is the key that has the number of processes that have arrived; "": there is none.
	Counter string
	World   bool // ranks of Group are ranks of the job: the environment variable RANK
}

// pattern is a kind of key. Its expression may have the named groups job (a prefix of the job's
// keys), group and barrier (the name of a process group), rank, all (which ends before the rank) and
// counter.
type pattern struct {
	what string // may contain {rank}
	has  string // a part of all such keys; it is compared before the expression
	expr *regexp.Regexp
	// rank sets the key, if the expression has no group of this name
	rank int
	name string // of the group, if the expression has none
	sets bool   // a process that sets such a key has that rank
}

// torchGroup matches the part of a key that names a process group of torch.distributed: the prefix
// of the job, the number of the default group, and the name of the group unless it is that one.
const torchGroup = torchJob + `\d+//(?:(?P<group>.+)//)?`

// torchJob matches the prefix of the job. init_process_group adds default_pg, unless it is called
// with a store.
const torchJob = `^(?:(?P<job>.+?)/)??(?:default_pg/)?`

// patterns is all that is known of the keys of PyTorch (2.2 to 2.15) and vLLM. The first pattern
// that matches applies.
var patterns = []pattern{
	// gloo: each rank sets its address, and waits for those of all ranks in order
	{what: "init of gloo", has: "//cpu//", expr: regexp.MustCompile(torchGroup + `cpu(?P<all>//\d+/(?:rank_)?)(?P<rank>\d+)$`), sets: true},
	// NCCL: rank 0 sets the unique id of a communicator; for a pair of ranks the lower one does
	{what: "init of NCCL", has: "//cuda//", expr: regexp.MustCompile(torchGroup + `cuda//(?P<rank>\d+):\d+$`)},
	{what: "init of NCCL", has: "//cuda//", expr: regexp.MustCompile(torchGroup + `cuda//\d+$`), rank: 0},
	// init_process_group and new_group with TORCH_DIST_INIT_BARRIER, and new_group of older versions
	{what: "barrier of the initialization", has: "store_based_barrier_key:", expr: regexp.MustCompile(torchJob + `(?P<counter>store_based_barrier_key:(?P<barrier>.+)):last_worker$`), rank: -1},
	// torchrun: its agents are ranks of their own
	{what: "exit barrier of torchrun", has: "torchelastic/", expr: regexp.MustCompile(`^(?P<job>.*)torchelastic/agent/terminal_state/last_member$`), rank: -1, name: "torchrun agents"},
	{what: "assignment of ranks by torchrun", has: "torchelastic/", expr: regexp.MustCompile(`^(?P<job>.*)(?P<all>torchelastic/role_info/)(?P<rank>\d+)$`), name: "torchrun agents", sets: true},
	{what: "assignment of ranks by torchrun", has: "torchelastic/", expr: regexp.MustCompile(`^(?P<job>.*)torchelastic/assigned_ranks/\d+$`), rank: 0, name: "torchrun agents"},
	{what: "address of the job's master", has: "MASTER_", expr: regexp.MustCompile(`^(?P<job>.*)MASTER_(?:ADDR|PORT)$`), rank: 0, name: "torchrun agents"},
	// vLLM's StatelessProcessGroup. A message does not name its sender.
	{what: "broadcast from rank {rank}", has: "broadcast_", expr: regexp.MustCompile(`^(?:(?P<job>.*)/)?broadcast_(?:from|tensor)/(?P<rank>\d+)/\d+$`), name: "vLLM", sets: true},
	{what: "barrier", has: "arrival_", expr: regexp.MustCompile(`^(?:(?P<job>.*)/)?(?P<all>arrival_\w+_)(?P<rank>\d+)$`), name: "vLLM", sets: true},
	{what: "end of a barrier", has: "departure_", expr: regexp.MustCompile(`^(?:(?P<job>.*)/)?(?P<all>departure_\w+_)(?P<rank>\d+)$`), name: "vLLM", sets: true},
}

// Await returns what a process waits for that waits for key, which is a name as users have it. ok is
// false for keys that follow no known pattern.
func Await(key string) (a Awaited, ok bool) {
	for i := range patterns {
		if a, ok := patterns[i].match(key); ok {
			return a, true
		}
	}
	return a, false
}

// Arrive returns the process group and the rank of the process that sets key, if that identifies it.
func Arrive(key string) (group string, rank int, ok bool) {
	if n := len(key); n == 0 || key[n-1] < '0' || key[n-1] > '9' { // fast: most keys do not
		return "", 0, false
	}
	for i := range patterns {
		if p := &patterns[i]; p.sets {
			if a, ok := p.match(key); ok {
				return a.Group, a.Rank, true
			}
		}
	}
	return "", 0, false
}

// maxAwaitedRank bounds the ranks in keys: larger numbers are no ranks.
const maxAwaitedRank = 1 << 20

func (p *pattern) match(key string) (a Awaited, ok bool) {
	if !strings.Contains(key, p.has) {
		return a, false
	}
	at := p.expr.FindStringSubmatchIndex(key)
	if at == nil {
		return a, false
	}
	part := func(name string) string {
		if i := p.expr.SubexpIndex(name); i >= 0 && at[2*i] >= 0 {
			return key[at[2*i]:at[2*i+1]]
		}
		return ""
	}
	a = Awaited{What: p.what, Rank: p.rank}
	if number := part("rank"); number != "" {
		n, err := strconv.Atoi(number)
		if err != nil || n >= maxAwaitedRank {
			return a, false
		}
		a.Rank, a.What = n, strings.ReplaceAll(a.What, "{rank}", number)
	}
	if i := p.expr.SubexpIndex("all"); i >= 0 {
		a.Arrivals = key[:at[2*i+1]]
	}
	if i := p.expr.SubexpIndex("counter"); i >= 0 {
		a.Counter = key[:at[2*i+1]]
	}
	name := p.name
	if name == "" {
		// the default group has the name 0, or "default_pg" as its description
		group := strings.ReplaceAll(part("group")+part("barrier"), "//", "/")
		a.World = group == "" || group == "0" || group == "default_pg"
		if name = "default_pg"; !a.World {
			name += "/" + group
		}
	}
	if a.Group = name; part("job") != "" {
		a.Group = strings.TrimSuffix(part("job"), "/") + "/" + name
	}
	return a, true
}
