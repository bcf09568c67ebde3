# The ways of torch to do what bench gather measures: RANK SIZE MEETING-FILE. A line is WAY;BYTES;COUNT, answered by one line of JSON.
#
# ModelOpt's way is what modelopt.torch.export's get_tensors_parallel does: every rank saves into a SharedMemory of its own, made for this
# one gather; a barrier; the first rank loads from all; a barrier; and they are removed.
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


def save_map(ts):
    b = BytesIO()
    torch.save(ts, b)
    mine = SharedMemory(name=prefix + str(rank), create=True, size=b.tell())
    mine.buf[:] = b.getbuffer()
    return mine


def modelopt(value, save):
    mine, theirs = None, []
    if rank:
        mine = save(value)
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


def gather_modelopt(n):
    t = torch.ones(n // 4)
    return lambda: modelopt(t, save_tensor)


def gather_map(count):
    ts = {"model.layers.%d.weight" % i: torch.ones(64 * (1 + i % 16)) for i in range(count)}
    return lambda: modelopt(ts, save_map)


def gather_gloo(n):
    t = torch.ones(n // 4)
    into = [torch.ones(n // 4) for _ in range(size)] if rank == 0 else None
    return lambda: dist.gather(t, into, 0)


ways = {"ModelOpt's way": gather_modelopt, "map, ModelOpt's way": gather_map, "gloo gather": gather_gloo}


def cpu():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


for line in sys.stdin:
    way, n, count = line.strip().split(";")
    call = ways[way](int(n))
    took = []
    for i in range(-3, int(count)):
        if i == 0:
            spent = cpu()
        dist.barrier()
        began = time.perf_counter()
        call()
        if i >= 0:
            took.append((time.perf_counter() - began) * 1e6)
    print(json.dumps({"Took": took, "CPU": (cpu() - spent) * 1e6}), flush=True)
    del call
