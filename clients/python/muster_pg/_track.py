"""What an elastic member knows of its job, and the threads that keep it up to date."""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import time
from contextlib import contextmanager
from typing import Callable, Iterator, List, Optional, Tuple

from ._arguments import Bad
from ._call import NoAnswer
from ._decide import Decider
from ._errors import Closed, Compacted, Denied, Error, Evicted, Excluded, Invalid, Kinds, MemberError, ViewOver, kinds_of, member_error
from ._history import History
from ._lease import Lease
from ._roster import Keys, Record, Registration, Roster, Worker, names
from ._store import Event, Store
from ._view import View

_FIRST_PAUSE, _MOST_PAUSE = 0.01, 1.0

_log = logging.getLogger("muster_pg")


class Tracker:
    """The roster as the watch has brought it, the newest view, and how the member has ended.

    It has three threads: one follows the roster in the store, one decides views while this worker
    is the one that registered first, and one waits for the end of the lease.
    """

    def __init__(
        self, store: Store, job: str, id: str, addr: str, least: int, most: int, settings: str, settle: float, ttl: float, launch: str, registration: str = ""
    ) -> None:
        """Not called by users: see ElasticMember.join and follow."""
        self.job, self.id = job, id
        self._store, self._calls = store, store._scoped()  # _calls: for what ends with the member
        self._settle, self._ttl, self._launch = settle, ttl, launch
        self._keys = Keys(job)
        self._self = Registration(self._keys.workers + (registration or secrets.token_hex(13)), 0, Worker(id, addr), least, most, settings)
        self._pid = os.getpid()
        self._cond = threading.Condition()  # protects the fields below; not held during calls of the store
        self._roster = Roster(self._keys)
        self._current: Optional[View] = None  # the newest one
        self._given: Optional[View] = None  # the one that next returned last
        self._why: Optional[Tuple[str, Kinds]] = None  # Evicted or Closed, when the member has ended
        self._unreachable = self._undecided = ""  # why there is no progress
        self._news: List[Callable[[], None]] = []  # callbacks of views that have ended, until the lock is free
        self._changes = 0
        self._history = History()  # the lock protects what it notes
        self._lease: Optional[Lease] = None
        self._threads: List[threading.Thread] = []

    def _begin(self, name: str, run: Callable[[], None]) -> None:
        t = threading.Thread(target=run, name="muster " + name, daemon=True)
        t.start()
        self._threads.append(t)

    def _follow(self) -> None:
        """Keeps the roster up to date. While the store cannot be reached it does not change; the
        lease decides whether that takes too long.
        """
        pause = _FIRST_PAUSE
        while self._why is None:
            began = time.monotonic()
            try:
                self._watch()
            except (Closed, Denied) as e:  # permanent
                self._evict(e)
            except Compacted:
                pause = _FIRST_PAUSE
            except Error as e:
                if time.monotonic() - began > _MOST_PAUSE:
                    pause = _FIRST_PAUSE
                self._unreachable, pause = str(e), min(2 * pause, _MOST_PAUSE)
            self._sleep(pause)

    def _watch(self) -> None:
        """Reads the roster and applies its changes until that fails, or the member has ended."""
        after = self._calls.revision()
        roster = Roster(self._keys, self._calls.list(self._keys.roster))
        with self._cond:
            self._load(roster)
            self._unreachable = ""
        self._tell()
        for e in self._calls.watch(self._keys.roster, after, timeout=math.inf):
            with self._cond:
                self._apply(e)
            self._tell()

    def _load(self, roster: Roster) -> None:
        """Replaces the roster. A view that was read while this worker was not registered is ignored."""
        if self._self.key not in roster.workers:
            self._finish("evicted: its registration has been deleted", (Evicted,))
            return
        self._roster = roster
        if self._current is not None:
            for key in self._current._record.keys:
                if key not in roster.workers:
                    self._current._remove(key, left=False)
        self._adopt(roster.view)
        self._notify()

    def _apply(self, e: Event) -> None:
        """Applies a change. Changes come in order: a worker sees its own eviction before any view
        that was created after it, even one that it created itself.
        """
        keys, roster = self._keys, self._roster
        worker = e.key.startswith(keys.workers)
        try:
            if self._why is not None:
                return
            if not e.deleted:
                roster.add(e.key, e.value or b"", e.revision)
                if not worker:
                    self._adopt(roster.view)
            elif worker and e.key == self._self.key:
                if e.expired:
                    self._finish("evicted: its registration has been deleted", (Evicted,))
                else:
                    self._finish("excluded: evicted: another worker has deleted its registration", (Excluded,))
            elif worker:
                roster.workers.pop(e.key, None)
                if self._current is not None:
                    self._current._remove(e.key, left=not e.expired and e.key not in roster.lost)
            elif e.key == keys.view:
                roster.view = None
            else:
                roster.lost.pop(keys.workers + e.key[len(keys.lost) :], None)
        finally:
            self._notify()

    def _adopt(self, record: Optional[Record]) -> None:
        """Makes record the current view if it is newer; it may be the same, renewed."""
        current = self._current
        if record is None or current is not None and record.generation <= current.generation:
            return
        if current is not None:
            current._replaced(record)
        self._history.saw(current, record)
        self._current = View(self, record)
        for key in record.keys:
            if key not in self._roster.workers:
                self._current._remove(key, left=False)

    def _notify(self) -> None:
        self._changes += 1
        self._cond.notify_all()

    def _tell(self) -> None:
        """Makes the callbacks of views that have ended, and ends the calls of a member that has.
        Called without the lock.
        """
        with self._cond:
            news, self._news = self._news, []
            ended = self._why is not None
        for call in news:
            try:
                call()
            except Exception:  # the thread goes on
                _log.exception("a callback of View.at_end has failed")
        if ended:
            try:
                self._calls._end("the member has ended")
            except NoAnswer as e:  # in the handler of a signal, which has interrupted a call
                raise self._fail("close", e.what, e.also) from None

    def _finish(self, why: str, kinds: Kinds) -> None:
        """Ends the member. Only the first call has an effect. Called with the lock; _tell follows."""
        if self._why is not None:
            return
        self._why = why, kinds
        if self._current is not None:
            self._current._end(why=why, kinds=kinds)
        self._notify()

    def _guard(self) -> None:
        """Ends the member with its lease, even while the store cannot be reached."""
        lease = self._lease
        if lease is not None and lease.wait() and lease.error is not None:
            self._evict(lease.error)

    def _evict(self, e: Error) -> None:
        """Ends the member as evicted, because the store may have deleted its registration."""
        with self._cond:
            self._finish(f"evicted: {e}", (Evicted, *kinds_of(e)))
        self._tell()

    def _sleep(self, seconds: float) -> None:
        with self._cond:
            self._cond.wait_for(lambda: self._why is not None, seconds)

    def _lead(self) -> None:
        """Decides views while this worker is the first of those that are registered."""
        decider, pause = Decider(self), 2 * _FIRST_PAUSE
        while self._why is None:
            with self._cond:
                seen = self._changes
            try:
                wait, self._undecided, pause = decider.step(), "", 2 * _FIRST_PAUSE
            except Error as e:
                self._undecided = str(e)
                self._sleep(pause)
                pause = min(2 * pause, _MOST_PAUSE)
                continue
            with self._cond:
                self._cond.wait_for(lambda: self._changes != seen or self._why is not None, wait)

    # Errors.

    def _missing(self) -> str:
        """Says what next waits for."""
        me = self._roster.workers.get(self._self.key, self._self)
        live, view = self._roster.in_order(me), self._current
        if self._unreachable or self._undecided:
            return self._unreachable or self._undecided
        if len(live) < me.least:
            return f"{len(live)} of {me.least} workers are registered: {names(live)}"
        if view is not None and not view._over.is_set():
            if view.rank < 0:
                return f"this worker is a standby: view {view.generation} has its {view.size} workers"
            return f"view {view.generation} has not ended"
        return ""

    def _fail(self, op: str, why: str, kinds: Kinds = (), detail: str = "") -> MemberError:
        rank = self._given.rank if self._given is not None else -1
        return member_error(op, self.job, self.id, rank, why + (f": {detail}" if detail else ""), kinds)

    def _ended(self, op: str) -> MemberError:
        assert self._why is not None
        return self._fail(op, *self._why)

    @contextmanager
    def _errors_of(self, op: str) -> Iterator[None]:
        """Makes errors of the store those of op, of the same kinds."""
        try:
            yield
        except (MemberError, ViewOver):
            raise
        except Error as e:
            raise self._fail(op, str(e), kinds_of(e)) from None

    def _bad(self, op: str) -> Bad:
        """Makes the errors of arguments."""
        return lambda why, also: self._fail(op, "invalid request: " + why, (*also, Invalid)[:1])

    def _seconds(self, op: str, timeout: Optional[float]) -> float:
        return self._store._seconds(self._bad(op), timeout)

    def _until(self, op: str, timeout: Optional[float]) -> float:
        return time.monotonic() + self._seconds(op, timeout)
