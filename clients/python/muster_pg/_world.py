"""phase and barrier of this process's group, for programs and libraries that do not pass it on."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING, Optional

from . import _env, _membership
from ._errors import Error, Invalid, Kinds, make
from ._membership import Config
from ._phase import Phase, Progress

if TYPE_CHECKING:
    from ._group import Group

_CONNECT = 1.0  # seconds for a store that only has to know what this rank does

_log = logging.getLogger("muster_pg")
_lock = threading.Lock()  # held while one of the following is made
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
        with _lock:
            _alone = _alone or _join_alone()
    return _alone


def _join_alone() -> Progress:
    worker, why = os.environ.get("MUSTER_WORKER"), "MUSTER_STORE is not set"
    who = f"worker {worker}" if worker else f"pid {os.getpid()}"
    try:
        c = _env.config()
        who = f"rank {c.rank}"
        if os.environ.get("MUSTER_STORE"):
            name = f"{c.name} {who}"
            membership = _membership.join(
                Config(0, 1, c.store, name=name, run=c.run, timeout=_CONNECT, host=c.host, tls=c.tls, secret=c.secret, liveness_timeout=c.liveness_timeout)
            )
            membership.progress.who = who
            atexit.register(membership.close)
            return membership.progress
    except Error as e:
        why = str(e)
    _log.warning("what this process does is not reported, only watched: %s", why)
    return Progress(who)
