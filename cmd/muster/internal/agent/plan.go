package agent

import (
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"strings"
)

// plan is what the agent of a node sends to the others before an attempt.
type plan struct {
	Name        string
	Address     string
	Port        int // free at Address, for the processes
	MinNodes    int
	MaxNodes    int
	MaxRestarts int
	NodeRank    int
	Procs       int
	Restarts    int
	ID          string // of the attempt, if this node is the first

	Host            string
	MaxNodeFailures int
	Failures        map[string]int // by host
	Last            map[string]string
}

func (r *run) plan() plan {
	return plan{
		Name: r.Name, Address: r.Address, Port: freePort(r.Address), MinNodes: r.MinNodes, MaxNodes: r.MaxNodes, MaxRestarts: r.MaxRestarts,
		NodeRank: r.NodeRank, Procs: r.Procs, Restarts: r.restarts, ID: rand.Text(),
		Host: r.Host, MaxNodeFailures: r.MaxNodeFailures, Failures: r.hosts.failures, Last: r.hosts.last,
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

	names, hosts []string // of the nodes, by their agents' rank
}

// arrange returns the attempt of the agent with the given rank, which is computed from the plans of
// all agents, in the order of their ranks. An error is the same on all of them.
func arrange(plans []plan, rank int) (Attempt, error) {
	at := Attempt{Nodes: len(plans)}
	for _, p := range plans {
		at.names, at.hosts = append(at.names, p.Name), append(at.hosts, p.Host)
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

// agree checks that the nodes were started with options that fit together.
func agree(plans []plan) error {
	a := plans[0]
	ranks := map[int]string{}
	for _, b := range plans {
		switch other := ranks[b.NodeRank]; {
		case a.MinNodes != b.MinNodes || a.MaxNodes != b.MaxNodes:
			return fmt.Errorf("nodes %s and %s disagree on the number of nodes: %s and %s", a.Name, b.Name, nodes(a), nodes(b))
		case a.MaxRestarts != b.MaxRestarts:
			return fmt.Errorf("nodes %s and %s disagree on the number of restarts: %d and %d", a.Name, b.Name, a.MaxRestarts, b.MaxRestarts)
		case a.MaxNodeFailures != b.MaxNodeFailures:
			return fmt.Errorf("nodes %s and %s disagree on the number of failures of a node: %d and %d", a.Name, b.Name, a.MaxNodeFailures, b.MaxNodeFailures)
		case (a.NodeRank < 0) != (b.NodeRank < 0):
			return fmt.Errorf("nodes %s and %s disagree: one has a node rank, and the other has none", a.Name, b.Name)
		case b.NodeRank >= 0 && other != "":
			return fmt.Errorf("nodes %s and %s have the same node rank %d", other, b.Name, b.NodeRank)
		}
		ranks[b.NodeRank] = b.Name
	}
	return nil
}

func nodes(p plan) string {
	if p.MinNodes == p.MaxNodes {
		return fmt.Sprint(p.MinNodes)
	}
	return strings.Join([]string{fmt.Sprint(p.MinNodes), fmt.Sprint(p.MaxNodes)}, ":")
}
