// Package gather brings tensors and configs of many ranks to the first of them: what NVIDIA
// ModelOpt's export does with get_tensors_parallel and get_configs_parallel.
//
//	ga, err := gather.Open(ctx, g, nil)                       // every rank of the group
//	res, err := ga.Tensors(ctx, []int{2, 0, 3}, weight)       // ranks 2, 0 and 3: rank 2 receives
//	defer res.Release()
//	for rank, t := range res.Present() { … }                  // on rank 2, in the order of the list
//
// The ranks of a list call a verb together, each with the same list; the first of the list
// receives. A rank that is not in the list may call too: it waits for no rank, and its result says
// so (Result.Outside). A rank that has nothing passes nil, and is Absent in the result, which stays
// aligned with the list.
//
// # One result for all ranks
//
// A verb succeeds on all ranks of its list or on none. It ends when the first rank has received
// everything, or cannot: if a rank is missing, lost, out of step, or fails, every rank gets the
// same *pgroup.RankError, which names that rank by its number in the group. Shapes and dtypes are
// compared before any bytes are read. A context bounds a verb for all its ranks; one without a
// deadline gets the group's Config.Timeout, and a long transfer needs more than that.
//
// # How bytes travel
//
// Between ranks of one node they are in shared memory. A rank copies its tensors into segments that
// are reused, or not at all if they were allocated in Options.Arena, and the first rank reads them
// in place. Between nodes the first rank fetches them over TCP, into their final place. With
// Options.Dir they go through a directory that all nodes share. What the first rank receives is
// read-only and ends with Release; a tensor that was allocated in an arena is shared until then,
// and must not be modified (Result.WaitReleased).
package gather
