"""Ranks of a gloo job, of which one makes no progress in a phase that cuts its connections.

    torch_phases.py

It prints a line for each rank: the case, the rank, and how its all_reduce has failed.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import muster_pg

SIZE = 3
CASES = {"lock": 1, "host": 0, "waits": 1}  # the rank that makes no progress; rank 0 hosts torch's store


def rank(case: str, number: int, port: int) -> str:
    os.environ.update(RANK=str(number), WORLD_SIZE=str(SIZE), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    t = torch.ones(1)
    dist.all_reduce(t)
    began = time.monotonic()
    if number == CASES[case]:
        with muster_pg.phase("step", stall=2, on_stall="cut"):
            if case != "waits":
                ctypes.PyDLL(None).sleep(10)  # with the interpreter's lock
                os._exit(0)
            return all_reduce(began)
    if case == "waits" and number == 2:
        time.sleep(10)
        os._exit(0)
    return all_reduce(began)


def all_reduce(began: float) -> str:
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as e:
        return f"failed after {time.monotonic() - began:.0f}s: {str(e).splitlines()[0]}"
    return "no error"


def main() -> None:
    pids = []
    for case in CASES:
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
        for number in range(SIZE):
            pids.append(os.fork())
            if pids[-1] == 0:
                try:
                    os.write(1, f"{case} {number} {rank(case, number, port)}\n".encode())
                finally:
                    os._exit(0)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
