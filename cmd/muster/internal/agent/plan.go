package agent

import (
	"crypto/rand"
	"fmt"
	"net"
	"slices"
)

// plan is what the agent of a node sends to the others before an attempt.
type plan struct {
	Name     string
	Address  string
	Port     int // free at Address, for the processes
	NodeRank int
	Procs    int
	Restarts int
	ID       string // of the attempt, if this node is the first
}

func (r *run) plan() plan {
	return plan{
		Name: r.Name, Address: r.Address, Port: freePort(r.Address),
		NodeRank: r.NodeRank, Procs: r.Procs, Restarts: r.restarts, ID: rand.Text(),
	}
}

// freePort returns a port on which no process listens at this moment; 0 if there is none. Another
// process may take it before a rank does, as with torchrun.
func freePort(host string) int {
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return 0
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Attempt is one start of all processes of a job.
type Attempt struct {
	ID       string // unique among all attempts of all jobs
	Restarts int    // of the job, before
	Node     int    // the place of this node among Nodes
	Nodes    int
	First    int // rank of the first process of this node; the others follow
	Size     int // processes of all nodes
	// MasterAddress is a host:port on the first node, which no process listened on when the attempt began;
	// empty if there was no such port.
	MasterAddress string

	names []string // of the nodes, by their agents' rank
}

// arrange returns the attempt of the agent with the given rank, which is computed from the plans of
// all agents, in the order of their ranks. An error is the same on all of them.
func arrange(plans []plan, rank int) (Attempt, error) {
	at := Attempt{Nodes: len(plans)}
	for _, p := range plans {
		at.names = append(at.names, p.Name)
		at.Restarts = max(at.Restarts, p.Restarts)
		at.Size += p.Procs
	}
	if err := agree(plans); err != nil {
		return at, err
	}
	order := make([]int, len(plans)) // ranks of agents, in the order of nodes
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return plans[a].NodeRank - plans[b].NodeRank })
	at.Node = slices.Index(order, rank)
	for _, i := range order[:at.Node] {
		at.First += plans[i].Procs
	}
	first := plans[order[0]]
	at.ID = first.ID
	if first.Port != 0 {
		at.MasterAddress = net.JoinHostPort(first.Address, fmt.Sprint(first.Port))
	}
	return at, nil
}

// agree checks that no two nodes have the same place. Nodes with other options are refused before (settings).
func agree(plans []plan) error {
	ranks := map[int]string{}
	for _, p := range plans {
		if other := ranks[p.NodeRank]; p.NodeRank >= 0 && other != "" {
			return fmt.Errorf("nodes %s and %s have the same node rank %d", other, p.Name, p.NodeRank)
		}
		ranks[p.NodeRank] = p.Name
	}
	return nil
}

// settings returns the options that must be the same on all nodes, as they are given to muster run. A node
// with others is refused when it registers: it would wait for the nodes of the job, which do not meet it.
func (a *Agent) settings() string {
	text := "--nnodes " + span(a.MinNodes, a.MaxNodes)
	if a.Elastic != nil {
		text += " --elastic " + span(a.Elastic.Min, a.Elastic.Max)
		if a.Elastic.UnitSize > 1 {
			text += fmt.Sprintf(" --unit-size %d", a.Elastic.UnitSize)
		}
	}
	text += fmt.Sprintf(" --max-restarts %d", a.MaxRestarts)
	if a.NodeRank >= 0 {
		text += " --node-rank …"
	}
	return text
}

// span returns MIN:MAX, or the number if they are equal.
func span(low, high int) string {
	if low == high {
		return fmt.Sprint(low)
	}
	return fmt.Sprintf("%d:%d", low, high)
}
