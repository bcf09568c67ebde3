// Package etcdstore is a store over etcd: for those who run one already, and want a group's state to survive the loss of a machine.
//
//	schemes := store.Builtin()
//	schemes["etcd"], schemes["etcds"] = etcdstore.Open, etcdstore.Open
//	g, err := pgroup.Create(ctx, pgroup.Config{Address: "etcd://10.0.0.1:2379,10.0.0.2:2379/jobs", Schemes: schemes, …})
//
// The contract is that of every engine (package storetest). What is different:
//
//   - Leases, and entries with a TTL, live for whole seconds, rounded up, and for etcd's minimum at least: 2 s, unless its election
//     timeout is another than 1 s. They may live up to a second longer.
//   - A process that is gone is lost when its session's lease has ended (Options.Session), not when its connection has.
//   - When history ends is for etcd's operator to say: a Watch from before a compaction is ErrCompacted.
//   - Deletes of several keys, and entries that end with one lease, share a revision.
//   - A Delete of more than 100 keys is several; so many keys at most may be read at once if their reads are counted.
//   - A value, and what a rank gives to a group verb, fits into a request of etcd's: 1.5 MiB, unless its --max-request-bytes is another.
//   - The deadline of a rank that is lost is lost with it: others wait for their own.
//
// # How it works
//
// An Engine is one session: a lease of etcd's, which a goroutine keeps alive. A rank's seat in a group is a key under that lease; so is what
// fences it: a process that was lost can put nothing any more.
//
// Every change is a transaction that also puts a number of its own into a key of the session, on the condition that the number before
// is still there. It is sent again until its outcome is known, and takes effect once. A caller whose time is over hears ErrUnknown,
// and what the process does next begins when the outcome is known. Changes of one entry by several processes compete by its
// revision, with pauses that grow; those of one process queue up.
//
// A group verb is a record: each rank puts its vote, and looks at those of the others in the same transaction; the last one creates the verdict
// there, and all wait for that key alone. So a barrier of N ranks is N transactions and N events; nothing grows with N². Whoever creates a no does so only if no vote has come since it looked. Waiters count again after a
// while, with jitter, and when their time is over, since the last voter may have died before it created the verdict. When all
// have voted, what is left of earlier records is deleted in the same transaction; a root waits for its readers when it is too far ahead of them.
//
// # Who owns what
//
// Each call owns its goroutine, until its context ends. The engine owns, until Close, which waits for them: the one that keeps the
// session alive, two for each lease, two for each group that a rank of this process is in, and one for each change whose caller has gone.
// No request waits longer than Options.Attempt for one member; then it is sent again, to another one perhaps. Close takes up to
// two seconds to say goodbye: ranks have left then, and leases have ended.
package etcdstore
