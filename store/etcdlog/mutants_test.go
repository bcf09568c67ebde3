package etcdlog_test

import (
	"testing"

	"github.com/muster-pg/muster/internal/mutationtest"
)

// mutants break one rule of replication each.
var mutants = []mutationtest.Mutant{
	{
		Name: "what a leader appends is not fenced",
		File: "leader_log.go", Old: `"=", l.fence)).Then(ops...)`, New: `">", 0)).Then(ops...)`,
	},
	{
		Name: "a round that had begun confirms those that came later",
		File: "leader_log.go", Old: `want, err := l.roundsBegun+1, l.err`, New: `want, err := l.roundsBegun, l.err`,
	},
	{
		Name: "answers leave before what they show is committed",
		File: "leader_log.go", Old: `if l.roundsDone.Load() >= want {`, New: `if l.roundsDone.Load()+1 >= want {`,
	},
	{
		Name: "a takeover does not finish applying the log",
		File: "lead.go", Old: `if err := s.catchUp(ctx, s.logKey(s.applied)); err != nil {`, New: `if err := ctx.Err(); err != nil {`,
	},
	{
		Name: "a takeover leaves the unfinished batch of the last leader in the log",
		File: "lead.go", Old: `clientv3.OpDelete(l.logKey(next), clientv3.WithRange(clientv3.GetPrefixRangeEnd(l.logPrefix())))`, New: `clientv3.OpGet(l.logKey(next))`,
	},
	{
		Name: "a batch takes effect before its last part",
		File: "standby.go", Old: `if kv.Value[0] == more {`, New: `if false {`,
	},
	{
		Name: "a standby that loads during a takeover keeps an unfinished batch",
		File: "standby.go", Old: `if err == nil && w.seq >= s.applied.seq {`, New: `if err == nil && w.seq == 0 {`,
	},
	{
		Name: "a batch that was put twice, after an unknown outcome, is applied twice",
		File: "standby.go", Old: `case w.seq < s.next.seq:`, New: `case w.seq+1 < s.next.seq:`,
	},
	{
		Name: "the log is removed before there is a checkpoint of it",
		File: "../../internal/durable/durable.go", Old: `err := d.log.Begin(segment)
`, New: `err := errors.Join(d.log.Begin(segment), d.log.Remove(segment))
`,
	},
	{
		Name: "more of the log is removed than a checkpoint has",
		File: "../../internal/durable/durable.go", Old: `return d.log.Remove(segment)`, New: `return d.log.Remove(segment + 1)`,
	},
	{
		Name: "a start skips what came between a checkpoint and its end",
		File: "lead.go", Old: `Seq: l.log.firstOf(segment), Checkpoint`, New: `Seq: l.log.next.seq, Checkpoint`,
	},
	{
		Name: "a checkpoint is installed late, in place of a newer one",
		File: "leader_log.go", Old: `clientv3.Compare(clientv3.ModRevision(l.leaderKey()), "=", l.fence), clientv3.Compare(clientv3.ModRevision(l.stateKey()), "=", l.stateRev),`,
		New: `clientv3.Compare(clientv3.ModRevision(l.leaderKey()), "=", l.fence),`,
	},
	{
		Name: "the log stays when there is a checkpoint",
		File: "leader_log.go", Old: `l.change(clientv3.OpDelete(l.logPrefix(), clientv3.WithRange(l.segmentKey(before))))`, New: `l.confirm()`,
	},
	{
		Name: "old checkpoints stay",
		File: "lead.go", Old: `clientv3.OpDelete(l.checkpointPrefix(), clientv3.WithRange(mine)),`, New: `clientv3.OpGet(mine),`,
	},
	{
		Name: "sessions get no time to reconnect after a takeover",
		File: "../../internal/durable/durable.go", Old: `m.Restart(now, d.options.ReconnectTimeout)`, New: `m.Restart(now, 1)`,
	},
	{
		Name: "no session has to reconnect after a takeover",
		File: "../../internal/durable/durable.go", Old: `if restart {`, New: `if false {`,
	},
	{
		Name: "time begins again with a leader",
		File: "../memory.go", Old: `time.Now().Add(-m.machine.Now())`, New: `time.Now()`,
	},
	{
		Name: "an outage of etcd ends a process",
		File: "retry.go", Old: `if errors.Is(err, ErrReplaced) {`, New: `if !errors.Is(err, ErrReplaced) || true {`,
	},
	{
		Name: "a store is new to a process that once failed to begin it",
		File: "lead.go", Old: `l.newStore = s.state.Incarnation == 0`, New: `l.newStore = l.newStore || s.state.Incarnation == 0`,
		Test: "^TestAnAttemptToLeadThatFails$", // the simulation meets it in one of 9,000 schedules
	},
	{
		Name: "a checkpoint has a clock that the log has not",
		File: "../../internal/durable/durable.go", Old: `d.Advance(m.Now())`, New: `_ = m.Now()`,
		Test: "^TestClockOfACheckpoint$", // the simulation meets it in one of 11,000 schedules
	},
}

// TestMutants checks that the simulation detects errors: for each mutant it finds a counterexample.
func TestMutants(t *testing.T) {
	mutationtest.Run(t, mutants, 18, "-run", "^TestSimulation$", ".", "-sim.seeds", "500")
}
