// Package etcdlog keeps a store's log in an etcd, so that several processes can serve one store, one at a time: a leader appends to
// the log, and standbys follow it and take over when the leader has failed.
//
// The store's semantics are in internal/core, once: what is replicated is the log of its state machine, as a directory keeps it
// (package durable). All keys are below a root, "muster/" by default:
//
//	root/leader                   the leader's address; every change compares this key's revision
//	root/beat                     changed by the leader several times in Options.FailureTimeout
//	root/state                    the incarnation, and the checkpoint that a start begins with
//	root/standby/ID               the address and the lag of a standby, which puts it each second
//	root/log/SEGMENT/SEQUENCE     a part of the log, in the order of both numbers, each of 16 hexadecimal digits
//	root/checkpoint/ID/PART       a part of a checkpoint: a sealed file of package durable
//
// # Fencing
//
// A process leads from the revision at which it put root/leader until somebody else puts it. Each transaction of the leader compares
// that key's modification revision with its own: a leader that was replaced can append nothing, however late it notices. It shows
// nothing either: an answer, also one to a read, leaves only after a transaction or a linearizable read that began after the request
// came, and that found the key unchanged (records.Sync). So a wrong suspicion costs a takeover, and is never wrong in its results:
// a standby need not wait for a lease to end.
//
// # Failure detection
//
// A standby holds a connection to a port of the leader's process, which is for that alone, and takes over when the process has ended: when
// that connection breaks, and a second one is refused, or made by another process.
//
// The leader changes root/beat four times in Options.FailureTimeout. A standby that sees no change of it for FailureTimeout, also not
// when it asks, puts root/leader, if that is still the key it knows. A leader that cannot reach etcd for as long as
// Options.Outage gives up, and follows: its clients find another one, or wait for it.
package etcdlog
