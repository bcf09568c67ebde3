"""Four ranks of torch.distributed with the backend of muster_pg.torch, of which the last is killed.

    torch_group.py HOST:PORT

HOST:PORT is a muster store that is also the TCPStore. The ranks are forks of one process: it takes
seconds to load torch.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Type

import torch
import torch.distributed as dist
import torch.multiprocessing

import muster_pg
import muster_pg.torch  # noqa: F401  registers the backend

SIZE = 4
LONG = timedelta(seconds=120)


def tensors(rank: int, group: Any) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
        t = torch.full((2, 3), rank + 1, dtype=dtype)
        dist.all_reduce(t, group=group)
        assert t.tolist() == [[10] * 3] * 2, t
    t = torch.arange(6.0).view(2, 3).t()  # not contiguous
    dist.broadcast(t if rank == 1 else t.zero_(), 1, group=group)
    assert t.tolist() == [[0, 3], [1, 4], [2, 5]], t
    for op, want in ((dist.ReduceOp.MAX, 3), (dist.ReduceOp.MIN, 0), (dist.ReduceOp.AVG, 1), (dist.ReduceOp.BOR, 3)):
        t = torch.tensor(rank)
        dist.all_reduce(t, op, group=group)
        assert t.item() == want, (op, t)
    t = torch.tensor([rank])
    dist.reduce(t, 2, group=group)
    assert t.item() == (6 if rank == 2 else rank)
    outs = [torch.zeros(2) for _ in range(SIZE)]
    dist.all_gather(outs, torch.full((2,), float(rank)), group=group)
    assert [o[0].item() for o in outs] == [0, 1, 2, 3]
    out = torch.zeros(8)
    dist.all_gather_into_tensor(out, torch.full((2,), float(rank)), group=group)
    assert out.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    gathered = [torch.zeros(0) for _ in range(SIZE)]  # no elements
    dist.gather(torch.zeros(0), gathered if rank == 0 else None, 0, group=group)
    t = torch.zeros(1)
    dist.scatter(t, [torch.tensor([float(i)]) for i in range(SIZE)] if rank == 3 else None, 3, group=group)
    assert t.item() == rank
    dist.reduce_scatter(t, [torch.tensor([float(i)]) for i in range(SIZE)], group=group)
    assert t.item() == SIZE * rank
    dist.reduce_scatter_tensor(t, torch.arange(4.0), group=group)
    assert t.item() == SIZE * rank
    outs = [torch.zeros(1) for _ in range(SIZE)]
    dist.all_to_all(outs, [torch.tensor([10.0 * rank + i]) for i in range(SIZE)], group=group)
    assert [o.item() for o in outs] == [10 * i + rank for i in range(SIZE)]
    out = torch.zeros(SIZE)
    dist.all_to_all_single(out, torch.arange(4.0) + 10 * rank, group=group)
    assert out.tolist() == [10 * i + rank for i in range(SIZE)]


def objects(rank: int, group: Any) -> None:
    got: List[Any] = [None] * SIZE
    dist.all_gather_object(got, {"rank": rank, (1, 2): "x" * rank}, group=group)
    assert [o["rank"] for o in got] == [0, 1, 2, 3], got
    dist.gather_object(rank, got if rank == 1 else None, 1, group=group)
    assert rank != 1 or got == [0, 1, 2, 3], got
    got = [{"a": 1}, None] if rank == 0 else [None, None]
    dist.broadcast_object_list(got, 0, group=group)
    assert got == [{"a": 1}, None], got
    dist.scatter_object_list(mine := [None], [f"for {i}" for i in range(SIZE)] if rank == 2 else None, 2, group=group)
    assert mine == [f"for {rank}"], mine


def concurrent(rank: int, group: Any) -> None:
    """Asynchronous operations, and messages."""
    ts = [torch.full((2,), float(rank + i)) for i in range(5)]
    works = [dist.all_reduce(t, group=group, async_op=True) for t in ts]
    dist.barrier(group)  # after them
    assert all(w.is_completed() and w.wait() for w in works)
    assert [t[0].item() for t in ts] == [6 + 4 * i for i in range(5)], ts
    future = dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future()
    assert future.wait()[0].item() == SIZE
    after, before = (rank + 1) % SIZE, (rank - 1) % SIZE
    tagged, plain = torch.zeros(1), torch.zeros(1)
    works = [dist.irecv(tagged, before, group, tag=7), dist.irecv(plain, before, group)]
    t = torch.tensor([float(rank)])
    sent = [dist.isend(t, after, group), dist.isend(t + 100, after, group, tag=7)]
    t.zero_()
    for w in sent + works:
        w.wait()
    assert (plain.item(), tagged.item()) == (before, before + 100)
    for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.tensor([rank]), after, group), dist.P2POp(dist.irecv, t := torch.zeros(1, dtype=torch.int64), before, group)]):
        w.wait()
    assert t.item() == before


def fails(kind: Type[BaseException], words: str, f: Callable[[], object]) -> float:
    began = time.monotonic()
    try:
        f()
    except kind as e:
        assert words in str(e), str(e)
        return time.monotonic() - began
    raise AssertionError(f"no error with {words}")


def mismatches(rank: int, _: Any) -> None:
    """A mismatch ends a group, with the same error for all ranks."""
    calls: Dict[str, Callable[[Any], object]] = {
        "called barrier": lambda g: dist.barrier(g) if rank == 0 else dist.all_reduce(torch.ones(1), group=g),
        "SUM of 5 float32": lambda g: dist.all_reduce(torch.ones(5 if rank == 2 else 4), group=g),
        "of 4 int32": lambda g: dist.broadcast(torch.ones(4, dtype=torch.int32 if rank == 1 else torch.float32), 0, group=g, async_op=True).wait(),
    }
    for words, call in calls.items():
        group = dist.new_group(backend="muster", timeout=LONG)
        # Those that agree on a broadcast get it, and the mismatch with their next call.
        fails(muster_pg.Mismatch, words, lambda: (call(group), dist.barrier(group)))


def failures(rank: int, group: Any, other: Any) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 3:  # late: it gets the same result
        store.wait(["seen/0", "seen/1", "seen/2"])
    fails(muster_pg.Timeout, "missing rank 3", lambda: dist.monitored_barrier(group, timedelta(seconds=1), wait_all_ranks=True))
    store.set(f"seen/{rank}", "")
    dist.barrier(group)
    if rank == 3:
        os._exit(0)
    took = fails(muster_pg.Lost, "lost rank 3", lambda: dist.barrier(other))
    assert took < 60, took


def say(part: str) -> None:
    """Prints a line at once: the processes share the output."""
    os.write(1, f"ok {part}\n".encode())


def arrays(rank: int, world: Any) -> None:
    """The verbs of muster_pg.Group with tensors."""
    group: muster_pg.Group = world.group
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.int32):
        t = torch.full((2, 3), rank + 1, dtype=dtype)
        total, mean = group.all_reduce(t), group.all_reduce(t, "mean")
        assert (total.dtype, total.tolist(), t[0, 0].item()) == (dtype, [[10] * 3] * 2, rank + 1), total
        assert mean.dtype == dtype and mean[0, 0].item() == (2.5 if dtype.is_floating_point else 2), mean
    t = torch.arange(6.0, dtype=torch.bfloat16).view(2, 3).t() * (rank == 1)  # not contiguous
    assert group.broadcast(t, 1) is t and t.tolist() == [[0, 3], [1, 4], [2, 5]], t
    for got in (group.all_gather({"w": t, "rank": rank}), group.gather({"w": t, "rank": rank}, 2)):
        assert got is None and rank != 2 or [(g["rank"], g["w"].tolist()) for g in got or []] == [(r, t.tolist()) for r in range(SIZE)]
    group.send(torch.tensor(7.0, requires_grad=True), (rank + 1) % SIZE)
    got = group.recv((rank - 1) % SIZE)
    assert isinstance(got, muster_pg.Array) and got.torch().item() == 7 and str(got) == "F32[]", got
    assert group.all_gather(torch.zeros(0, 3))[3].shape == (0, 3)


def main(rank: int, host: str, port: int) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False)
    dist.init_process_group("muster", store=dist.PrefixStore(f"job {os.getppid()}", store), rank=rank, world_size=SIZE, timeout=LONG)
    world, other = dist.group.WORLD, dist.new_group(backend="muster", timeout=LONG)
    for part in (tensors, arrays, objects, concurrent, mismatches):
        part(rank, world)
        say(part.__name__)
    half = dist.new_group([1, 3], backend="muster", timeout=LONG)
    if rank in (1, 3):
        dist.broadcast_object_list(got := [rank], 3, group=half)
        assert got == [3]
        assert "of ranks 1 and 3" in half.group.name, half.group.name
    failures(rank, world, other)
    say("failures")
    dist.destroy_process_group()


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    torch.multiprocessing.start_processes(main, (host, int(port)), SIZE, start_method="fork")
