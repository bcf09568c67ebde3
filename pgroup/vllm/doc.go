// Package vllm joins the groups of vLLM: a process of Go is a rank among unmodified StatelessProcessGroups of Python, any
// rank, in any mixture.
//
//	g, err := vllm.Join(ctx, vllm.Config{Rank: 1, Size: 2, Store: s})
//	id, err := vllm.BroadcastObj[pickle.NcclUniqueID](ctx, g, 0, pickle.NcclUniqueID{})
//	err = g.Barrier(ctx)
//
// The store is one that Python reaches as a TCPStore: this process's own, served with torchstore.Protocol, or the one that
// rank 0 of Python hosts, reached with torchstore.Dial (without its Join: this package's counts the rank). A group needs a store of its own, as vLLM's does: its keys do not say
// which group they are of.
//
// Objects travel as pickles; package wire/pickle says which values can. Reading one makes values and runs nothing.
// Between ranks of Go alone, package pgroup is the better group: one verdict for all, streams that know their senders.
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
//	init/                      decimal                  Join: how many have come
//
// N counts from 0: per destination what a rank has sent, objects and tensors together, and per source what was broadcast.
// Ranks of Go tell each other more, below muster/, where vLLM's never look:
//
//	muster/joined/RANK         here ID, leased, left    Join, Close
//	muster/alive/RANK          nothing                  goes with the process, if the store has leases
//	muster/sent/DST            SRC COUNT                the one rank that sends to DST, and how often it has
//	muster/cast/SRC            COUNT                    how often it has broadcast
//	muster/doing/RANK          text                     what a rank waits for, and what it failed in
//
// # What vLLM's keys cannot do
//
// Keys between two ranks do not name the sender. Two senders to one rank would overwrite each other's messages, so a rank of
// Go refuses to be the second one, and to receive from a second one. BroadcastObj has keys with the sender.
//
// There is no common verdict. Ranks of Go agree on the outcome of each Barrier: the first of them to set rank 0's departure
// decides. A rank of Python decides for itself; if it gives up, nobody hears of it.
//
// AllGatherObj, AllReduce and Barrier take their numbers whether they succeed or not, so that ranks of Go stay in step after a
// failure. Python's counts then depend on where it was: after a failure, make another group with it. RecvObj and
// BroadcastObj that time out leave the object where it is, as vLLM's do, and may be repeated.
package vllm
