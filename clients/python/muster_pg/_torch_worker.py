"""One process of a worker in an elastic training: its place in the job, and its process groups."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Iterator, Optional

from ._elastic import ElasticMember
from ._errors import Closed, Error, Evicted, Excluded, Finished, IDInUse, Invalid, Timeout, make, quote
from ._store import Store
from ._torch_native import Connections, World
from ._unit import Unit
from ._view import View

_UNIT_TIMEOUT = 10.0  # seconds in which the processes of a worker connect, once all have come
_REPORT = 10.0  # seconds after which the log says what is waited for, again and again

_log = logging.getLogger("muster_pg")


@dataclass(frozen=True)
class Config:
    """What ElasticJob was given: see there."""

    job: str
    id: str
    least: int
    most: int
    rank: int  # in the worker
    processes: int  # of each worker
    settings: str
    settle: float
    ttl: float
    launch: str
    timeout: float
    join_timeout: float


@contextmanager
def reported(job: str, why: str) -> Iterator[None]:
    """Says in the log what is waited for, when that takes long."""
    timer = threading.Timer(_REPORT, _log.warning, ("elastic job %s: it still waits: %s", job, why))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Worker:
    """It owns the registration of the worker, which process 0 makes, and the process groups of
    torch, from begin to close.
    """

    def __init__(self, store: Store, config: Config) -> None:
        self.config = config
        self.unit: Optional[Unit] = None
        self.member: Optional[ElasticMember] = None
        self.mesh: Any = None  # of a worker of several processes
        self._world: Optional[World] = None
        self._store = store
        self._forming: Optional[Store] = None  # where the processes of the worker connect

    @property
    def world(self) -> World:
        assert self._world is not None
        return self._world

    def begin(self, backend: str, keys: Store) -> None:
        """Waits for the other processes of the worker, and makes the process groups, of this worker
        alone, once.
        """
        if self._world is not None:
            return
        c = self.config
        with reported(c.job, f"the {c.processes} processes of worker {quote(c.id)} have not all come"):
            self.unit = Unit(self._store, c.job, c.id, c.rank, c.processes, c.timeout, self._lost)
        self._world = World(backend, keys.below("none/"), c.timeout, c.processes)
        if self.unit.store is not None:
            handles = self.unit.all_gather(self._world.handle, c.join_timeout)
            self._forming = self.unit.store._scoped()
            try:
                if self.unit.error is None:
                    self._world.enter(Connections(), self._forming, 0, c.rank, handles, min(c.join_timeout, _UNIT_TIMEOUT))
            except Exception:
                if self.unit.error is None:
                    raise
            if self.unit.error is not None:
                raise self.unit.error
            self.mesh = self._world.mesh()

    def agree(self, steps: int) -> str:
        """Returns a random name for the state with which the worker begins, the same in all of its
        processes, which must have as many steps.
        """
        assert self.unit is not None
        names, counts = zip(*self.unit.all_gather((secrets.token_hex(8), steps), self.config.timeout))
        if len(set(counts)) > 1:
            has = ", ".join(f"{n} in process {i}" for i, n in enumerate(counts))
            raise make(Invalid, f"muster_pg.torch: elastic job: completed is {has} of worker {quote(self.config.id)}: set it in all of its processes alike")
        return str(names[0])

    def _lost(self) -> None:
        """Has the other workers see at once that this one has failed."""
        member, forming = self.member, self._forming
        if forming is not None:
            forming._end("a process of the worker has ended")
        if member is not None:
            member.close()

    def next(self) -> View:
        """Returns the next view. It joins the job, for the first time or again."""
        assert self.unit is not None
        c, until = self.config, time.monotonic() + self.config.timeout
        while True:
            left = max(until - time.monotonic(), 0)
            try:
                if self.member is None and self.unit.error is None:
                    self._join(left)
                if self.unit.error is not None:
                    raise self.unit.error
                assert self.member is not None
                return self.member.next(timeout=min(left, _REPORT))
            except (Excluded, Finished):
                raise
            except Evicted as e:  # also a Timeout, if the store did not answer for that long
                _log.warning("elastic job %s: %s: it joins again", c.job, e)
                self.forget()
            except Closed as e:
                raise self.unit.error or e from None
            except Timeout as e:
                if time.monotonic() >= until:
                    raise
                _log.warning("elastic job %s: it still waits: %s", c.job, e)
            except IDInUse:  # an earlier process of this worker, or its lease has not expired yet
                if time.monotonic() + 0.1 > until:
                    raise
                time.sleep(0.1)

    def _join(self, timeout: float) -> None:
        """Registers the worker, or follows its registration."""
        assert self.unit is not None
        c = self.config
        if c.rank > 0:
            registration = self.unit.registered(None, timeout)
            if not registration:
                raise make(Finished, "")
            self.member = ElasticMember.follow(self._store, c.job, c.id, registration, launch=c.launch)
            return
        try:
            self.member = ElasticMember.join(
                self._store, c.job, c.id, least=c.least, most=c.most, settings=c.settings, settle=c.settle, ttl=c.ttl, launch=c.launch, timeout=timeout
            )
        except Finished:
            self.unit.registered("", timeout)
            raise
        self.unit.registered(self.member.registration, timeout)

    def forget(self) -> None:
        """Ends the registration: next joins again."""
        member, self.member = self.member, None
        if member is not None:
            member.close()

    def leave(self) -> None:
        """Leaves a job that has finished, which it may not have joined."""
        member, self.member = self.member, None
        assert self.unit is not None
        try:
            if member is not None and self.config.rank == 0:
                member.leave(timeout=self.config.join_timeout)
            self.unit.leave(self.config.join_timeout)
        except Error as e:  # it is evicted, or the store has ended with the job
            _log.info("elastic job %s: %s", self.config.job, e)
        if member is not None:
            member.close()

    def close(self, cause: str) -> None:
        """Ends the registration, if leave has not, the unit and the process groups."""
        registered = self.member is not None
        self.forget()
        unit, self.unit = self.unit, None
        world, self._world = self._world, None
        if unit is not None:
            unit.close(cause)
        if world is not None:
            if registered:
                world.linger()
            world.close()
