package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func planned(name string, nodeRank int) plan {
	return plan{Name: name, Address: name, Port: 7, NodeRank: nodeRank, Procs: 2, ID: "of " + name}
}

// TestArrange checks the ranks of nodes that have different numbers of processes, in the order of
// joining and of given node ranks, of which no two nodes may have the same.
func TestArrange(t *testing.T) {
	plans := []plan{planned("a", -1), planned("b", -1), planned("c", -1)}
	plans[1].Procs = 3
	plans[2].Restarts = 1
	at, err := arrange(plans, 2)
	require.NoError(t, err)
	require.Equal(t, Attempt{ID: "of a", Restarts: 1, Node: 2, Nodes: 3, First: 5, Size: 7, MasterAddress: "a:7", names: []string{"a", "b", "c"}}, at)

	plans[0].NodeRank, plans[1].NodeRank, plans[2].NodeRank = 2, 0, 1
	at, err = arrange(plans, 2)
	require.NoError(t, err)
	require.Equal(t, Attempt{ID: "of b", Restarts: 1, Node: 1, Nodes: 3, First: 3, Size: 7, MasterAddress: "b:7", names: []string{"a", "b", "c"}}, at)

	_, err = arrange([]plan{planned("a", 0), planned("b", 0), planned("c", 2)}, 2)
	require.EqualError(t, err, "nodes a and b have the same node rank 0")
}
