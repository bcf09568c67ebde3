"""Ranks of one process group that use their TCPStore all the time: python job.py HOST PORT SIZE

Each waits for the key "go", and then adds to counters until there is "enough". It says "ok RANK" if every add counted once.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

HOST, PORT, SIZE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
TIMEOUT = timedelta(seconds=120)


def job(rank):
    store = dist.TCPStore(HOST, PORT, is_master=False, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=dist.PrefixStore("job", store), rank=rank, world_size=SIZE, timeout=TIMEOUT)
    store.set(f"waits/{rank}", "")
    store.wait(["go"])
    dist.barrier(group=dist.new_group())  # whose ranks find each other through the store
    steps = 0
    while not done(store):
        steps += 1
        own = store.add(f"own/{rank}", 1)
        assert own == steps, (own, steps)
        store.add("all", 1)
        store.set(f"at/{rank}", str(steps))
        assert store.get(f"at/{rank}") == str(steps).encode()
        if steps == 50:
            store.set(f"free/{rank}", "")
    total = torch.tensor([float(steps)])
    dist.all_reduce(total)
    assert store.add("all", 0) == total.item(), total
    dist.barrier(group=dist.new_group())
    dist.destroy_process_group()
    os.write(1, f"ok {rank} {steps}\n".encode())


def done(store):
    return store.check(["enough"]) if hasattr(store, "check") else store.compare_set("enough", "no", "no") != b"no"


def main():
    pids = []
    for rank in range(SIZE):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                job(rank)
                code = 0
            except BaseException as e:  # noqa: BLE001
                sys.stderr.write(f"rank {rank}: {e!r}\n")
            finally:
                os._exit(code)
        pids.append(pid)
    failed = [pid for pid in pids if os.waitpid(pid, 0)[1] != 0]
    sys.exit(len(failed) > 0)


main()
