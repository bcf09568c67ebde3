package main_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRunNodesNameTheFirstFailure checks that the nodes whose ranks fail because of a rank of another node
// name that rank, after theirs have printed the error.
func TestRunNodesNameTheFirstFailure(t *testing.T) {
	t.Parallel()
	_, url := serve(t)
	var nodes []*process
	for rank := range 3 {
		nodes = append(nodes, start(t, append(strings.Fields("run --nnodes 3 -n 1 --job train --node-rank "+strconv.Itoa(rank)+" --env "+role+"="+roleLoser+" --store "+url), "--", self(t), "kill")...))
	}
	for rank, p := range nodes {
		r := p.wait(t)
		if rank == 2 {
			require.Equal(t, 137, r.code)
			require.Equal(t, "muster: rank 2: killed by signal 9 (killed); the other ranks were ended\n", r.stderr)
			continue
		}
		require.Equal(t, 1, r.code)
		require.Contains(t, r.stdout, "lost rank 2")
		require.Regexp(t, `^muster: rank 2: killed by signal 9 on node .*; the ranks here were ended\n$`, r.stderr)
	}
}
