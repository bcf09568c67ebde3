// Package checkpoint reads the tensors of a checkpoint that the ranks of a job have written in parts: any
// block of any tensor, from the files that have it.
//
//	s, err := checkpoint.Open(nil, "checkpoint/")
//	err = s.Read(ctx, "q.weight", []int{rows * rank, 0}, []int{rows, 4096}, mine) // this rank's rows
//	err = s.Stream(ctx, w, s.Names(), 0)                                            // all, one after the other
//
// It reads
//
//   - what torch.distributed.checkpoint.save writes (torch 2.6 to 2.15): .metadata, a pickle of which parts
//     there are and where, and .distcp files, in which each part is what torch.save writes for a tensor;
//   - what PyTorch's HuggingFaceStorageWriter writes with save_distributed=True: a safetensors file for each
//     rank, whose metadata has the place of each tensor's first element in the full tensor
//     (DCP_SHARDING_INFO);
//   - models: safetensors files, the indexes of several, and several of them, of which tensors can be joined
//     along an axis.
//
// # What is checked
//
// Open reads what describes the tensors, and no data. It returns an [Error], with the file and the tensor,
// unless each element of each tensor is in exactly one part, all parts have one dtype, and all files have
// what they are said to have, within the directory. Pickles make no objects and run no code: names that such
// a save does not write are refused. So are parts that their writer has compressed.
//
// The shape of a tensor in shards of HuggingFaceStorageWriter is the least that has all its parts, and no
// file says how many shards there are. If the last one is missing, tensors of which it has the end are
// shorter: Options.Shards makes that an error, and Set.Assumed says so.
//
// Values that are no tensors are not read: Set.Others has their names.
//
// # Not supported
//
// Parts that are no blocks: shards of a DTensor that is split twice along an axis (_StridedShard) are read
// where they are blocks, as those of FSDP with tensor parallelism, and are an error otherwise, since they
// overlap. Neither are keys renamed, nor layouts of Megatron or quantized tensors converted.
package checkpoint
