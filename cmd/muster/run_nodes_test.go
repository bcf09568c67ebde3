package main_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
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

// TestWhatIsSeenOfAHang checks what run, who and ps print while a rank of 2 has not joined: with the store of
// run, and with that of MUSTER_STORE, on one node and on two. Names are those that a user has given.
func TestWhatIsSeenOfAHang(t *testing.T) {
	t.Parallel()
	const waits = "world waits for rank 1: has not joined"
	script := "[ $RANK = 1 ] && exec sleep 600; exec " + self(t) + " kill"
	for name, c := range map[string]struct {
		flags []string // of each node
		store bool
		who   string
	}{
		"hosted":        {[]string{"-n 2"}, false, waits},
		"MUSTER_STORE":  {[]string{"-n 2"}, true, "train/" + waits},
		"nodes":         {[]string{"-n 1 --nnodes 2 --node-rank 0", "-n 1 --nnodes 2 --node-rank 1"}, true, "train/" + waits},
		"no other node": {[]string{"-n 1 --nnodes 2"}, true, "nothing waits"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := serve(t)
			env := []string{"XDG_RUNTIME_DIR=" + t.TempDir(), "MUSTER_STORE="}
			title := `muster://127\.0\.0\.1:\d+ \(pid \d+, for .*\): sh -c`
			if c.store {
				env[1], title = "MUSTER_STORE="+url, regexp.QuoteMeta(url)+` \(MUSTER_STORE\)`
			}
			var nodes []*process
			for _, flags := range c.flags {
				args := append(strings.Fields("run --job train --env "+role+"="+roleLoser+" "+flags), sh(script)...)
				nodes = append(nodes, startIn(t, env, args...))
			}
			if c.who == "nothing waits" {
				assert.Contains(t, nodes[0].complaint(t, "waiting"), "muster: waiting for nodes: 1 of 2 nodes are registered: \"")
			}
			var who, ps result
			testcluster.Eventually(t, limit, func() bool {
				who, ps = runIn(t, env, "who"), runIn(t, env, "ps")
				return strings.Contains(who.stdout, c.who) && strings.Count(ps.stdout, "\n") > 1
			}, "who shows what waits")
			assert.Regexp(t, `^`+title, who.stdout)
			assert.NotContains(t, who.stdout+ps.stdout, "membership/")
			assert.Regexp(t, `(?m)^train +(running|waiting) .*muster://127\.0\.0\.1:\d+$`, ps.stdout)
			assert.Equal(t, 1, strings.Count(ps.stdout, "\ntrain "), ps.stdout)
		})
	}
	_, url := serve(t)
	env := []string{"XDG_RUNTIME_DIR=" + t.TempDir(), "MUSTER_STORE="}
	startIn(t, env, runSh(1, "", "exec sleep 600")...)
	testcluster.Eventually(t, limit, func() bool {
		who, ps := runIn(t, append(env, "MUSTER_STORE="+url), "who"), runIn(t, append(env, "MUSTER_STORE="+url), "ps")
		return strings.Count(who.stdout, "muster://") == 2 && strings.Count(ps.stdout, "muster://") == 1
	}, "who and ps show the job of this host in addition to the store of MUSTER_STORE")
}
