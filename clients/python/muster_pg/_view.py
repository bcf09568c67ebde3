"""The views of an elastic job."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Callable, List, Optional, Sequence, Set

from . import _arguments, _call
from ._call import Task
from ._errors import Error, Invalid, Kinds, ViewOver, quote, view_over
from ._group import Group
from ._roster import RETENTION, Record, Worker

if TYPE_CHECKING:
    from ._track import Tracker


class View:
    """One generation of a job: its workers and their ranks, the same on all of them."""

    def __init__(self, member: Tracker, record: Record) -> None:
        """Not called by users: see ElasticMember.next."""
        self._member, self._record = member, record
        self.rank = record.rank(member._self.key)  # -1: this worker is a standby
        self._over = threading.Event()
        self._error: Optional[ViewOver] = None
        self._ended_at = 0.0  # when this worker saw that it had ended
        self._left: Set[str] = set()  # registrations of workers that have left it
        self._callbacks: List[Callable[[], None]] = []  # the member's lock protects it

    @property
    def job(self) -> str:
        """The name of the job."""
        return self._member.job

    @property
    def generation(self) -> int:
        """From 1; it increases with each view of the job."""
        return self._record.generation

    @property
    def run(self) -> str:
        """A random name of the run of the job, from its first view to its end."""
        return self._record.run

    @property
    def workers(self) -> List[Worker]:
        """By rank."""
        return list(self._record.workers)

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self._record.workers)

    @property
    def error(self) -> Optional[ViewOver]:
        """Why the view has ended; None if it has not: a worker has failed, left or joined, or this
        worker was evicted or closed.
        """
        return self._error

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until the view has ended, or for timeout seconds, and reports whether it has."""
        seconds = math.inf if timeout is None else self._member._seconds("wait for the end of a view", timeout)
        return self._over.wait(min(seconds, threading.TIMEOUT_MAX))

    def at_end(self, call: Callable[[], None]) -> None:
        """Has call made once, when the view ends, by the thread that brings the news: it must not
        wait for anything. If the view has ended, it is made at once.
        """
        with self._member._cond:
            if not self._over.is_set():
                self._callbacks.append(call)
                return
        call()

    def group(self, *, process: int = 0, processes: int = 1, timeout: Optional[float] = None) -> Group:
        """Forms the group of this view's workers, with the same ranks, on the member's store: the
        group of Go's View.Config. If the view ends first, that raises its error.

        A worker may be several processes, as many as every other one: each calls it with its number
        from 0, and has the rank rank * processes + process.
        """
        m = self._member
        name = f"{self.job.replace('%', '%25').replace('/', '%2F')} view {self.generation}"
        seconds, task = m._seconds("group of a view", timeout), Task()
        token = _call.task.set(task)
        try:
            self.at_end(task.cancel)
            rank, size = self.rank * processes + process, self.size * processes
            return Group.join(rank, size, m._store.below(m._keys.groups), name=name, run=self.run, timeout=seconds)
        except Error:
            if self._error is not None:
                raise self._ended() from None
            raise
        finally:
            _call.task.reset(token)
            self._forget(task.cancel)

    def _forget(self, call: Callable[[], None]) -> None:
        with self._member._cond:
            if call in self._callbacks:
                self._callbacks.remove(call)

    def newcomers(self, before: Optional[View]) -> List[int]:
        """Returns the ranks whose workers were not in the view before; without one, all."""
        known = before._record.keys if before is not None else ()
        return [rank for rank, key in enumerate(self._record.keys) if key not in known]

    def exclude(self, *ranks: int, timeout: Optional[float] = None) -> None:
        """Removes workers from the job, with which this view cannot form: it ends, and the next one
        is without them. Their next raises Excluded. A view that has ended raises its error: they may
        be in a later one, which has formed.
        """
        if self._error is not None:
            raise self._ended()
        m = self._member
        for i, rank in enumerate(ranks):
            if not 0 <= _arguments.whole(m._bad("exclude"), f"rank {i}", rank) < self.size:
                raise m._fail("exclude", f"invalid request: there is no rank {rank} in a view of {self.size}", (Invalid,))
        with m._errors_of("exclude"):
            m._store.delete(*(self._record.keys[rank] for rank in ranks), timeout=timeout)

    def finish(self, *, timeout: Optional[float] = None) -> None:
        """Records that the work of this run of the job is done: next of its other workers raises
        Finished. The record expires after an hour.
        """
        m = self._member
        with m._errors_of("finish"):
            m._store.set(m._keys.finished(self.run), m._launch.encode(), ttl=RETENTION, timeout=timeout)

    def finished(self, *, timeout: Optional[float] = None) -> bool:
        """Reports whether a worker of this run of the job has called finish."""
        m = self._member
        with m._errors_of("finished"):
            return m._store.exists(m._keys.finished(self.run), timeout=timeout)

    def __repr__(self) -> str:
        return f"<muster_pg.View {self.generation} of {quote(self.job)}: rank {self.rank} of {self.size}{', over' if self._over.is_set() else ''}>"

    def _ended(self) -> ViewOver:
        """Returns a copy of error: each raise has a traceback of its own."""
        assert self._error is not None
        return view_over(*self._error._parts)

    # What follows is called with the member's lock.

    def _end(self, lost: Sequence[int] = (), left: Sequence[int] = (), joined: Sequence[Worker] = (), why: str = "", kinds: Kinds = ()) -> None:
        if self._over.is_set():
            return
        gone = [self._record.workers[rank] for rank in (*lost, *left)]
        m = self._member
        self._error = view_over(m.job, m.id, self.rank, self.size, self.generation, lost, left, gone, joined, why, kinds)
        self._ended_at = time.monotonic()
        self._over.set()
        m._news.extend(self._callbacks)
        self._callbacks = []

    def _remove(self, key: str, left: bool) -> None:
        rank = self._record.rank(key)
        if rank >= 0:
            if left:
                self._left.add(key)
            self._end(left=[rank]) if left else self._end(lost=[rank])

    def _replaced(self, record: Record) -> None:
        """A worker that is not in record, and whose end was not seen, counts as failed."""
        lost = [rank for rank, key in enumerate(self._record.keys) if key not in record.keys]
        self._end(lost=lost, joined=[w for w, key in zip(record.workers, record.keys) if key not in self._record.keys])
