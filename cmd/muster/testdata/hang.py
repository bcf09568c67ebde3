"""A rank that hangs in the ways that TestWhoTorch asks for: python hang.py HOST PORT CASES [servers].

CASES are separated by commas, and all ranks go through them in order. In each case the ranks form a
process group in a part of the store of its own. The rank that is at fault waits until the test sets
the key go/CASE, so that the others wait for it. After a collective that does not match, the job
cannot go on. With "servers", each rank has a debug server, as torch.distributed.debug starts it.
"""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False, timeout=datetime.timedelta(minutes=5))

if "servers" in sys.argv:
    from torch._C._distributed_c10d import _WorkerServer

    server = _WorkerServer("127.0.0.1", 0)
    store.set(f"debug_server/rank{rank}", f"http://127.0.0.1:{server.port}")


def sleep(case):
    store.set(f"at/{case}/{rank}", "")
    while not store.check(["go/" + case]):
        time.sleep(0.1)


def compute(case):
    while not store.check(["go/" + case]):
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass


store.set(f"started/{rank}", "")
for case in sys.argv[3].split(","):
    how, _, at = case.partition("-")
    at = [int(r) for r in at.split("-")]
    late = rank in at
    if late and how in ("absent", "stopped", "killed"):
        sleep(case)
    if late and how == "computes":
        compute(case)
    mine = dist.PrefixStore(case, store)
    dist.init_process_group("gloo", store=mine, rank=rank, world_size=size, timeout=datetime.timedelta(minutes=5))
    if how == "group":  # a process group of all ranks, which one does not make
        if late:
            sleep(case)
        dist.new_group(list(range(size)))
    if how == "key" and not late:  # a key of the program
        mine.wait(["ready"])
    if how == "key" and late:
        sleep(case)
        mine.set("ready", "")
    if late and how == "busy":  # in the middle of a job: the others wait in a collective
        compute(case)
    if late and how == "alone":  # one waits for a key of the program, and the others in a collective
        store.wait(["go/" + case])
    if late and how in ("paused", "idle"):
        sleep(case)
    if how == "operation" and late:
        dist.broadcast(torch.ones(4), src=(rank + 1) % size)
    if how == "operation":
        dist.all_reduce(torch.ones(4))
    dist.barrier()
    dist.destroy_process_group()
store.set(f"done/{rank}", "")
store.wait(["end"])
