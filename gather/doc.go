// Package gather brings tensors and configs of many ranks to the first of them, as NVIDIA
// ModelOpt's export does with get_tensors_parallel and get_configs_parallel.
//
//	ga, err := gather.Open(ctx, g, nil)                         // every rank of the group
//	res, err := gather.Tensors(ctx, ga, []int{2, 0, 3}, weight) // ranks 2, 0 and 3: rank 2 receives
//	defer res.Release()
//	for rank, t := range res.Present() { … }                    // on rank 2, in the order of the list
//
// All ranks of a list call a verb together, with the same list; the first rank of the list
// receives. A rank that is not in the list may call too: it waits for no rank, and Result.Outside
// is set. A rank that has nothing passes nil, and is Absent in the result, which stays aligned with
// the list.
//
// # One result for all ranks
//
// A verb succeeds on all ranks of its list or on none. It ends when the first rank has received
// everything, or cannot. If a rank is missing, fails, has left, or makes a different call, every
// rank gets the same *pgroup.RankError, which names that rank by its number in the group. Shapes
// and dtypes are compared before any bytes are read. A context bounds a verb for all its ranks. A
// context without a deadline gets the group's Config.Timeout, which is too short for a long
// transfer.
//
// # How bytes travel
//
// Ranks of one host use shared memory. A rank copies its tensors into segments that are reused, or
// copies nothing if they were allocated in Options.Arena, and the first rank reads them in place.
// Between hosts the first rank fetches the tensors over TCP, into their final place. With
// Options.Dir they go through a directory that all hosts share. What the first rank receives is
// read-only and valid until Release. A tensor that was allocated in an arena is shared until then,
// and must not be modified before (see Result.WaitReleased).
package gather
