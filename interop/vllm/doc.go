// Package vllm joins the groups of vLLM: a Go process is a rank among unmodified
// StatelessProcessGroups of Python, any rank, in any mixture.
//
//	g, err := vllm.Join(ctx, vllm.Config{Rank: 1, Size: 2, Store: s})
//	id, err := vllm.BroadcastObj[vllm.NcclUniqueID](ctx, g, 0, vllm.NcclUniqueID{})
//	err = g.Barrier(ctx)
//
// The store is one that Python reaches as a TCPStore: this process's own, served with
// tcpstore.Protocol, or the one that a Python rank 0 hosts, reached with tcpstore.Dial (without
// its Join: this package counts the rank). A group needs its own store, as in vLLM: its keys do
// not name the group.
//
// Objects are sent as pickles of plain values, the Go types of values.go. Decoding one makes values
// and runs no code. Between Go ranks alone use package pgroup: all ranks get the same result,
// and streams have a sender.
//
// # Keys
//
//	key                        value                    from
//	send_to/DST/N              pickle                   SendObj
//	send_tensor/DST/N          pickle                   Send
//	broadcast_from/SRC/N       pickle                   BroadcastObj, AllGatherObj, AllReduce, Barrier: its ID
//	broadcast_tensor/SRC/N     pickle                   Broadcast
//	arrival_ID_RANK            anything                 Barrier
//	departure_ID_RANK          anything                 Barrier
//	init/                      decimal                  Join: how many have joined
//
// N counts from 0: per destination what a rank has sent, objects and tensors together, and per source what was broadcast.
// Go ranks publish more for each other, below muster/, where vLLM does not look:
//
//	muster/joined/RANK         here ID, leased, left    Join, Close
//	muster/alive/RANK          nothing                  leased: expires with the process
//	muster/sent/DST            SRC COUNT                the only sender to DST, and its count
//	muster/cast/SRC            COUNT                    broadcasts that it has sent
//	muster/doing/RANK          text                     what a rank waits for, or failed in
//
// # What vLLM's keys cannot do
//
// Keys between two ranks do not name the sender. Two senders to one rank would overwrite each
// other's messages, so a Go rank refuses to be the second one, and to receive from a second one.
// BroadcastObj has keys with the sender.
//
// There is no common result. Go ranks agree on the result of each Barrier: the first of them that
// sets rank 0's departure key decides. A Python rank decides for itself; if it gives up, no other
// rank learns of it.
//
// Nobody stalls: Python ranks report no progress, and no rank decides for the others. A wait ends
// with its deadline; groups of Go ranks alone have pgroup's stall.
//
// AllGatherObj, AllReduce and Barrier use their numbers whether they succeed or not, so that Go
// ranks stay in step after a failure. Python's counts then depend on where it failed: make another
// group after a failure with Python. RecvObj and BroadcastObj that time out leave the object where
// it is, as in vLLM, and may be repeated.
package vllm
