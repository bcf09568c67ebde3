package link_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/link"
	"github.com/muster-pg/muster/pgroup"
)

func TestRoutes(t *testing.T) {
	for address, hosts := range map[string][]string{
		"":                            {},
		":29500":                      {},
		"node-a:29500":                {"node-a"},
		"[::1]:29500":                 {"::1"},
		"muster://node-a:7070/jobs/1": {"node-a"},
		"muster://127.0.0.1:7070,store:7070/jobs":  {"127.0.0.1", "store"},
		"etcds://me:x@h1:2379,h2:2379/?ca=a,b:1,c": {"h1", "h2"},
		"mem://": {},
	} {
		require.Equal(t, append(hosts, "192.0.2.1"), link.RouteHosts(address), address)
	}
}

// TestRelayOfOnesOwnNode has ranks of several nodes meet at loopback, as those do who meet through a relay: that is no address for the others.
func TestRelayOfOnesOwnNode(t *testing.T) {
	route, err := net.Dial("udp", "192.0.2.1:9")
	if err != nil {
		t.Skipf("SKIPPED: this machine has no network (%v)", err)
	}
	defer route.Close()
	hosting, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	meshes, _ := open(t, cluster(t, 2, true, func(c *pgroup.Config) {
		if c.Store = nil; c.Rank == 0 {
			c.Listener = hosting
			return
		}
		c.Address = hosting.Addr().String()
	}))
	host, _, err := net.SplitHostPort(link.Addr(meshes[0], 1))
	require.NoError(t, err)
	require.Equal(t, route.LocalAddr().(*net.UDPAddr).IP.String(), host)
}
