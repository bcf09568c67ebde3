"""What the workers of an elastic training report when something of the program is wrong, or fails.

    torch_elastic_cases.py HOST:PORT [CASE]...
    torch_elastic_cases.py HOST:PORT --units

HOST:PORT is a muster store. With --units, the cases are those of torch_elastic_units.py. Workers are forks of this process, and all cases run at once. A line for
each worker says the case, the worker's number, and what it has reported, which has to be as torch_elastic_reports.py says. Workers of a case that
complete all steps must have the same bits.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import signal
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.distributed as dist

import muster_pg
import muster_pg.torch
import torch_elastic_reports
from muster_pg import _torch_state

GOAL = 6  # steps

_Before = Callable[[muster_pg.torch.JobView, int], object]


def nothing(*_: object) -> None:
    pass


class Sampler:
    """Moves on with each batch that is drawn."""

    def __init__(self) -> None:
        self.drawn = 0

    def draw(self) -> int:
        self.drawn += 1
        return self.drawn

    def state_dict(self) -> Dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.drawn = state["drawn"]


class Worker:
    """One worker of a case, which has size workers at first; those after them join later."""

    def __init__(self, address: str, case: str, number: int, size: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(number)
        self.case, self.number, self.size, self.id = case, number, size, f"w{number}"
        self.store = muster_pg.Store.connect(address, timeout=60)
        self.net: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        self.said: List[str] = []  # warnings
        self.first = True  # once has not been called

    def job(self, **more: Any) -> muster_pg.torch.ElasticJob:
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.5, momentum=0.5)
        more = {"min_units": 2, "max_units": 3, "timeout": 60, **more}
        self.it = muster_pg.torch.ElasticJob(self.store, self.case, self.id, **more)
        self.model = self.it.ddp(self.net)
        self.it.register(self.net, self.optimizer)
        return self.it

    def in_order(self) -> None:
        """Waits until the workers before this one are registered: those are the lower ranks."""
        while sum(1 for _ in self.store.list(f"membership/{self.case}/roster/worker/")) < self.number:
            time.sleep(0.01)

    def batch(self, view: muster_pg.torch.JobView) -> torch.Tensor:
        return torch.full((2, 4), float(self.it.completed)) + torch.eye(4)[:2] * view.rank

    def is_formed(self, view: muster_pg.torch.JobView) -> None:
        """Waits for the view of all workers that begin."""
        if self.it.completed == 0 and view.size < self.size:
            view.view.wait(60)
            assert view.view.error is not None
            raise view.view.error

    def step(self, view: muster_pg.torch.JobView, **more: Any) -> bool:
        loss = self.model(self.batch(view)).square().sum()
        more["scaler"].scale(loss).backward() if "scaler" in more else loss.backward()
        applied = self.it.step(self.optimizer, **more)
        self.optimizer.zero_grad()
        return applied

    def run(self, before: _Before = nothing) -> str:
        """Takes all steps, each after a call of before."""

        def train(view: muster_pg.torch.JobView) -> int:
            self.is_formed(view)
            while self.it.completed < GOAL:
                before(view, self.it.completed)
                self.step(view)
            return view.size

        self.in_order()
        size = self.it.run(train)
        return f"done with {size} {self.bits()}"

    def bits(self) -> str:
        h = hashlib.sha256()
        for t in self.net.parameters():  # the running averages of BatchNorm are each rank's own until the next forward
            h.update(t.detach().numpy().tobytes())
        return f"bits {h.hexdigest()[:16]}"

    def once(self) -> bool:
        """Reports whether it is called for the first time in this process."""
        first, self.first = self.first, False
        return first


def error(e: BaseException) -> str:
    kinds = [k.__name__ for k in type(e).__mro__ if k.__module__ in ("muster_pg._errors", "builtins", "muster_pg")]
    return f"{kinds[0]} {','.join(kinds[1:3])}: {' '.join(str(e).split())}"


# Cases: what a worker does; what it returns or raises is reported.


def raises(kind: Callable[[str], Exception]) -> Callable[[Worker], str]:
    def case(w: Worker) -> str:
        def before(view: muster_pg.torch.JobView, step: int) -> None:
            if w.number == 1 and step == 2:
                raise kind("a bad batch")

        w.job()
        return w.run(before)

    return case


def failing_once(w: Worker) -> None:
    """Has the optimizer fail once, with half of the update made."""
    original = w.optimizer.step

    def step(*args: Any) -> None:
        if w.it.completed == 2 and w.once():
            next(iter(w.net.parameters())).data.zero_()
            raise RuntimeError("out of memory")
        original(*args)

    w.optimizer.step = step


def optimizer(w: Worker) -> str:
    w.job()
    if w.number == 1:
        failing_once(w)
    return w.run()


def dirty(w: Worker, failing: Tuple[int, ...] = (0,)) -> str:
    """Has the last worker killed when the others have failed in their update, or completed it."""
    w.job()
    if w.number in failing:
        failing_once(w)

    def before(view: muster_pg.torch.JobView, step: int) -> None:
        if w.number == 2 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    return w.run(before) + (" failed" if not w.first else "")


def lost(w: Worker) -> str:
    return dirty(w, (0, 1))


def again(w: Worker) -> str:
    """Has a program catch what its optimizer raised, and take the next step."""
    w.job(min_units=1, max_units=1)
    failing_once(w)

    def train(view: muster_pg.torch.JobView) -> None:
        while w.it.completed < GOAL:
            try:
                w.step(view)
            except RuntimeError:
                w.optimizer.zero_grad()

    w.it.run(train)
    return "done"


def shape(w: Worker) -> str:
    if w.number == 2:
        w.store.wait("shape")
        w.net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5))
    w.job()

    def before(view: muster_pg.torch.JobView, step: int) -> None:
        if step == 2 and w.once():
            w.store.set("shape", b"")
            view.view.wait(60)

    return w.run(before)


def settings(w: Worker) -> str:
    w.job(settings=f"lr={w.number // 2}")
    if w.number == 2:
        w.store.wait("settings")
        try:
            return w.run()
        finally:
            w.store.set("refused", b"")

    def before(view: muster_pg.torch.JobView, step: int) -> None:
        if step == 2:
            w.store.set("settings", b"")
            w.store.wait("refused")

    return w.run(before)


def same_id(w: Worker) -> str:
    w.id = "w"
    w.job(min_units=1, max_units=2, timeout=3)
    if w.number == 1:
        try:
            return w.run()
        finally:
            w.store.set("refused id", b"")
    return w.run(lambda view, step: w.store.wait("refused id", timeout=60))


def few(w: Worker) -> str:
    w.job(timeout=3)
    return w.run()


def hangs(w: Worker) -> str:
    w.job(timeout=3)

    def before(view: muster_pg.torch.JobView, step: int) -> None:
        if w.number == 1 and step == 2:
            view.view.wait(60)

    return w.run(before) + " " + "; ".join(w.said)


def late(w: Worker) -> str:
    """Has a worker come to a step after the others have waited for as long as they may."""
    w.job(timeout=2)
    w.store.set(f"late {w.number}", b"")
    w.store.wait(*(f"late {number}" for number in range(w.size)), timeout=60)  # they start within timeout

    def before(view: muster_pg.torch.JobView, step: int) -> None:
        if w.number == 1 and step == 2 and w.once():
            time.sleep(3)

    return w.run(before) + " " + "; ".join(w.said)


def unregistered(w: Worker) -> str:
    w.job(min_units=1)
    w.it.run(lambda view: w.it.step(torch.optim.SGD(w.net.parameters())))
    return "taken"


def unsendable(w: Worker) -> str:
    w.job(min_units=1)
    w.optimizer.param_groups[0]["decay"] = {"schedule": lambda: 1}
    return w.run()


def scaler(w: Worker) -> str:
    """Has infinite gradients in step 2, a worker killed in its vote of step 3, and one that joins."""
    own = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    w.job()
    w.it.register(own)
    applied: List[bool] = []
    if w.number == 3:
        w.store.wait("scaler")

    def train(view: muster_pg.torch.JobView) -> None:
        w.is_formed(view)
        while w.it.completed < GOAL:
            step = w.it.completed
            if step == 4 and view.size < 3:
                w.store.set("scaler", b"")
                view.view.wait(60)
            loss = w.model(w.batch(view)).square().sum() * (float("inf") if step == 2 else 1)
            own.scale(loss).backward()
            own.unscale_(w.optimizer)
            torch.nn.utils.clip_grad_norm_(w.net.parameters(), 1.0)
            if step == 3 and w.number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            applied.append(w.it.step(w.optimizer, scaler=own))
            w.optimizer.zero_grad()

    w.in_order() if w.number < 3 else None
    w.it.run(train)
    return f"scale {own.get_scale():g} skipped {applied.count(False)} {w.bits()}"


def taken_again(w: Worker) -> str:
    """Has a worker killed when the others have accumulated gradients, moved their sampler and buffers."""
    sampler = Sampler()
    w.job()
    w.it.register(position=sampler)

    def train(view: muster_pg.torch.JobView) -> None:
        w.is_formed(view)
        while w.it.completed < GOAL:
            step = w.it.completed
            assert sampler.drawn == 2 * step == int(w.net[1].num_batches_tracked), (sampler.drawn, step)
            with w.model.no_sync():
                (w.model(w.batch(view)) * sampler.draw()).square().sum().backward()
            loss = (w.model(w.batch(view)) * sampler.draw()).square().sum()
            if step == 3 and w.number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            w.it.step(w.optimizer)
            w.optimizer.zero_grad()

    w.in_order()
    w.it.run(train)
    return f"drawn {sampler.drawn} {w.bits()}"


def source(w: Worker) -> str:
    """Has a worker killed while it sends the state with which it began. Another one began with as many steps."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    steps: List[int] = []
    w.job()
    w.it.completed = 3 if w.number < 2 else 0
    w.size = 2
    if w.number == 0:
        setattr(_torch_state, "send", die)
    said = w.run(lambda view, step: steps.append(step))
    return f"from {steps[0]} {said}"


def unknown(change: Callable[[Worker], object]) -> Callable[[Worker], str]:
    """Has a worker lose its view, and change its gradients, before it learns that a step is decided."""

    def case(w: Worker) -> str:
        w.job()
        copies: List[bool] = []
        copy = w.it._steps._copy

        def noted(sends: bool, receives: bool, link: Any) -> None:
            copies.append(receives)
            copy(sends, receives, link)

        def lose(skip: bool) -> None:
            w.it._worker.forget()
            assert w.it.view.view.error is not None
            raise w.it.view.view.error

        def step(view: muster_pg.torch.JobView, step: int) -> None:
            steps = w.it._steps
            if w.number == 1 and step == 3:
                if w.once():
                    setattr(steps, "apply", lose)
                    setattr(steps, "_copy", noted)
                    try:
                        w.step(view)
                    finally:
                        change(w)
                        del steps.apply

        says = w.run(step)
        return f"received {copies.count(True)} {says}"

    return case


def other_torch(w: Worker) -> str:
    del dist._reconfigure
    w.job()
    return "made"


def initialized(w: Worker) -> str:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    w.job()
    return w.run()


def outside(w: Worker) -> str:
    w.job()
    w.it.step(w.optimizer)
    return "taken"


Cases = Dict[str, Tuple[Callable[[Any], str], int, int]]

CASES: Cases = {  # workers that begin, and that join later
    "value": (raises(ValueError), 3, 0),
    "runtime": (raises(RuntimeError), 3, 0),
    "optimizer": (optimizer, 3, 0),
    "dirty": (dirty, 3, 0),
    "lost": (lost, 3, 0),
    "again": (again, 1, 0),
    "shape": (shape, 2, 1),
    "settings": (settings, 2, 1),
    "id": (same_id, 1, 1),
    "few": (few, 1, 0),
    "hangs": (hangs, 3, 0),
    "late": (late, 3, 0),
    "unregistered": (unregistered, 1, 0),
    "unsendable": (unsendable, 2, 0),
    "scaler": (scaler, 3, 1),
    "position": (taken_again, 3, 0),
    "source": (source, 3, 0),
    "unknown": (unknown(nothing), 3, 0),
    "cleared": (unknown(lambda w: w.optimizer.zero_grad()), 3, 0),
    "changed": (unknown(lambda w: [p.grad.zero_() for p in w.net.parameters()]), 3, 0),
    "other-torch": (other_torch, 1, 0),
    "initialized": (initialized, 1, 0),
    "outside": (outside, 1, 0),
}


class Said(logging.Handler):
    def __init__(self, w: Worker) -> None:
        super().__init__(logging.WARNING)
        self.w = w

    def emit(self, record: logging.LogRecord) -> None:
        self.w.said.append(record.getMessage())


def child(cases: Cases, make: Callable[..., Worker], address: str, case: str, number: int, out: int) -> None:
    run, size, _ = cases[case]
    if os.environ.get("VERBOSE"):
        logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {case} {number} %(message)s", stream=sys.stderr)
    began = time.monotonic()
    try:
        w = make(address, case, number, size)
        logging.getLogger("muster_pg").addHandler(Said(w))
        says = run(w)
    except Exception as e:
        if os.environ.get("VERBOSE"):
            logging.exception("")
        says = error(e)
    if os.environ.get("VERBOSE"):
        says += f" {time.monotonic() - began:.1f}s"
    os.write(out, says.encode()[:4096])
    os._exit(0)


def main(address: str, *wanted: str) -> None:
    cases, make, reports = CASES, Worker, torch_elastic_reports.CASES
    if wanted == ("--units",):
        import torch_elastic_units

        cases, make, reports, wanted = torch_elastic_units.CASES, torch_elastic_units.Process, torch_elastic_reports.UNITS, ()
    workers: List[Tuple[str, int, int, int]] = []
    for case in wanted or cases:
        _, size, later = cases[case]
        for number in range(size + later):
            said, out = os.pipe()
            pid = os.fork()
            if pid == 0:
                child(cases, make, address, case, number, out)
            os.close(out)
            workers.append((case, number, pid, said))
    bits: Dict[str, str] = {}
    lines: List[str] = []
    for case, number, pid, said in workers:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        says = os.read(said, 4096).decode()
        lines.append(f"{case} {number} {status} {says}")
        print(lines[-1], flush=True)
        until = time.monotonic() + 10
        while torch_elastic_reports.monitors(pid):
            if time.monotonic() > until:
                raise AssertionError(f"{case}: worker {number} has left its monitor")
            time.sleep(0.05)
        found = re.search(" bits ([0-9a-f]{16})", says)
        if found and bits.setdefault(case, found[1]) != found[1]:
            raise AssertionError(f"{case}: worker {number} has other bits")
    torch_elastic_reports.check(lines, reports, wanted or cases)


if __name__ == "__main__":
    main(*sys.argv[1:])
