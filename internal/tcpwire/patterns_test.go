package tcpwire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/tcpwire"
)

// TestAwait has keys that processes of torch 2.15, torchrun and vLLM were seen to wait for, or that
// their sources have.
func TestAwait(t *testing.T) {
	const gloo, nccl, barrier = "init of gloo", "init of NCCL", "barrier of the initialization"
	for key, want := range map[string]tcpwire.Awaited{
		"default_pg/0//cpu//0/2":                                             {Group: "default_pg", What: gloo, Rank: 2, Arrivals: "default_pg/0//cpu//0/", World: true},
		"default_pg/0//cpu//0/rank_12":                                       {Group: "default_pg", What: gloo, Rank: 12, Arrivals: "default_pg/0//cpu//0/rank_", World: true},
		"default_pg/0//1//cpu//0/1":                                          {Group: "default_pg/1", What: gloo, Rank: 1, Arrivals: "default_pg/0//1//cpu//0/"},
		"worker/attempt_0/default_pg/0//cpu//0/0":                            {Group: "worker/attempt_0/default_pg", What: gloo, Rank: 0, Arrivals: "worker/attempt_0/default_pg/0//cpu//0/", World: true},
		"job-7/default_pg/0//ab12/x//cpu//0/3":                               {Group: "job-7/default_pg/ab12/x", What: gloo, Rank: 3, Arrivals: "job-7/default_pg/0//ab12/x//cpu//0/"},
		"0//cpu//0/2":                                                        {Group: "default_pg", What: gloo, Rank: 2, Arrivals: "0//cpu//0/", World: true},
		"mine/0//cpu//0/2":                                                   {Group: "mine/default_pg", What: gloo, Rank: 2, Arrivals: "mine/0//cpu//0/", World: true},
		"mine/0//1//cpu//0/2":                                                {Group: "mine/default_pg/1", What: gloo, Rank: 2, Arrivals: "mine/0//1//cpu//0/"},
		"mine/store_based_barrier_key:0:last_worker":                         {Group: "mine/default_pg", What: barrier, Rank: -1, Counter: "mine/store_based_barrier_key:0", World: true},
		"default_pg/0//cuda//0":                                              {Group: "default_pg", What: nccl, Rank: 0, World: true},
		"default_pg/0//cuda//1:3":                                            {Group: "default_pg", What: nccl, Rank: 1, World: true},
		"default_pg/0//2//cuda//7":                                           {Group: "default_pg/2", What: nccl, Rank: 0},
		"default_pg/store_based_barrier_key:0:last_worker":                   {Group: "default_pg", What: barrier, Rank: -1, Counter: "default_pg/store_based_barrier_key:0", World: true},
		"default_pg/store_based_barrier_key:1:last_worker":                   {Group: "default_pg/1", What: barrier, Rank: -1, Counter: "default_pg/store_based_barrier_key:1"},
		"store_based_barrier_key:default_pg:last_worker":                     {Group: "default_pg", What: barrier, Rank: -1, Counter: "store_based_barrier_key:default_pg", World: true},
		"torch.rendezvous.j.0/torchelastic/agent/terminal_state/last_member": {Group: "torch.rendezvous.j.0/torchrun agents", What: "exit barrier of torchrun", Rank: -1},
		"torchelastic/role_info/3":                                           {Group: "torchrun agents", What: "assignment of ranks by torchrun", Rank: 3, Arrivals: "torchelastic/role_info/"},
		"torchelastic/assigned_ranks/1":                                      {Group: "torchrun agents", What: "assignment of ranks by torchrun", Rank: 0},
		"j/MASTER_ADDR":                                                      {Group: "j/torchrun agents", What: "address of the job's master", Rank: 0},
		"broadcast_from/2/17":                                                {Group: "vLLM", What: "broadcast from rank 2", Rank: 2},
		"arrival_6a1f_3":                                                     {Group: "vLLM", What: "barrier", Rank: 3, Arrivals: "arrival_6a1f_"},
		"tp/departure_6a1f_0":                                                {Group: "tp/vLLM", What: "end of a barrier", Rank: 0, Arrivals: "tp/departure_6a1f_"},
	} {
		got, ok := tcpwire.Await(key)
		require.True(t, ok, key)
		require.Equal(t, want, got, key)
	}
	for _, key := range []string{
		"", "a", "ready/2", "default_pg/0//cpu//0/", "default_pg/0//cpu//0/x", "default_pg/0//cpu//0/99999999999999999999",
		"default_pg/0//cpu//0/9999999", "a0//cpu//0/1", "send_to/1/0", "store_based_barrier_key:0",
	} {
		_, ok := tcpwire.Await(key)
		require.False(t, ok, key)
	}
}

func TestArrive(t *testing.T) {
	group, rank, ok := tcpwire.Arrive("default_pg/0//1//cpu//0/2")
	require.True(t, ok)
	require.Equal(t, "default_pg/1", group)
	require.Equal(t, 2, rank)
	for _, key := range []string{"", "n", "n1", "default_pg/0//cuda//0", "torchelastic/assigned_ranks/1", "default_pg/0//cpu//0/x"} {
		_, _, ok := tcpwire.Arrive(key)
		require.False(t, ok, key) // others than the rank set these keys, or the key says nothing
	}
}
