// Package etcdlog replicates a store through etcd. The log of the store's state machine is kept in
// etcd keys; any number of processes may serve one store, one at a time: the leader appends to the
// log, and standbys follow it and take over when the leader has failed.
//
// The semantics of the store are in internal/core, once: etcdlog replicates the log of that state
// machine, as package durable keeps it in a directory. All keys are below a root, "muster/" by
// default:
//
//	root/leader                   the leader's address; every write compares this key's revision
//	root/beat                     the leader's heartbeat, several times in Options.FailureTimeout
//	root/state                    the incarnation, and the checkpoint that a start begins with
//	root/standby/ID               the address and the lag of a standby, put once a second
//	root/log/SEGMENT/SEQUENCE     a part of the log, ordered by both numbers (16 hexadecimal digits)
//	root/checkpoint/ID/PART       a part of a checkpoint: a sealed file of package durable
//
// # Fencing
//
// A process leads from the revision at which it put root/leader until another process puts that
// key. Each transaction of the leader compares the key's modification revision with its own, so a
// leader that was replaced cannot append, however late it notices. It cannot answer either: a
// response, also one to a read, is sent only after a transaction or a linearizable read that began
// after the request arrived and that found the key unchanged (leaderLog.Sync). A false suspicion
// therefore costs a takeover, and never a wrong result: a standby need not wait for a lease to
// expire.
//
// # Failure detection
//
// A standby holds a connection to a port of the leader's process that serves no other purpose. When
// that connection breaks, and a second one is refused or accepted by another process, the leader's
// process has ended, and the standby takes over.
//
// The leader also changes root/beat four times in Options.FailureTimeout. A standby that sees no
// change for FailureTimeout, and finds none when it reads the key, puts root/leader if that key is
// unchanged. A leader that cannot reach etcd for Options.OutageTimeout stops leading and follows:
// its clients connect to the next leader, or wait for one.
package etcdlog
