// Package nfsws is a workspace on a directory that ranks share, as on NFS: each publishes its own
// state whole, a config and weights, and others read it. It knows nothing of groups.
//
//	w, err := nfsws.Open("/shared/export", rank, &nfsws.Options{Generation: restarts})
//	version, err := w.Write(ctx, []byte(`{"layers": 2}`), weights)
//	state, err := w.Wait(ctx, 3) // rank 3's, when it has published it
//
// A reader gets all of a state or an error: there are checksums of everything. Nothing that is read
// can run code.
//
// # Files
//
// Two files are a state. Numbers are padded, so that the last by name is the newest; each name is
// used once.
//
//	gen-00000000000000000007/rank-3.0000000042-5f3a9c21.json         the manifest, with the config in it
//	gen-00000000000000000007/rank-3.0000000042-5f3a9c21.safetensors  the weights
//
// The manifest makes the state exist: it gets its name when all else is durable, and weights
// without one are of no state (yet). Two lines of Python read a state:
//
//	state = json.load(open(sorted(glob.glob("gen-00000000000000000007/rank-3.*.json"))[-1]))
//	config, weights = state["config"], dict(safetensors.deserialize(open(f"gen-{state['generation']:020}/{state['weights']['file']}", "rb").read()))
//
// Each of weights has its shape, dtype and data, of whatever dtype. With PyTorch,
// safetensors.torch.load_file makes tensors of them; safetensors.numpy.load_file fails if one is
// BF16 or of another dtype that numpy does not have.
//
// Its last line is the XXH3 checksum of the lines before it, and weights.xxh3 are those of each
// mebibyte of the weights:
//
//	head -n -1 rank-3.0000000042-5f3a9c21.json | xxhsum -H3
//	dd if=rank-3.0000000042-5f3a9c21.safetensors bs=1M skip=0 count=1 | xxhsum -H3
//
// # What it takes
//
// One process at a time is a rank in a generation. If two are, readers still get whole states, but
// either may replace the other's, or make its Write fail. The directory is on a file system with
// close-to-open consistency, as NFS mounted without nocto. An operation of the file system that
// hangs, as on a hard mount whose server is gone, is not interrupted: contexts are looked at
// between operations. Weights that are written must not change before Write returns. Files are
// never mapped: another client that removes one would turn a read into a fault.
package nfsws
