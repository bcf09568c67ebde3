"""A rank under torchrun --rdzv-backend=muster, which works until a file exists.

    elastic.py FILE gloo|store|compute

Meanwhile it reduces with gloo, waits for a key of the store, or does neither. It prints "formed RANK of SIZE pid PID attempt N", and at the end "done RANK of SIZE".
"""

import os
import sys
import threading
import time

import torch
import torch.distributed as dist

import muster_pg
import muster_pg.torch  # registers the backend

stop, waits = sys.argv[1:]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
assert store.add(f"started/{rank}", 1) == 1, "a key of an earlier generation"
control = dist.new_group(backend="muster")


def say(text: str) -> None:
    print(text + "\n", end="", flush=True)  # in one piece: ranks share the output


dist.barrier(control)
world = muster_pg.Group.from_env()  # by MUSTER_STORE and MUSTER_RUN, which the agent has set
assert (world.rank, world.size) == (rank, size)
world.barrier()
say(f"formed {rank} of {size} pid {os.getpid()} attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}")


def reduce() -> None:
    steps = 0
    ended = torch.zeros(1)
    while ended.item() == 0:
        steps += 1
        assert store.add(f"steps/{rank}", 1) == steps
        ended[0] = rank == 0 and os.path.exists(stop)
        dist.all_reduce(ended)
        time.sleep(0.02)


def compute() -> None:
    while not os.path.exists(stop):
        time.sleep(0.02)


def wait() -> None:
    other = store.clone()

    def end() -> None:
        compute()
        other.set("end", b"x")

    threading.Thread(target=end, daemon=True).start()
    store.wait(["end"])


{"gloo": reduce, "store": wait, "compute": compute}[waits]()
world.shutdown()
dist.barrier(control)
store.set(f"ended/{rank}", b"x")
store.wait([f"ended/{r}" for r in range(size)])
say(f"done {rank} of {size}")
dist.barrier(control)  # a rank that ends is a failure for one that still reads the store's answer
dist.destroy_process_group()
