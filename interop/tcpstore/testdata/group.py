"""Ranks of one process group, over a TCPStore that is there already: python group.py HOST PORT SIZE

They are forked, so that torch is loaded once. Each says "ok RANK how" when all verbs gave what they should.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

HOST, PORT, SIZE = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
TIMEOUT = timedelta(seconds=60)


def verbs(rank):
    t = torch.full((4,), float(rank))
    dist.all_reduce(t)
    assert t.tolist() == [SIZE * (SIZE - 1) / 2] * 4, t
    t = torch.full((2,), float(rank))
    dist.broadcast(t, src=1)
    assert t.tolist() == [1.0, 1.0], t
    all = [torch.zeros(1) for _ in range(SIZE)]
    dist.all_gather(all, torch.tensor([float(rank)]))
    assert [x.item() for x in all] == list(range(SIZE)), all
    objects = [None] * SIZE
    dist.all_gather_object(objects, {"rank": rank})
    assert [o["rank"] for o in objects] == list(range(SIZE)), objects
    half = dist.new_group(list(range(SIZE // 2)))
    if rank < SIZE // 2:
        dist.barrier(group=half)
    if hasattr(dist, "monitored_barrier"):
        dist.monitored_barrier(timeout=TIMEOUT)
    dist.barrier()


def by_store(rank):
    store = dist.TCPStore(HOST, PORT, is_master=False, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=dist.PrefixStore("by store", store), rank=rank, world_size=SIZE, timeout=TIMEOUT)


def by_environment(rank):
    os.environ.update(
        MASTER_ADDR=HOST, MASTER_PORT=str(PORT), RANK=str(rank), WORLD_SIZE=str(SIZE),
        TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0",
    )
    dist.init_process_group("gloo", timeout=TIMEOUT)


def main():
    pids = []
    for rank in range(SIZE):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for init in (by_store, by_environment):
                    init(rank)
                    verbs(rank)
                    dist.destroy_process_group()
                    os.write(1, f"ok {rank} {init.__name__}\n".encode())
                code = 0
            except BaseException as e:  # noqa: BLE001
                sys.stderr.write(f"rank {rank}: {e!r}\n")
            finally:
                os._exit(code)
        pids.append(pid)
    failed = [pid for pid in pids if os.waitpid(pid, 0)[1] != 0]
    sys.exit(len(failed) > 0)


main()
