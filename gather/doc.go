// Package gather brings tensors and configs of many ranks to the first of them: what NVIDIA ModelOpt's export does with
// get_tensors_parallel and get_configs_parallel.
//
//	ga, err := gather.Open(ctx, g, nil)                       // every rank of the group
//	res, err := ga.Tensors(ctx, []int{2, 0, 3}, weight)       // ranks 2, 0 and 3: rank 2 receives
//	defer res.Release()
//	for rank, t := range res.Present() { … }                  // on rank 2, in the order of the list
//
// The ranks of a list call a verb together, each with the same list; the first of the list receives. A rank that is not in
// it may call too, is told so (Result.Outside), and waits for nobody. A rank that has nothing gives nil, and is Absent in the
// result, which stays aligned with the list.
//
// # One verdict
//
// A verb succeeds on all ranks of its list or on none. It ends when the first rank has everything, or has not: whoever is
// missing, lost, out of step, or fails, every rank gets the same *pgroup.RankError, which names that rank as the group
// counts. Shapes and dtypes are compared before any bytes are read. A context bounds a verb for all its ranks; one without
// a deadline gets the group's Config.Timeout, and a long transfer wants more than that.
//
// # How bytes travel
//
// Between ranks of one node they are in shared memory: a rank copies its tensors into segments that are used again and
// again, or not at all if they were born in Options.Arena, and the first rank reads them in place. Between nodes the first
// rank fetches them over TCP, straight to where they belong. With Options.Dir they go through a directory that all
// nodes share. What the first rank gets is read-only and ends with Release; a tensor that was born in an arena is on loan
// until then (Result.Returned).
package gather
