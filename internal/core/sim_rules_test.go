package core_test

import (
	"testing"

	"github.com/muster-pg/muster/wire"
)

// TestServerRules checks that the simulation detects a server that breaks one of the rules by which
// it has to drive the machine: each rule has a counterexample.
func TestServerRules(t *testing.T) {
	const seeds = 5000
	rules := map[string]func(){
		"it reads a connection on when its session has another": func() { broke.fence = true },
		"answers leave before what they show is durable":        func() { broke.hold = true },
		"what is due happens in a request that is not logged":   func() { broke.dueFirst = true },
		"the log leaves out a Tick":                             func() { broke.forgetsTicks = true },
	}
	for _, op := range []wire.Op{
		wire.OpHello, wire.OpGoodbye, wire.OpLost, wire.OpCancel, wire.OpSet, wire.OpJoin, wire.OpLeave, wire.OpCollect, wire.OpSend,
		wire.OpRecv, wire.OpSendReady, wire.OpGrant, wire.OpKeepAlive, wire.OpRevoke, wire.OpSkip, wire.OpPush, wire.OpPop, wire.OpCloseChannel, wire.OpAck,
	} {
		rules["the log leaves out "+op.String()] = func() { broke.forgets = op }
	}
	right := broke
	for name, brk := range rules {
		t.Run(name, func(t *testing.T) {
			brk()
			defer func() { broke = right }()
			for seed := range uint64(seeds) {
				if o := simulate(seed+1, false); o.broken != nil {
					t.Logf("seed %d: %.200s", seed+1, o.broken)
					return
				}
			}
			t.Fatalf("none of %d schedules is a counterexample", seeds)
		})
	}
}
