"""Elastic training whose workers are killed and stopped: the faults that a test asks for.

    torch_elastic.py HOST:PORT SEED PROCESSES FAULT=COUNT...
    torch_elastic.py HOST:PORT torchrun

HOST:PORT is a muster store. Workers have PROCESSES processes, forks of this one: with several, the
model is sharded over them (FSDP2), and faults happen to one of them. Gradients are whole numbers, of which
every average is exact, so that each worker can compare its weights, bit by bit, with those of one
process that takes the same steps with the same sizes. With torchrun, this is one process of a worker,
which torchrun has started.
"""

from __future__ import annotations

import dis
import faulthandler
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import muster_pg
import muster_pg.torch
from muster_pg import _torch_ddp, _torch_elastic, _torch_native, _torch_state, _torch_steps, _torch_worker, _unit

LEAST, MOST = 2, 3
WIDTH = 1000
TTL = float(os.environ.get("TTL", 1))  # of the leases, in seconds
_PROTOCOL = {
    "step", "hold", "apply", "settle", "_copy", "_keep", "_restore", "receive", "send", "_in_view", "_form", "_agree", "_is_over",
    "enter", "hold", "cut", "closed", "drain", "release", "_under_way", "in_view", "next", "_join", "begin", "registered", "broadcast_object",
}  # fmt: skip
EXACT = 12  # divisible by each number of processes of a view


def example(step: int, rank: int) -> torch.Tensor:
    """Returns whole numbers, as what rank learns from in a step."""
    return (torch.arange(WIDTH, dtype=torch.float64) * (step % 13 + 1) + 7 * rank + step % 5) % 17 * EXACT


def average(step: int, size: int) -> torch.Tensor:
    total = torch.zeros(WIDTH, dtype=torch.float64)
    for rank in range(size):
        total += example(step, rank)
    return total / size


class Sizes:
    """The size of the view in which each step was taken."""

    def __init__(self) -> None:
        self.sizes: List[int] = []
        self.next = 0

    def step(self) -> None:
        self.sizes.append(self.next)

    def state_dict(self) -> Dict[str, Any]:
        return {"sizes": list(self.sizes)}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.sizes = list(state["sizes"])


class Growth:
    """What this process holds in each view that it has entered."""

    def __init__(self) -> None:
        self.views: List[Tuple[int, int, int]] = []

    def view(self) -> None:
        with open("/proc/self/statm") as f:
            pages = int(f.read().split()[1])
        self.views.append((threading.active_count(), len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE") >> 20))

    def check(self) -> None:
        """Compares the last views with those after the first ten."""
        if len(self.views) < 40:
            return
        for what, room, counts in zip(("threads", "descriptors", "MiB"), (0, 0, 32), zip(*self.views)):
            before, after = max(counts[10:20]), max(counts[-10:])
            if after > before + room:
                raise AssertionError(f"{what}: {before} in views 10 to 20, and {after} in the last ten of {len(counts)}: {counts}")
        print(f"constant {self.views[-1]} after {len(self.views)} views", flush=True)


class Weights(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return (self.w * x).sum()


def whole(t: torch.Tensor) -> torch.Tensor:
    return t.full_tensor() if isinstance(t, DTensor) else t


def one_process(sizes: List[int]) -> torch.Tensor:
    """Returns the weights of one process that takes steps of these sizes, with momentum 1."""
    w = torch.zeros(WIDTH, dtype=torch.float64)
    momentum = torch.zeros(WIDTH, dtype=torch.float64)
    for step, size in enumerate(sizes):
        momentum += average(step, size)
        w -= momentum
    return w


def dies_at(line: Tuple[str, int], hits: int) -> None:
    """Has this process killed when it comes to a line of a file of the package, for the nth time."""
    left = [hits]

    def trace(frame: Any, event: str, arg: object) -> Any:
        if frame.f_code.co_filename != line[0]:
            return None

        def at(frame: Any, event: str, arg: object) -> Any:
            if event == "line" and frame.f_lineno == line[1]:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return at

        return at

    threading.settrace(trace)
    sys.settrace(trace)


def work(address: str, job_name: str, id: str, place: Tuple[int, int], dies: Optional[Tuple[Tuple[str, int], int]]) -> None:
    """Takes steps until the store has the goal. Without a name of the job, the environment has the place in it."""
    torch.set_num_threads(1)
    faulthandler.enable()
    if os.environ.get("VERBOSE"):
        logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {id}-{place[0]} %(message)s", stream=sys.stdout)
    store = muster_pg.Store.connect(address, timeout=60)
    net, sizes = Weights(), Sizes()
    if job_name:
        job = muster_pg.torch.ElasticJob(
            store, job_name, id, min_units=LEAST, max_units=MOST, unit_rank=place[0], unit_size=place[1], ttl=TTL, timeout=60,
        )  # fmt: skip
    else:
        job = muster_pg.torch.ElasticJob.from_env(ttl=TTL, timeout=60)
        place = job.unit_rank, job.unit_size
    model = fully_shard(net, mesh=job.mesh) if place[1] > 1 else job.ddp(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=1.0)
    job.register(net, optimizer, sizes)
    gaps: List[float] = []
    last: List[float] = []
    if dies is not None:
        dies_at(*dies)

    growth = Growth()

    def train(view: muster_pg.torch.JobView) -> None:
        growth.view()
        while not store.exists("goal") or job.completed < int(store.get("goal")):
            if view.rank == 0 and job.completed % 10 == 0:
                store.set("at", str(job.completed).encode())
            step = job.completed
            assert step == len(sizes.sizes) == int(net.seen), (step, len(sizes.sizes), int(net.seen))
            model(example(step, view.rank)).backward()
            expected = average(step, view.size)
            if place[1] > 1:
                expected = expected.chunk(place[1])[place[0]]
            if not torch.equal(net.w.grad.to_local() if place[1] > 1 else net.w.grad, expected):
                raise AssertionError(f"step {step}: the gradients are not the average of {view.size}")
            sizes.next = view.size
            job.step(optimizer, scheduler=sizes)
            optimizer.zero_grad()
            if last:
                gaps.append(time.monotonic() - last.pop())
            last.append(time.monotonic())

    weights: List[torch.Tensor] = []

    def run(view: muster_pg.torch.JobView) -> None:
        train(view)
        weights[:] = [whole(net.w.detach())]  # while the groups are there

    job.run(run)
    store.close()
    growth.check()
    if job.completed != len(sizes.sizes):
        raise AssertionError(f"{job.completed} steps, and {len(sizes.sizes)} in the history")
    if weights and not torch.equal(weights[0], one_process(sizes.sizes)):
        raise AssertionError("the weights are not those of one process")
    left = [t.name for t in threading.enumerate() if t.name.startswith("muster")]
    os.write(1, f"done {id}-{place[0]} {job.completed} {max(gaps, default=0):.3f} {left}\n".encode())  # as one piece, beside those of others


class Faults:
    """The workers of a job, which are replaced, and what happens to them."""

    def __init__(self, address: str, seed: int, processes: int) -> None:
        self.address, self.random, self.processes = address, random.Random(seed), processes
        self.job = f"job{seed}"
        self.live: Dict[str, List[int]] = {}  # pids of the processes, by worker, in the order of their start
        self.started = 0

    def start(self, dies: Optional[Tuple[Tuple[str, int], int]] = None) -> str:
        """Starts a worker, of which one process may die by itself."""
        self.started += 1
        id, dying = f"w{self.started}", self.random.randrange(self.processes)
        self.live[id] = []
        for rank in range(self.processes):
            pid = os.fork()
            if pid == 0:
                try:
                    work(self.address, self.job, id, (rank, self.processes), dies if rank == dying else None)
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
                os._exit(0)
            self.live[id].append(pid)
        return id

    def step(self) -> int:
        """Returns a step that the job has completed lately. No thread of a store is there when this process forks."""
        with muster_pg.Store.connect(self.address, timeout=60) as store:
            return int(store.wait("at")[0])

    def last(self) -> str:
        """Waits for a view of MOST workers, all alive, and returns the last one's id."""
        with muster_pg.Store.connect(self.address, timeout=60) as store:
            while True:
                workers: List[str] = json.loads(store.get(f"membership/{self.job}/roster/view"))["Workers"][::3]
                if len(workers) == MOST and set(workers) <= set(self.live):
                    return workers[-1]
                time.sleep(0.01)

    def kill(self, *ids: str) -> None:
        """Kills a process of each worker; the others end by themselves."""
        for id in ids:
            os.kill(self.random.choice(self.live[id]), signal.SIGKILL)
        for id in ids:
            if not self.ended(id, 30):
                raise AssertionError(f"worker {id} has lost a process, and goes on")

    def ended(self, id: str, seconds: float) -> bool:
        """Waits for a worker to end, and reports whether it has: because a process was killed, and
        for no other reason.
        """
        until = time.monotonic() + seconds
        found: Dict[int, int] = {}  # exit codes
        while True:
            for pid in set(self.live[id]) - set(found):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    found[pid] = os.waitstatus_to_exitcode(status)
                    until = max(until, time.monotonic() + 60)  # the others follow, at their timeout if nothing else tells them
            if len(found) == self.processes:
                del self.live[id]
                if -signal.SIGKILL not in found.values() or 0 in found.values():
                    raise AssertionError(f"worker {id} has ended by itself: {list(found.values())}")
                return True
            if time.monotonic() > until:
                if found:
                    for pid in set(self.live[id]) - set(found):
                        os.kill(pid, signal.SIGABRT)  # it prints its stacks
                        os.waitpid(pid, 0)
                    raise AssertionError(f"of worker {id} a process goes on")
                return False
            time.sleep(0.01)

    def fault(self, what: str) -> None:
        """Has one fault happen to a job that has a spare worker."""
        while len(self.live) < MOST + 1:
            self.start()
        before, until = self.step(), time.monotonic() + 60
        while self.step() == before:
            if time.monotonic() > until:
                raise AssertionError(f"no step for 60 s after step {before}")
            time.sleep(self.random.uniform(0, 0.2))
        for id in list(self.live):
            self.ended(id, 0)
        ids = list(self.live)
        one = self.random.choice(ids)
        if what == "kill":
            self.kill(one)
        elif what == "first":
            self.kill(ids[0])
        elif what == "last":
            self.kill(self.last())
        elif what == "two":
            self.kill(*self.random.sample(ids, 2))
        elif what == "join":
            self.start()
        elif what == "stop":
            pid = self.random.choice(self.live[one])
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.random.choice((0.05, 0.5, 1.5 * TTL)))
            os.kill(pid, signal.SIGCONT)
        elif what == "wait":  # for what the test does
            with muster_pg.Store.connect(self.address, timeout=60) as store:
                store.set("waits", b"")
                store.wait("go on")
        elif what == "line":
            self.kill(one)
            id = self.start((self.random.choice(protocol()), self.random.randint(1, 5)))
            if not self.ended(id, 3):
                self.kill(id)
        else:
            raise ValueError(f"there is no fault {what}")

    def finish(self) -> None:
        """Has the job end, and all workers that are left succeed."""
        with muster_pg.Store.connect(self.address, timeout=60) as store:
            while sum(1 for _ in store.list(f"membership/{self.job}/roster/worker/")) < len(self.live):
                time.sleep(0.01)
            keys = [e.key for e in store.list("")]
            if len(keys) > 100:
                raise AssertionError(f"{len(keys)} keys are left: {keys}")
            goal = int(store.get("at")) + 200
            store.set("goal", str(goal).encode())
        until = time.monotonic() + 60
        for id, pid in ((id, pid) for id, pids in self.live.items() for pid in pids):
            while not os.waitpid(pid, os.WNOHANG)[0]:
                if time.monotonic() > until:
                    os.kill(pid, signal.SIGABRT)
                    raise AssertionError(f"worker {id} hangs")
                time.sleep(0.01)
        print(f"ok {goal}", flush=True)


def main(address: str, seed: str, processes: str = "1", *wanted: str) -> None:
    if seed == "torchrun":
        return work(address, "", "torchrun", (0, 1), None)
    f = Faults(address, int(seed), int(processes))
    counts = dict(w.split("=") for w in wanted)
    plan = [fault for fault, n in counts.items() for _ in range(int(n))]
    f.random.shuffle(plan)
    try:
        for what in plan:
            f.fault(what)
        f.finish()
    finally:
        for pid in (pid for pids in f.live.values() for pid in pids):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass


def protocol() -> List[Tuple[str, int]]:
    """Returns the lines of the protocol."""
    found = []
    for module in (_torch_elastic, _torch_steps, _torch_state, _torch_native, _torch_ddp, _torch_worker, _unit):
        assert module.__file__ is not None
        codes = [compile(open(module.__file__).read(), module.__file__, "exec")]
        while codes:
            code = codes.pop()
            codes += [c for c in code.co_consts if hasattr(c, "co_code")]
            if code.co_name in _PROTOCOL:
                found += [(module.__file__, line) for _, line in dis.findlinestarts(code) if line]
    return sorted(set(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
