"""What an elastic job adds to a training, beside gloo, in one run and in turns, on one machine.

    PYTHONPATH=clients/python python bench/python/elastic_costs.py MUSTER

The vote of a step, an all-gather of one byte in the store, beside gloo's all-gather and all-reduce of one element, of 2, 8
and 64 processes. And the copy to a worker that joins, of 200 MB in many tensors, beside a broadcast of one tensor.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist

ROUNDS, CALLS, COPIES = 5, 60, 9


def fork(size, work):
    """Runs work(rank) in size processes, and returns what the first one prints."""
    out, inside = os.pipe()
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.dup2(inside, 1) if rank == 0 else os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                work(rank)
                sys.stdout.flush()
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    os.close(inside)
    with os.fdopen(out) as f:
        text = f.read()
    if any(os.waitpid(pid, 0)[1] for pid in pids):
        raise SystemExit("a process has failed")
    return text.strip()


def gloo(rank, size, meeting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=size, timeout=timedelta(seconds=120))


def vote(store, size, meeting):
    def work(rank):
        import muster_pg

        gloo(rank, size, meeting)
        one, all_ones = torch.ones(1), [torch.ones(1) for _ in range(size)]
        with muster_pg.Group.join(rank, size, store, timeout=120) as group:
            channel = group.channel("step")
            calls = {
                "vote": lambda: channel.all_gather_bytes(b"0", timeout=60),
                "all-gather": lambda: dist.all_gather(all_ones, one),
                "all-reduce": lambda: dist.all_reduce(one),
            }
            took = {name: [] for name in calls}
            for _ in range(ROUNDS):
                for name, call in calls.items():
                    for i in range(-5, CALLS):
                        began = time.perf_counter()
                        call()
                        if i >= 0:
                            took[name].append((time.perf_counter() - began) * 1e6)
            group.barrier(timeout=60)
        print(" | ".join(f"{statistics.median(t):.0f}" for t in took.values()))

    return fork(size, work)


def copy(meeting):
    def work(rank):
        from muster_pg import _torch_native, _torch_state

        gloo(rank, 2, meeting)
        link = _torch_native.Replicas(None, 0, torch.device("cpu"))
        many = [torch.ones(256) for _ in range(2000)] + [torch.ones(1 << 14) for _ in range(400)] + [torch.ones(1 << 18) for _ in range(64)] + [torch.ones(1 << 21) for _ in range(13)]
        one = torch.ones(sum(t.numel() for t in many))
        took = {"copy": [], "broadcast": []}
        for _ in range(COPIES):
            for name, call in (("copy", lambda: _torch_state.send(many, link)), ("broadcast", lambda: dist.broadcast(one, 0))):
                dist.barrier()
                began = time.perf_counter()
                call()
                dist.barrier()
                took[name].append(time.perf_counter() - began)
        rates = [one.numel() * 4 / statistics.median(t[1:]) / 1e6 for t in took.values()]
        print(f"{len(many)} tensors, {one.numel() * 4 / 1e6:.0f} MB: {rates[0]:.0f} MB/s; broadcast of one: {rates[1]:.0f} MB/s; ratio {rates[0] / rates[1]:.2f}")

    return fork(2, work)


def main():
    server = subprocess.Popen([sys.argv[1], "serve", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        store = server.stdout.readline().strip()
        with tempfile.TemporaryDirectory() as folder:
            print("| processes | vote, µs | gloo all-gather | gloo all-reduce |\n|---|---|---|---|")
            for size in (2, 8, 64):
                print(f"| {size} | {vote(store, size, os.path.join(folder, str(size)))} |", flush=True)
            print(copy(os.path.join(folder, "copy")))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
