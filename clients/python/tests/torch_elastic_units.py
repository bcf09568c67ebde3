"""Cases of torch_elastic_cases.py whose workers have two processes, and shard a model over them."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.distributed.fsdp import fully_shard
from torch_elastic_cases import GOAL, Worker, error

import muster_pg
import muster_pg.torch
from muster_pg import _elastic_env
from muster_pg._torch_native import World
from muster_pg._torch_steps import Offer, Version, newest

PROCESSES = 2


class Process(Worker):
    """Process number % 2 of worker number // 2."""

    def job(self, **more: Any) -> muster_pg.torch.ElasticJob:
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
        unit, rank = divmod(self.number, PROCESSES)
        more = {"min_units": 1, "max_units": 3, "timeout": 60, "unit_rank": rank, "unit_size": PROCESSES, **more}
        self.it = muster_pg.torch.ElasticJob(self.store, self.case, f"w{unit}", **more)
        for layer in self.net[0], self.net[2]:
            fully_shard(layer, mesh=self.it.mesh)
        self.model = fully_shard(self.net, mesh=self.it.mesh)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        self.it.register(self.net, self.optimizer)
        return self.it

    def train(self, loss: Callable[[muster_pg.torch.JobView, int], torch.Tensor]) -> str:
        """Takes all steps, and returns the weights."""

        def train(view: muster_pg.torch.JobView) -> List[torch.Tensor]:
            self.is_formed(view)
            while self.it.completed < GOAL:
                loss(view, self.it.completed).backward()
                torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
                self.it.step(self.optimizer)
                self.optimizer.zero_grad()
            return [p.full_tensor().detach() for p in self.net.parameters()]

        weights = self.it.run(train)
        assert weights is not None
        self.net = torch.nn.ParameterList(weights)
        return self.bits()

    def loss(self, view: muster_pg.torch.JobView, step: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(self.batch(view)).square().sum()
        return loss


def interrupted(at: str) -> Callable[[Process], str]:
    """Has a process killed in forward or backward, when others wait for it there, and a worker join
    afterwards, which gets each shard from a process that has it.
    """

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def case(w: Process) -> str:
        if w.number >= w.size:
            w.store.wait(f"interrupted {at}")
        w.job()

        def loss(view: muster_pg.torch.JobView, step: int) -> torch.Tensor:
            if step == 4 and view.units < 2:
                w.store.set(f"interrupted {at}", b"")
                view.view.wait(60)
            if step == 3 and w.number == 3:
                layer = w.net[2]
                layer.register_forward_pre_hook(die) if at == "forward" else layer.register_full_backward_hook(die)
            return w.loss(view, step)

        return "ended " + w.train(loss)

    return case


def raises(w: Process) -> str:
    w.job()

    def loss(view: muster_pg.torch.JobView, step: int) -> torch.Tensor:
        if w.number == 3 and step == 2:
            raise ValueError("a bad batch")
        return w.loss(view, step)

    return "ended " + w.train(loss)


def scaled(w: Process) -> str:
    """Has one process find infinities in its shard of the gradients of a step: all skip it."""
    w.job()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    w.it.register(scaler)
    applied: List[bool] = []

    def train(view: muster_pg.torch.JobView) -> List[torch.Tensor]:
        w.is_formed(view)
        while w.it.completed < GOAL:
            scaler.scale(w.loss(view, w.it.completed)).backward()
            if w.number == 3 and w.it.completed == 2:
                w.net[0].weight.grad.to_local().fill_(float("inf"))
            applied.append(w.it.step(w.optimizer, scaler=scaler))
            w.optimizer.zero_grad()
        return [p.full_tensor().detach() for p in w.net.parameters()]

    w.net = torch.nn.ParameterList(w.it.run(train) or [])
    return f"scale {scaler.get_scale():g} skipped {applied.count(False)} {w.bits()}"


def mismatch(w: Process) -> str:
    """Has a worker join with another model."""
    w.size = PROCESSES
    if w.number >= PROCESSES:
        w.store.wait("mismatch")
    w.job()
    if w.number >= PROCESSES:
        w.it.register(torch.nn.Linear(1, 1))

    def loss(view: muster_pg.torch.JobView, step: int) -> torch.Tensor:
        if step == 2 and w.once():
            w.store.set("mismatch", b"")
            view.view.wait(60)
        return w.loss(view, step)

    return "ended " + w.train(loss)


def forming(w: Process) -> str:
    """Has a process killed while those of its worker connect."""
    if w.number == 1:
        setattr(World, "enter", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    w.job()
    return "made"


def counts(w: Process) -> str:
    w.job()
    w.it.completed = w.number
    return "ended " + w.train(w.loss)


def restarted(w: Process) -> str:
    """Has a worker start when the others of its launch have finished, and left."""
    w.size = PROCESSES
    w.job(launch="first")
    if w.number >= PROCESSES:
        w.store.wait("finished", timeout=60)
        return f"returned {w.it.run(lambda view: view)} after {w.it.completed}"
    says = "ended " + w.train(w.loss)
    w.store.set("finished", b"")
    return says


def nested(w: Process) -> str:
    """Has train call run, and use a module that it has made."""
    w.size = PROCESSES
    w.job()

    def loss(view: muster_pg.torch.JobView, step: int) -> torch.Tensor:
        calls: List[Callable[[], object]] = [lambda: w.it.run(lambda view: None), lambda: w.it.register(w.net), lambda: w.it.ddp(torch.nn.Linear(1, 1))(torch.ones(1))]
        for call in calls:
            try:
                call()
            except muster_pg.Invalid as e:
                w.said.append(str(e))
        return w.loss(view, step)

    return w.train(loss) + " " + " | ".join(w.said)


def away(w: Worker) -> str:
    """Has a durable store end before a worker joins."""
    with tempfile.TemporaryDirectory() as data:
        serve = [os.environ["MUSTER_BINARY"], "serve", "--listen", "127.0.0.1:0", "--data", data]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            store = muster_pg.Store.connect(server.stdout.readline().strip(), timeout=60)
            server.kill()
    return str(muster_pg.torch.ElasticJob(store, w.case, w.id, min_units=1, timeout=11).run(lambda view: view))


def several(w: Worker) -> str:
    """Runs two jobs of one launch, one after the other, and starts again when both are over."""
    os.environ.update({"MUSTER_STORE": w.store.address, "MUSTER_JOB": w.case, "MUSTER_WORKER": w.id, "MUSTER_ELASTIC": "2:2", "MUSTER_LAUNCH": "x"})
    results = []
    for _ in range(2):
        results += [muster_pg.torch.ElasticJob.from_env(timeout=60).run(lambda view: view.size) for _ in range(2)]
        w.store.set(f"several {w.number}", b"")
        w.store.wait("several 0", "several 1", timeout=60)
        _elastic_env.finished.clear()  # as in another process
    return str(results)


def single(w: Worker) -> str:
    said = []
    for call in (
        lambda: muster_pg.torch.ElasticJob(w.store, "j", "i", min_units=1).mesh,
        lambda: muster_pg.torch.ElasticJob(w.store, "j", "i", min_units=1, unit_rank=2, unit_size=2),
        lambda: muster_pg.torch.ElasticJob(w.store, "j", "i", min_units=1, unit_size=0),
    ):
        try:
            call()
        except muster_pg.Invalid as e:
            said.append(error(e))
    return " | ".join(said)


def from_env(w: Worker) -> str:
    found = []
    wrong = {"MUSTER_ELASTIC": "3:2"}, {"MUSTER_ELASTIC": "2:4"}, {"MUSTER_UNIT_RANK": "2", "MUSTER_UNIT_SIZE": "2"}, {"MUSTER_WORKER": "", "TORCHELASTIC_RUN_ID": "none"}, {"MUSTER_LEASE": "soon"}
    for env in ({}, {"MUSTER_STORE": "s", "MUSTER_JOB": "j"}, *wrong):
        if "MUSTER_STORE" not in env and env:
            env = {"MUSTER_STORE": "s", "MUSTER_JOB": "j", "MUSTER_WORKER": "w", "MUSTER_ELASTIC": "2:3", **env}
        os.environ.update(env)
        try:
            muster_pg.torch.ElasticJob.from_env(min_units=2 if env.get("MUSTER_ELASTIC") == "2:4" else 0, max_units=3 if env else 0)
        except muster_pg.Invalid as e:
            found.append(str(e))
        for name in env:
            del os.environ[name]
    return " | ".join(found)


def chosen(w: Worker) -> str:
    """Checks from where the processes of a view get their state: none, or the version and the ranks."""
    first, other, old, last, new = Version(3, "w1"), Version(3, "w2"), Version(7, "r", 2), Version(8, "r", 2), Version(8, "r", 3)

    def offer(have: Version, held: Optional[Version] = None, dirty: bool = False) -> Offer:
        return Offer(have, dirty, False, held, "", {})

    def of(processes: int, *offers: Offer) -> object:
        return newest(offers, processes)

    a, b, dirty, joins, others, ready = offer(old), offer(last), offer(old, dirty=True), offer(Version(0, "w3")), offer(other), offer(first)
    assert of(1, a, b, b) == (last, [1])
    assert of(1, dirty, a) == (old, [1])
    assert of(1, dirty) is None
    assert of(1, offer(last), offer(new)) == (new, [1])
    assert of(1, joins, ready, others) == (first, [1])
    assert of(2, a, a, b, b) == (last, [2, 3])
    assert of(2, b, dirty, dirty, b) == (last, [0, 3])
    assert of(2, b, offer(old, held=last), joins, joins) == (last, [0, 1])
    assert of(2, b, offer(old, held=last), b, b) == (last, [0, 3])
    assert of(2, b, dirty, a, a) == (old, [2, 3])
    assert of(2, b, dirty, dirty, dirty) is None
    assert of(2, ready, ready, others, ready) == (first, [0, 1])
    assert of(2, ready, dirty, others, others) == (other, [2, 3])
    assert of(2, ready, dirty, dirty, others) is None
    return "right"


CASES: Dict[str, Tuple[Callable[[Any], str], int, int]] = {
    "forward": (interrupted("forward"), 4, 2),
    "backward": (interrupted("backward"), 4, 2),
    "raises": (raises, 4, 0),
    "scaled": (scaled, 4, 0),
    "mismatch": (mismatch, 4, 0),
    "forming": (forming, 2, 0),
    "counts": (counts, 2, 0),
    "restarted": (restarted, 4, 0),
    "nested": (nested, 2, 0),
    "away": (away, 1, 0),
    "several": (several, 2, 0),
    "single": (single, 1, 0),
    "from-env": (from_env, 1, 0),
    "chosen": (chosen, 1, 0),
}
