package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func planned(name string, nodeRank int) plan {
	return plan{Name: name, Address: name, Port: 7, MinNodes: 3, MaxNodes: 3, NodeRank: nodeRank, Procs: 2, ID: "of " + name}
}

// TestArrange checks the ranks of nodes that have different numbers of processes, in the order of
// joining and of given node ranks.
func TestArrange(t *testing.T) {
	plans := []plan{planned("a", -1), planned("b", -1), planned("c", -1)}
	plans[1].Procs = 3
	plans[2].Restarts = 1
	at, err := arrange(plans, 2)
	require.NoError(t, err)
	require.Equal(t, Attempt{ID: "of a", Restarts: 1, Node: 2, Nodes: 3, First: 5, Size: 7, MasterAddress: "a:7", names: []string{"a", "b", "c"}, hosts: []string{"", "", ""}}, at)

	plans[0].NodeRank, plans[1].NodeRank, plans[2].NodeRank = 2, 0, 1
	at, err = arrange(plans, 2)
	require.NoError(t, err)
	require.Equal(t, Attempt{ID: "of b", Restarts: 1, Node: 1, Nodes: 3, First: 3, Size: 7, MasterAddress: "b:7", names: []string{"a", "b", "c"}, hosts: []string{"", "", ""}}, at)
}

func TestDisagreement(t *testing.T) {
	for want, change := range map[string]func(p *plan){
		"nodes a and b disagree on the number of nodes: 3 and 2:3":            func(p *plan) { p.MinNodes = 2 },
		"nodes a and b disagree on the number of restarts: 0 and 4":           func(p *plan) { p.MaxRestarts = 4 },
		"nodes a and b have the same node rank 0":                             func(p *plan) { p.NodeRank = 0 },
		"nodes a and b disagree: one has a node rank, and the other has none": func(p *plan) { p.NodeRank = -1 },
	} {
		plans := []plan{planned("a", 0), planned("b", 1), planned("c", 2)}
		change(&plans[1])
		_, err := arrange(plans, 2)
		require.EqualError(t, err, want)
	}
}
