"""DDP and FSDP2 on the backend of muster_pg.torch: what the ranks report when one fails in training.

    torch_train.py HOST:PORT [ddp|fsdp]-[exit|kill|mismatch|timeout|sparse]...

HOST:PORT is a muster store that is also the TCPStore. The ranks are forks of one process. A line for
each says what has failed, the rank, its exit status (negative: a signal), and its error, which has to name
the rank at fault.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from datetime import timedelta
from typing import Any, Callable, Dict

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import muster_pg.torch  # noqa: F401  registers the backend

SIZE, VICTIM = 3, 1

FAILS: Dict[str, Callable[[], object]] = {
    "exit": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "mismatch": dist.barrier,
    "timeout": lambda: time.sleep(10),
    "sparse": lambda: dist.all_reduce(torch.eye(2).to_sparse()),
}
# What the victim reports, and the others too if it is an error.
SAYS = {
    "exit": "0 ",
    "kill": "-9 ",
    "mismatch": "1 .*: ranks disagree: .*rank 1 called barrier",
    "timeout": "1 .*: timed out after .*: missing rank 1",
    "sparse": r"1 .*: rank 1: invalid: a tensor is sparse_coo: pass t\.to_dense\(\)",
}


def train(rank: int, what: str, host: str, port: int) -> None:
    torch.set_num_threads(1)
    store = dist.PrefixStore(f"{what} {os.getppid()}", dist.TCPStore(host, port, is_master=False, wait_for_workers=False))
    dist.init_process_group("muster", store=store, rank=rank, world_size=SIZE, timeout=timedelta(seconds=120))
    kind, _, failure = what.partition("-")
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model: Any = DistributedDataParallel(layers) if kind == "ddp" else fully_shard(layers, mesh=init_device_mesh("cpu", (SIZE,)))
    for step in range(3):
        if failure == "timeout" and step == 2:
            model(torch.ones(2, 4))  # all ranks are there
            dist.group.WORLD.set_timeout(timedelta(seconds=3))
        if rank == VICTIM and step == 2:
            FAILS[failure]()
        model(torch.full((2, 4), float(rank))).sum().backward()


def child(rank: int, what: str, host: str, port: int, out: int) -> None:
    try:
        train(rank, what, host, port)
    except Exception as e:
        os.write(out, str(e).splitlines()[0].encode())
        os._exit(1)
    os._exit(0)


def main(host: str, port: int, *failures: str) -> None:
    for what in failures:
        ranks = []
        for rank in range(SIZE):
            said, out = os.pipe()
            pid = os.fork()
            if pid == 0:
                child(rank, what, host, port, out)
            os.close(out)
            ranks.append((pid, said))
        for rank, (pid, said) in enumerate(ranks):
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            line = f"{status} {os.read(said, 4096).decode()}"
            print(what, rank, line)
            says = SAYS[what.partition("-")[2]]
            if rank != VICTIM and says[0] != "1":
                says = "1 .*: lost rank 1"
            assert re.match(says, line), says


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    main(host, int(port), *sys.argv[2:])
