"""Measures one call, in microseconds: of this client, of PyTorch's TCPStore client, or of vLLM's
StatelessProcessGroup on one.

    speed.py muster HOST:PORT        speed.py torch HOST:PORT        speed.py vllm HOST:PORT
    speed.py ratio HOST:PORT

All of them on the store that "muster serve" serves there. Each figure is the median of ten runs;
those of groups are of four processes. ratio alternates between muster's calls and torch's in one
process, which needs torch and msgpack, and prints the median of the ratios of their times: other
load on the machine affects both alike.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import statistics
import sys
import time
from typing import Any, Callable, Dict

RANKS, RUNS, CALLS = 4, 10, 200
VALUE = b"x" * 100


def once(f: Callable[[], Any]) -> float:
    """Returns the microseconds of one call, in a run of them."""
    began = time.perf_counter()
    for _ in range(CALLS):
        f()
    return (time.perf_counter() - began) / CALLS * 1e6


def measure(f: Callable[[], Any]) -> float:
    """Returns the microseconds of one call."""
    once(f)
    return statistics.median(once(f) for _ in range(RUNS))


def ratio(host: str, port: int) -> None:
    """Prints how much longer muster's calls take than torch's."""
    ours, theirs = store("muster", host, port), store("torch", host, port)
    for name, f in ours.items():
        once(f), once(theirs[name])
        ratios = [once(f) / once(theirs[name]) for _ in range(4 * RUNS)]
        print(f"{name} {statistics.median(ratios):.2f}", flush=True)


def store(kind: str, host: str, port: int) -> Dict[str, Callable[[], Any]]:
    if kind == "muster":
        import muster_pg

        m = muster_pg.Store.connect(f"{host}:{port}")
        m.set("k", VALUE)
        return {"set": lambda: m.set("k", VALUE), "get": lambda: m.get("k"), "add": lambda: m.add("n", 1), "wait": lambda: m.wait("k")}
    s: Any = importlib.import_module("torch.distributed").TCPStore(host, port, is_master=False)

    def set_and_check() -> None:
        """Has set wait for the store, as muster's does."""
        s.set("k", VALUE)
        s.check(["k"])

    set_and_check()
    return {"set": set_and_check, "get": lambda: s.get("k"), "add": lambda: s.add("n", 1), "wait": lambda: s.wait(["k"])}


def group(kind: str, host: str, port: int, rank: int) -> Dict[str, Callable[[], Any]]:
    if kind == "muster":
        import muster_pg

        g = muster_pg.Group.join(rank, RANKS, f"{host}:{port}", name="speed", timeout=60)
        return {"barrier": g.barrier, "all_gather": lambda: g.all_gather("x" * 100)}
    torch: Any = importlib.import_module("torch.distributed")
    vllm: Any = importlib.import_module("vllm.distributed.utils").StatelessProcessGroup
    own = torch.PrefixStore(f"speed {os.getppid()}", torch.TCPStore(host, port, is_master=False))  # its keys are of no group
    p = vllm(rank=rank, world_size=RANKS, store=own)
    return {"barrier": p.barrier, "all_gather": lambda: p.all_gather_obj("x" * 100)}


def run(kind: str, host: str, port: int, rank: int) -> None:
    for name, f in group(kind, host, port, rank).items():
        took = measure(f)
        if rank == 0:
            print(f"{name} {took:.1f}", flush=True)
    time.sleep(1)  # no rank leaves before the others have read from it


def main() -> None:
    kind, address = sys.argv[1:]
    host, _, port = address.rpartition(":")
    if kind == "ratio":
        ratio(host, int(port))
        return
    if kind != "vllm":
        for name, f in store(kind, host, int(port)).items():
            print(f"{name} {measure(f):.1f}", flush=True)
    if kind != "torch":
        spawn = multiprocessing.get_context("spawn")
        ranks = [spawn.Process(target=run, args=(kind, host, int(port), rank)) for rank in range(RANKS)]
        for r in ranks:
            r.start()
        for r in ranks:
            r.join()


if __name__ == "__main__":
    main()
