package etcdlog_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// mutant is one change of the shipped code that breaks a rule of replication.
type mutant struct {
	name     string
	file     string
	old, new string // old occurs exactly once in the file
}

var mutants = []mutant{
	{
		"what a leader appends is not fenced",
		"leader_log.go", `"=", l.fence)).Then(ops...)`, `">", 0)).Then(ops...)`,
	},
	{
		"a round that had begun confirms those that came later",
		"leader_log.go", `want, err := l.roundsBegun+1, l.err`, `want, err := l.roundsBegun, l.err`,
	},
	{
		"answers leave before what they show is committed",
		"leader_log.go", `if l.roundsDone.Load() >= want {`, `if l.roundsDone.Load()+1 >= want {`,
	},
	{
		"a takeover does not finish applying the log",
		"lead.go", `if err := s.catchUp(ctx, s.logKey(s.applied)); err != nil {`, `if err := ctx.Err(); err != nil {`,
	},
	{
		"a takeover leaves the unfinished batch of the last leader in the log",
		"lead.go", `clientv3.OpDelete(l.logKey(next), clientv3.WithRange(clientv3.GetPrefixRangeEnd(l.logPrefix())))`, `clientv3.OpGet(l.logKey(next))`,
	},
	{
		"a batch takes effect before its last part",
		"standby.go", `if kv.Value[0] == more {`, `if false {`,
	},
	{
		"a standby that loads during a takeover keeps an unfinished batch",
		"standby.go", `if err == nil && w.seq >= s.applied.seq {`, `if err == nil && w.seq == 0 {`,
	},
	{
		"a batch that was put twice, after an unknown outcome, is applied twice",
		"standby.go", `case w.seq < s.next.seq:`, `case w.seq+1 < s.next.seq:`,
	},
	{
		"the log is removed before there is a checkpoint of it",
		"../../internal/durable/durable.go", `err := d.log.Begin(segment)
`, `err := errors.Join(d.log.Begin(segment), d.log.Remove(segment))
`,
	},
	{
		"more of the log is removed than a checkpoint has",
		"../../internal/durable/durable.go", `return d.log.Remove(segment)`, `return d.log.Remove(segment + 1)`,
	},
	{
		"a start skips what came between a checkpoint and its end",
		"lead.go", `Seq: l.log.firstOf(segment), Checkpoint`, `Seq: l.log.next.seq, Checkpoint`,
	},
	{
		"a checkpoint is installed late, in place of a newer one",
		"leader_log.go", `clientv3.Compare(clientv3.ModRevision(l.leaderKey()), "=", l.fence), clientv3.Compare(clientv3.ModRevision(l.stateKey()), "=", l.stateRev),`,
		`clientv3.Compare(clientv3.ModRevision(r.leaderKey()), "=", r.fence),`,
	},
	{
		"the log stays when there is a checkpoint",
		"leader_log.go", `l.change(clientv3.OpDelete(l.logPrefix(), clientv3.WithRange(l.segmentKey(before))))`, `l.confirm()`,
	},
	{
		"old checkpoints stay",
		"lead.go", `clientv3.OpDelete(l.checkpointPrefix(), clientv3.WithRange(mine)),`, `clientv3.OpGet(mine),`,
	},
	{
		"sessions get no time to reconnect after a takeover",
		"../../internal/durable/durable.go", `m.Restart(now, d.options.ReconnectTimeout)`, `m.Restart(now, 1)`,
	},
	{
		"no session has to reconnect after a takeover",
		"../../internal/durable/durable.go", `if restart {`, `if false {`,
	},
	{
		"time begins again with a leader",
		"../memory.go", `time.Now().Add(-m.machine.Now())`, `time.Now()`,
	},
	{
		"an outage of etcd ends a process",
		"retry.go", `if errors.Is(err, ErrReplaced) {`, `if !errors.Is(err, ErrReplaced) || true {`,
	},
	{
		"a store is new to a process that once failed to begin it",
		"lead.go", `l.newStore = s.state.Incarnation == 0`, `l.newStore = l.newStore || s.state.Incarnation == 0`,
	},
}

// tests are the tests that notice a mutant in place of the simulation, which needs far more seeds.
var tests = map[string]string{
	"a store is new to a process that once failed to begin it": "^TestAnAttemptToLeadThatFails$",
}

// shortMutants is the step at which the short form samples the mutants: it runs one of so many.
const shortMutants = 18

// TestMutants checks that the simulation detects errors: for each mutant it finds a counterexample.
// With MUSTER_SOAK it runs all mutants, otherwise one of 18, which MUSTER_MUTANTS selects.
func TestMutants(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: each mutant is built: not in a short run")
	}
	tries := mutationtest.Sampled(t, len(mutants), shortMutants)
	for i, m := range mutants {
		mutationtest.Applies(t, m.file, m.old)
		if !tries(i) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			if test, ok := tests[m.name]; ok {
				mutationtest.NoticedBy(t, m.file, m.old, m.new, test)
				return
			}
			mutationtest.Noticed(t, m.file, m.old, m.new, "-run", "^TestSimulation$", ".", "-sim.seeds", "500")
		})
	}
}
