"""Dumps the Flight Recorder of rank 0 or 1 of two: python dump.py DIR.

It writes rankN.pickle and rankN.json. The ranks have completed an all_reduce in a separate group
and one in the default group. Then rank 0 calls all_reduce, and rank 1 broadcast.
"""

import os
import sys
import threading

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.FileStore(sys.argv[1] + "/store", size)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
dist.all_reduce(torch.ones(4), group=dist.new_group([0, 1]))
dist.all_reduce(torch.ones(8, 2))


def hang():
    if rank == 0:
        dist.all_reduce(torch.ones(5))
    else:
        dist.broadcast(torch.ones(7, dtype=torch.float64), src=0)


threading.Thread(target=hang, daemon=True).start()
while b"broadcast" not in (dump := c10d._dump_fr_trace_json()) and dump.count(b"all_reduce") < 3:
    pass
for name, dump in (("json", c10d._dump_fr_trace_json()), ("pickle", c10d._dump_fr_trace(includeStackTraces="--stacks" in sys.argv))):
    with open(f"{sys.argv[1]}/rank{rank}.{name}", "wb") as f:
        f.write(dump)
store.set(f"dumped/{rank}", "")
store.wait([f"dumped/{1 - rank}"])
os._exit(0)
