# The verbs of torch's gloo that bench collective measures: RANK SIZE MEETING-FILE. A line is VERB;BYTES;COUNT, answered by one line of JSON.
import json
import resource
import os
import sys
import time

rank, size, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=size)


def all_reduce(n):
    x = torch.zeros(n // 4)
    return lambda: dist.all_reduce(x)


def broadcast(n):
    x = torch.zeros(n // 4)
    return lambda: dist.broadcast(x, 0)


def all_gather(n):
    into = [torch.zeros(n // 4 // size) for _ in range(size)]
    x = torch.zeros(n // 4 // size)
    return lambda: dist.all_gather(into, x)


verbs = {"all-reduce": all_reduce, "broadcast": broadcast, "all-gather": all_gather, "barrier": lambda n: dist.barrier}


def cpu():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


for line in sys.stdin:
    way, n, count = line.strip().split(";")
    verb, _, chained = way.partition("@")[0].partition(", ")
    call = verbs[verb](int(n))
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
