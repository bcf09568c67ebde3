"""The steps of an elastic training: which state this process has, and how the processes of a view
come to one state, so that each step counts for all of them or for none.

A step is decided by a vote, an all-gather of the view's group in the store. A process that does not
learn the outcome, because the view has ended, keeps what it would apply, and the offers of the next
view settle it: if another process has applied the step, it was committed, and is applied here too,
to the same gradients; otherwise nobody has applied it, and it is taken again.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from . import _torch_state
from ._errors import Invalid, StateLost, make, quote
from ._group import Group
from ._torch_native import Replicas, World, forget_inf
from ._view import View

_log = logging.getLogger("muster_pg")


@dataclass(frozen=True)
class Version:
    """What a state is: how many steps it has, and the view in which the last of them was decided; of
    one with which a worker has begun, a random name of that, and generation 0.

    States with equal versions have the same bits, or are the shards of one state.
    """

    steps: int = 0
    run: str = ""
    generation: int = 0

    def __str__(self) -> str:
        return f"step {self.steps}"


@dataclass(frozen=True)
class _Held:
    """A step whose gradients are complete averages, and whose outcome is not known here."""

    version: Version  # of the state once it is applied
    apply: Callable[[bool], None]
    gradients: List[Tuple[torch.Tensor, torch.Tensor, int]]  # of the optimizer's parameters, no copies: and how often each was changed

    def is_whole(self) -> bool:
        """Reports whether the program has not changed the gradients since, when step raised."""
        return all(p.grad is gradient and gradient._version == changed for p, gradient, changed in self.gradients)


@dataclass(frozen=True)
class Offer:
    """What a process tells the others of its view, before they take steps."""

    have: Version
    dirty: bool
    skipped: bool  # the last step was skipped: its gradients had infinities
    held: Optional[Version]
    digest: str  # of the names, dtypes and shapes of the state
    connect: Dict[str, Any]  # see World.handle

    def encode(self) -> List[Any]:
        h = self.held
        held = [h.steps, h.run, h.generation] if h is not None else None
        return [self.have.steps, self.have.run, self.have.generation, self.dirty, self.skipped, held, self.digest, self.connect]

    @classmethod
    def decode(cls, v: Sequence[Any]) -> "Offer":
        steps, run, generation, dirty, skipped, held, digest, connect = v
        return cls(Version(steps, run, generation), dirty, skipped, Version(*held) if held is not None else None, digest, connect)

    def goes_on(self, new: Version) -> bool:
        """Reports whether the process has the newest state."""
        return not self.dirty and self.have == new

    def applies(self, new: Version) -> bool:
        """Reports whether the process makes the newest state of its own."""
        return not self.dirty and self.held == new


class JobView:
    """What a training sees of a view: its place among the processes that train together.

    rank and size count processes, as torch does. Those of one worker have unit as their number,
    and size is units times the processes of a worker.
    """

    def __init__(self, view: View, group: Group) -> None:
        """Not called by users: see ElasticJob.run."""
        self.view = view
        self.group = group  # of all processes, for objects and barriers
        self.rank, self.size = group.rank, group.size
        self.unit, self.units = view.rank, view.size

    @property
    def generation(self) -> int:
        return self.view.generation

    def __repr__(self) -> str:
        return f"<muster_pg.torch.JobView {self.generation}: rank {self.rank} of {self.size}>"


class Steps:
    """The state of a training in this process. It is used by one thread."""

    def __init__(self, job: str, seed: Optional[int]) -> None:
        self.done = Version()
        self.skipped = False
        self.position: Any = None  # the object that moves on while a step is under way
        self._job, self._seed = job, seed
        self._objects: Dict[str, Any] = {}
        self._dirty = False  # the state is between two versions
        self._held: Optional[_Held] = None
        self._buffers: List[Tuple[torch.Tensor, torch.Tensor]] = []  # of models, and their values at the last version
        self._position: Any = None  # its state at the last version

    def add(self, o: Any) -> None:
        """Adds an object of the state."""
        self._objects[f"{len(self._objects)} {type(o).__name__}"] = o
        if isinstance(o, torch.nn.Module):
            self._buffers += [(b, b.detach().clone()) for b in o.buffers()]

    def begin(self, name: str) -> None:
        """Names the state with which this worker begins, the same in all of its processes."""
        if self.done.run == "":
            self.done = Version(self.done.steps, name)
        self._keep()

    def has(self, o: Any) -> bool:
        """Reports whether an object is in the state."""
        return any(o is known for known in self._objects.values())

    def hold(self, view: View, optimizer: torch.optim.Optimizer, apply: Callable[[bool], None]) -> None:
        """Notes a step of optimizer that is about to be decided. No step follows one that was applied in part."""
        if self._dirty:
            raise make(Invalid, f"muster_pg.torch: elastic job {quote(self._job)}: step {self.done.steps + 1} has failed in its update: let train raise that error")
        gradients = [(p, p.grad, p.grad._version) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        self._held = _Held(Version(self.done.steps + 1, view.run, view.generation), apply, gradients)

    def apply(self, skip: bool) -> None:
        """Applies the step that is held, which was committed. If that fails, the state is no version
        until another process's is received.
        """
        held = self._held
        assert held is not None
        self._dirty = True
        held.apply(skip)
        self.done, self.skipped, self._held = held.version, skip, None
        self._keep()
        self._dirty = False

    def offer(self, connect: Dict[str, Any]) -> Offer:
        held = self._held.version if self._held is not None and self._held.is_whole() else None
        return Offer(self.done, self._dirty, self.skipped, held, _torch_state.digest(self._objects), connect)

    def settle(self, view: JobView, offers: Sequence[Offer], world: World) -> str:
        """Brings all processes of a view to the newest state, and returns where this one has it
        from, in words. All choose the same state, and the same sources.
        """
        mine = offers[view.rank]
        found = newest(offers, view.size // view.units)
        if found is None:
            raise make(
                StateLost,
                f"muster_pg.torch: elastic job {quote(self._job)}: of the {view.units} workers of view {view.generation}, some were in the middle of an update, "
                "and the others do not have a whole state: begin with a checkpoint",
            )
        new, sources = found
        source = sources[view.rank % len(sources)]
        latest = max(o.have.steps for o in offers)
        if latest > new.steps:
            _log.warning("elastic job %s: view %d goes back to %s: nobody has a whole state of step %d", self._job, view.generation, new, latest)
        skipped = next(o.skipped for o in offers if not o.dirty and o.have == new)
        receivers = [rank for rank, o in enumerate(offers) if rank not in sources and not o.goes_on(new) and not o.applies(new)]
        if mine.goes_on(new):
            self._restore()
        elif mine.applies(new):
            self.apply(skipped)
        self._held = None
        if any(rank % len(sources) == view.rank % len(sources) for rank in receivers):
            self._copy(view.rank == source, view.rank in receivers, world.replicas(source // len(sources)))
        self.done, self.skipped, self._dirty = new, skipped, False
        for o in self._objects.values():
            if isinstance(o, torch.nn.Module):
                _torch_state.clear(o)
            elif isinstance(o, torch.amp.GradScaler):
                forget_inf(o)
        if self._seed is not None:
            torch.manual_seed(_seed(self._seed, self.done.steps, view.rank))
        return f" from rank {source}" if view.rank in receivers else ""

    def _copy(self, sends: bool, receives: bool, link: Replicas) -> None:
        """Copies the state of one worker's process to those that need it. All processes of the same
        number take part in the broadcast.
        """
        state = _torch_state.State(self._objects)
        plain = link.broadcast_object(state.plain if sends else None)
        if sends or not receives and _torch_state.fits(plain, state):
            _torch_state.send(state.tensors, link)
            return
        tensors = _torch_state.receive(self._objects, plain, link)
        self._dirty = True
        _torch_state.load(self._objects, plain, tensors, link.source)
        self._keep()

    def _keep(self) -> None:
        """Notes what changes before a step is decided."""
        for buffer, kept in self._buffers:
            kept.copy_(buffer)
        if self.position is not None:
            self._position = self.position.state_dict()

    def _restore(self) -> None:
        for buffer, kept in self._buffers:
            buffer.copy_(kept)
        if self.position is not None and self._position is not None:
            self.position.load_state_dict(self._position)


def newest(offers: Sequence[Offer], processes: int) -> Optional[Tuple[Version, List[int]]]:
    """Returns the newest state that workers of some processes have together, and for each process
    of a worker the rank that is the source for those of its number; None if there is no whole state.

    A worker's processes may have come to different states, as when one was killed in its update, so
    the sources may be of several workers.
    """
    units = [offers[at : at + processes] for at in range(0, len(offers), processes)]
    versions = sorted(dict.fromkeys(o.have for o in offers if not o.dirty), key=lambda v: (-v.steps, -v.generation))
    for new in versions:
        sources = []
        for k in range(processes):
            able = [u for u, unit in enumerate(units) if unit[k].goes_on(new)] or [u for u, unit in enumerate(units) if unit[k].applies(new)]
            sources += [u * processes + k for u in able[:1]]
        if len(sources) == processes:
            return new, sources
    return None


def _seed(seed: int, steps: int, rank: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {steps} {rank}".encode()).digest()[:8], "little") >> 1
