"""Elastic training whose workers are killed and stopped: the faults that a test asks for.

    torch_elastic.py HOST:PORT SEED FAULT=COUNT...

HOST:PORT is a muster store. Workers are forks of this process. Gradients are whole numbers, of which
every average is exact, so that each worker can compare its weights, bit by bit, with those of one
process that takes the same steps with the same sizes.
"""

from __future__ import annotations

import dis
import faulthandler
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

import muster_pg
import muster_pg.torch
from muster_pg import _torch_ddp, _torch_elastic, _torch_native, _torch_state, _torch_steps

LEAST, MOST = 2, 3
WIDTH = 1000
TTL = 1.0
_PROTOCOL = {
    "step", "hold", "apply", "settle", "_copy", "_keep", "_restore", "receive", "send", "_in_view", "_form", "_agree", "_is_over",
    "enter", "hold", "cut", "closed", "drain", "release", "_under_way", "in_view",
}  # fmt: skip
EXACT = 12  # divisible by each size of a view


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


class Weights(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(WIDTH, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return (self.w * x).sum()


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


def work(address: str, job_name: str, id: str, dies: Optional[Tuple[Tuple[str, int], int]]) -> None:
    torch.set_num_threads(1)
    faulthandler.enable()
    if os.environ.get("VERBOSE"):
        logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {id} %(message)s", stream=sys.stdout)
    store = muster_pg.Store.connect(address, timeout=60)
    net, sizes = Weights(), Sizes()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=1.0)
    job = muster_pg.torch.ElasticJob(store, job_name, id, min_units=LEAST, max_units=MOST, ttl=TTL, timeout=60)
    model = job.ddp(net)
    job.register(net, optimizer, sizes)
    gaps: List[float] = []
    last: List[float] = []
    if dies is not None:
        dies_at(*dies)

    def train(view: muster_pg.torch.JobView) -> None:
        while not store.exists("goal") or job.completed < int(store.get("goal")):
            if view.rank == 0 and job.completed % 10 == 0:
                store.set("at", str(job.completed).encode())
            step = job.completed
            assert step == len(sizes.sizes) == int(net.seen), (step, len(sizes.sizes), int(net.seen))
            model(example(step, view.rank)).backward()
            if not torch.equal(net.w.grad, average(step, view.size)):
                raise AssertionError(f"step {step}: the gradients are not the average of {view.size}")
            sizes.next = view.size
            job.step(optimizer, scheduler=sizes)
            optimizer.zero_grad()
            if last:
                gaps.append(time.monotonic() - last.pop())
            last.append(time.monotonic())

    job.run(train)
    store.close()
    if job.completed != len(sizes.sizes):
        raise AssertionError(f"{job.completed} steps, and {len(sizes.sizes)} in the history")
    if not torch.equal(net.w, one_process(sizes.sizes)):
        raise AssertionError("the weights are not those of one process")
    left = [t.name for t in threading.enumerate() if t.name.startswith("muster")]
    print(f"done {id} {job.completed} {max(gaps, default=0):.3f} {left}", flush=True)


class Faults:
    """The workers of a job, which are replaced, and what happens to them."""

    def __init__(self, address: str, seed: int) -> None:
        self.address, self.random = address, random.Random(seed)
        self.job = f"job{seed}"
        self.live: Dict[int, str] = {}  # by pid, in the order of their start
        self.started = 0

    def start(self, dies: Optional[Tuple[Tuple[str, int], int]] = None) -> int:
        self.started += 1
        id = f"w{self.started}"
        pid = os.fork()
        if pid == 0:
            try:
                work(self.address, self.job, id, dies)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        self.live[pid] = id
        return pid

    def step(self) -> int:
        """Returns a step that the job has completed lately. No thread of a store is there when this process forks."""
        with muster_pg.Store.connect(self.address, timeout=60) as store:
            return int(store.wait("at")[0])

    def kill(self, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)
            del self.live[pid]

    def ended(self, pid: int, seconds: float) -> bool:
        """Waits for a worker to end, and reports whether it has: by SIGKILL, and by nothing else."""
        until = time.monotonic() + seconds
        while True:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                id = self.live.pop(pid)
                if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
                    raise AssertionError(f"worker {id} has ended by itself: {os.waitstatus_to_exitcode(status)}")
                return True
            if time.monotonic() > until:
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
        for pid in list(self.live):
            self.ended(pid, 0)
        pids = list(self.live)
        one = self.random.choice(pids)
        if what == "kill":
            self.kill(one)
        elif what == "first":
            self.kill(pids[0])
        elif what == "two":
            self.kill(*self.random.sample(pids, 2))
        elif what == "join":
            self.start()
        elif what == "stop":
            os.kill(one, signal.SIGSTOP)
            time.sleep(self.random.choice((0.05, 0.5, 1.5 * TTL)))
            os.kill(one, signal.SIGCONT)
        elif what == "line":
            self.kill(one)
            pid = self.start((self.random.choice(protocol()), self.random.randint(1, 5)))
            if not self.ended(pid, 3):
                self.kill(pid)
        else:
            raise ValueError(f"there is no fault {what}")

    def finish(self) -> None:
        """Has the job end, and all workers that are left succeed."""
        with muster_pg.Store.connect(self.address, timeout=60) as store:
            while sum(1 for _ in store.list(f"membership/{self.job}/roster/worker/")) < len(self.live):
                time.sleep(0.01)
            goal = int(store.get("at")) + 200
            store.set("goal", str(goal).encode())
        until = time.monotonic() + 60
        for pid, id in self.live.items():
            while not os.waitpid(pid, os.WNOHANG)[0]:
                if time.monotonic() > until:
                    os.kill(pid, signal.SIGABRT)
                    raise AssertionError(f"worker {id} hangs")
                time.sleep(0.01)
        print(f"ok {goal}", flush=True)


def main(address: str, seed: str, *wanted: str) -> None:
    f = Faults(address, int(seed))
    counts = dict(w.split("=") for w in wanted)
    plan = [fault for fault, n in counts.items() for _ in range(int(n))]
    f.random.shuffle(plan)
    try:
        for what in plan:
            f.fault(what)
        f.finish()
    finally:
        for pid in f.live:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass


def protocol() -> List[Tuple[str, int]]:
    """Returns the lines of the protocol."""
    found = []
    for module in (_torch_elastic, _torch_steps, _torch_state, _torch_native, _torch_ddp):
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
