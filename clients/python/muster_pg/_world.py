"""phase and barrier of this process's group, for programs and libraries that do not pass it on."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Optional

from . import _env, _membership, _wire
from ._errors import Error, Invalid, Kinds, Timeout, Unavailable, Unsupported, make, quote
from ._membership import Config
from ._phase import Phase, Progress

if TYPE_CHECKING:
    from ._group import Group

_CONNECT = 1.0  # seconds for a store that only has to know what this rank does

_AGAIN = 5.0  # seconds between two tries to join the store again

_log = logging.getLogger("muster_pg")
_lock = threading.Lock()  # held while barrier makes a group
_alone_lock = threading.Lock()  # held while _alone is made: a phase does not wait for other ranks
_world: Optional[weakref.ref[Group]] = None  # what from_env has returned last
_alone: Optional[Progress] = None  # of a rank without a group


def enter(g: Group) -> None:
    """Notes the group that from_env returns."""
    global _world
    _world = weakref.ref(g)


def follow(old: Group, new: Group) -> None:
    """Notes the group that shrink makes of another."""
    if _world is not None and _world() is old:
        enter(new)


def _group() -> Optional[Group]:
    g = _world() if _world is not None else None
    return None if g is None or g._is_closed() else g


def barrier(name: str = "", *, timeout: Optional[float] = None, stall: Optional[float] = None) -> None:
    """Is Group.barrier of the group that Group.from_env has returned last. If there is none, or it is
    closed, from_env is called, and that group closed when the process exits.
    """
    with _lock:
        g = _group()
        if g is None:
            from ._group import Group

            g = Group.from_env()
            atexit.register(g.close)
    g.barrier(name, timeout=timeout, stall=stall)


def phase(name: str, total: int = 0, *, stall: float = 0.0, on_stall: str = "log") -> Phase:
    """Is Group.phase of the group that Group.from_env has returned last:

        with muster_pg.phase("loading shards", total=48, stall=600, on_stall="exit") as phase:
            for i in range(48):
                load(i)
                phase.done(i + 1)

    If there is none, or it is closed, as in a job whose ranks wait in gloo or NCCL, the first call
    joins the store that MUSTER_STORE names, where muster who shows what this rank does: a group of
    one, until the process exits. If that takes more than a second there is a warning, and phases are
    only watched here. A program whose ranks wait in a group calls from_env, or barrier, before its
    first phase: a group does not have the phases that have begun before.
    """
    g = _group()
    return Phase(g._membership.progress if g is not None else _own(), _bad, name, total, stall, on_stall)


def _bad(why: str, also: Kinds) -> Error:
    return make((*also, Invalid)[0], f"muster_pg: phase: {why}")


def _own() -> Progress:
    global _alone
    if _alone is None:
        with _alone_lock:
            _alone = _alone or _join_alone()
    return _alone


def _join_alone() -> Progress:
    worker, why = os.environ.get("MUSTER_WORKER"), "MUSTER_STORE is not set"
    who = f"worker {quote(worker)}" if worker else f"pid {os.getpid()}"
    try:
        c = _env.config()
        who = f"rank {c.rank}"
        if os.environ.get("MUSTER_STORE"):
            return _Alone(c, who).progress
    except Error as e:
        why = str(e)
    _log.warning("what this process does is not reported, only watched: %s", why)
    return Progress(who)


class _Alone:
    """The group of one in which a rank without a group reports, until the process exits. When it is
    over, as after a restart of a store that keeps nothing, the rank joins again.
    """

    def __init__(self, c: Config, who: str) -> None:
        self._config = Config(
            0, 1, c.store, name=f"{c.name} {who}", run=c.run, timeout=_CONNECT, host=c.host, tls=c.tls, secret=c.secret, liveness_timeout=c.liveness_timeout
        )
        self._membership = _membership.join(self._config)
        self._joined = time.monotonic()
        self._warned = False
        self.progress = Progress(who)
        self.progress.reports(c.size, self._report, lambda: self._membership.store._connection)
        atexit.register(self._close)

    def _report(self, phase: _wire.Phase) -> None:
        try:
            if self._membership.closed:
                self._again()
            self._membership._report(phase)
        except Error as e:
            if isinstance(e, (Timeout, Unavailable, Unsupported)) and not self._membership.store._anew:
                raise
            self._membership.close()
            if not self._warned:
                _log.warning("%s joins the store again, to report what it does: %s", self.progress.who, e)
            self._warned = True
            raise make(Unavailable, str(e)) from None  # it is reported again

    def _again(self) -> None:
        if time.monotonic() - self._joined < _AGAIN:
            raise make(Unavailable, "it joins again later")
        self._joined = time.monotonic()
        try:
            self._membership = _membership.join(self._config)
        except Error as e:
            raise make(Unavailable, str(e)) from None

    def _close(self) -> None:
        self.progress.close()
        self._membership.close()


def _forget() -> None:
    """Is called in a fork, which is no rank yet: its own first phase, or barrier, makes it one."""
    global _world, _alone, _lock, _alone_lock
    _world, _alone, _lock, _alone_lock = None, None, threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
