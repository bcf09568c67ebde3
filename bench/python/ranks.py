# What torch's gloo does of bench gather and collective: RANK SIZE MEETING-FILE. A line is VERB@WHO;BYTES;COUNT, answered by one line of JSON.
#
# ModelOpt's method is what modelopt.torch.export's get_tensors_parallel does: every rank saves into its own SharedMemory, made for
# this one gather; a barrier; the first rank loads from all; a barrier; and they are removed.
import json
import os
import resource
import sys
import time
from io import BytesIO
from multiprocessing.shared_memory import SharedMemory

rank, size, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=size)
prefix = "muster-bench-%d-" % os.getppid()


def save_tensor(t):
    mine = SharedMemory(name=prefix + str(rank), create=True, size=t.nelement() * t.element_size() + 2048)
    torch.save(t, mine._mmap)
    return mine


def modelopt(value):
    mine, theirs = None, []
    if rank:
        mine = save_tensor(value)
    dist.barrier()
    got = [value]
    if rank == 0:
        for r in range(1, size):
            theirs.append(SharedMemory(name=prefix + str(r)))
            got.append(torch.load(BytesIO(theirs[-1].buf)))
    assert rank or len(got) == size
    del got
    for s in theirs:
        s.close()
    dist.barrier()
    if mine:
        mine.close()
        mine.unlink()


def with_parts(verb, whole, n):
    parts = [torch.ones(n // 4) for _ in range(size)] if whole else None
    part = torch.ones(n // 4)
    return lambda: verb(part, parts)


verbs = {
    "gather@ModelOpt's method": lambda n: lambda t=torch.ones(n // 4): modelopt(t),
    "gather@gloo": lambda n: with_parts(lambda part, parts: dist.gather(part, parts, 0), rank == 0, n),
    "all-gather@gloo": lambda n: with_parts(lambda part, parts: dist.all_gather(parts, part), True, n // size),
    "all-reduce@gloo": lambda n: lambda x=torch.zeros(n // 4): dist.all_reduce(x),
    "broadcast@gloo": lambda n: lambda x=torch.zeros(n // 4): dist.broadcast(x, 0),
    "barrier@gloo": lambda n: dist.barrier,
}


def cpu():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


for line in sys.stdin:
    way, n, count = line.strip().split(";")
    chained = ", chained" in way
    call = verbs[way.replace(", chained", "")](int(n))
    took = []
    for i in range(-3, int(count)):
        if i == 0:
            spent = cpu()
        if i == 0 or not chained:
            dist.barrier()
        began = time.perf_counter()
        call()
        if i >= 0:
            took.append((time.perf_counter() - began) * 1e6)
    print(json.dumps({"Took": took, "CPU": (cpu() - spent) * 1e6}), flush=True)
    del call
