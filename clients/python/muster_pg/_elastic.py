"""Membership of elastic jobs: who is in, in which order, under which generation.

It is package membership of Go over the same keys, so that Go and Python workers may be in one job:
docs/explanation/membership.md has the rules and the keys.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from . import _arguments
from ._errors import (
    Closed,
    Compacted,
    Conflict,
    Denied,
    Error,
    Evicted,
    Excluded,
    Finished,
    IDInUse,
    Invalid,
    Kinds,
    MemberError,
    Mismatch,
    NotFound,
    NotInView,
    Timeout,
    ViewOver,
    kinds_of,
    make,
    member_error,
    quote,
    view_over,
)
from ._group import Group
from ._lease import Lease
from ._store import DEFAULT_TIMEOUT, Entry, Event, Store

_TTL = 10.0
_MAX_NAME = 256  # bytes of a job, an id, an address or settings
_RETENTION = 3600.0  # seconds that the store keeps a view which no worker renews
_CHECKPOINT_TTL = 24 * 3600.0
_LOST_TTL = 60.0  # seconds that the note remains that a removed worker has failed
_FIRST_PAUSE, _MOST_PAUSE = 0.01, 1.0
_POLL = 1.0  # seconds between two looks whether the job has finished, in next
_CLOSE_WAIT = 1.0


@dataclass(frozen=True)
class Worker:
    """A worker, as the others know it."""

    id: str
    addr: str = ""

    def __str__(self) -> str:
        return quote(self.id) + (f" at {self.addr}" if self.addr else "")


@dataclass(frozen=True)
class _Registration:
    key: str
    revision: int
    worker: Worker
    least: int
    most: int
    settings: str

    def agrees(self, o: "_Registration") -> bool:
        return (self.least, self.most, self.settings) == (o.least, o.most, o.settings)

    def encode(self) -> bytes:
        fields: Dict[str, Any] = {"ID": self.worker.id, "Addr": self.worker.addr, "Min": self.least, "Max": self.most}
        if self.settings:
            fields["Settings"] = self.settings
        return _encode(fields)


@dataclass(frozen=True)
class _Record:
    """A view as the store has it."""

    run: str
    generation: int
    workers: Sequence[Worker]  # by rank
    keys: Sequence[str]  # of their registrations
    raw: bytes

    def rank(self, key: str) -> int:
        return self.keys.index(key) if key in self.keys else -1


class _Keys:
    """The keys of a job."""

    def __init__(self, job: str) -> None:
        self.job = f"membership/{escape(job)}/"
        self.roster = self.job + "roster/"
        self.view, self.lost, self.workers = self.roster + "view", self.roster + "lost/", self.roster + "worker/"
        self.checkpoints, self.groups = self.job + "checkpoint/", self.job + "group/"

    def finished(self, run: str) -> str:
        return f"{self.job}finished/{run}"

    def checkpoint(self, id: str) -> str:
        return f"{self.checkpoints}{escape(id)}/"


class _Roster:
    """The registered workers and the newest view."""

    def __init__(self, keys: _Keys, entries: Iterable[Entry] = ()) -> None:
        self._keys = keys
        self.workers: Dict[str, _Registration] = {}
        self.lost: Dict[str, bool] = {}  # keys of workers that were removed because they have failed
        self.view: Optional[_Record] = None
        for e in entries:
            self.add(e.key, e.value, e.revision)

    def add(self, key: str, value: bytes, revision: int) -> None:
        k = self._keys
        if key.startswith(k.workers):
            v = _decode(key, value, dict)
            try:
                self.workers[key] = _Registration(
                    key, revision, Worker(str(v["ID"]), str(v["Addr"])), int(v["Min"]), int(v["Max"]), str(v.get("Settings", ""))
                )
            except (KeyError, TypeError, ValueError) as e:
                raise _foreign(key, e) from None
        elif key.startswith(k.lost):
            self.lost[k.workers + key[len(k.lost) :]] = True
        elif key == k.view:
            v = _decode(key, value, dict)
            try:
                flat = [str(w) for w in v["Workers"]]
                if len(flat) % 3:
                    raise ValueError("a worker is incomplete")
                workers = [Worker(*w) for w in zip(flat[::3], flat[1::3])]
                self.view = _Record(str(v["Run"]), int(v["Generation"]), workers, [k.workers + name for name in flat[2::3]], value)
            except (KeyError, TypeError, ValueError) as e:
                raise _foreign(key, e) from None
        else:
            raise _foreign(key, "unknown key")

    def in_order(self, self_: _Registration) -> List[_Registration]:
        """Returns the workers that agree with self_, in the order of registration; of several with
        the same id the first: the others are about to be refused.
        """
        seen: Dict[str, _Registration] = {}
        for g in sorted(self.workers.values(), key=lambda g: g.revision):
            if g.agrees(self_):
                seen.setdefault(g.worker.id, g)
        return list(seen.values())

    def refuses(self, self_: _Registration) -> Optional[Tuple[str, Kinds]]:
        """Returns why a worker that has just registered must leave. Of two that exclude each other
        only the later one is refused.
        """
        first = self_
        for g in self.workers.values():
            if g.worker.id == self_.worker.id and g.revision < self_.revision:
                return f"id in use: by worker {g.worker}", (IDInUse,)
            first = min(first, g, key=lambda g: g.revision)
        if first.agrees(self_):
            return None
        if first.settings != self_.settings:
            return f"ranks disagree: {quote(self_.settings)} here, and {quote(first.settings)} on worker {first.worker}", (Mismatch,)
        return (
            f"ranks disagree: Min is {self_.least} and Max is {self_.most} here, and {first.least} and {first.most} on worker {first.worker}",
            (Mismatch,),
        )


class View:
    """One generation of a job: its workers and their ranks, the same on all of them."""

    def __init__(self, member: "ElasticMember", record: _Record) -> None:
        """Not called by users: see ElasticMember.next."""
        self._member, self._record = member, record
        self.rank = record.rank(member._self.key)  # -1: this worker is a standby
        self._over = threading.Event()
        self._error: Optional[ViewOver] = None
        self._callbacks: List[Callable[[], None]] = []

    @property
    def job(self) -> str:
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
        return self._over.wait(timeout)

    def at_end(self, call: Callable[[], None]) -> None:
        """Has call made once, when the view ends, by a thread that brings the news: it must not
        wait for anything. If the view has ended, it is made at once.
        """
        with self._member._cond:
            if not self._over.is_set():
                self._callbacks.append(call)
                return
        call()

    def group(self, *, timeout: Optional[float] = None) -> Group:
        """Forms the group of this view's workers, as Go's View.Config: on the same store, with the
        same ranks. Its calls fail when the view ends.
        """
        name = f"{self.job.replace('%', '%25').replace('/', '%2F')} view {self.generation}"
        m = self._member
        store = self.bound(m._owner.below(m._keys.groups))
        return Group.join(self.rank, self.size, store, name=name, run=self.run, timeout=m._seconds(timeout))

    def bound(self, store: Store) -> Store:
        """Returns store for calls that end with the view."""
        bound = store._scoped()
        self.at_end(lambda: threading.Thread(target=bound._end, args=("the view has ended",), name="muster view", daemon=True).start())
        return bound

    def newcomers(self, before: Optional["View"]) -> List[int]:
        """Returns the ranks whose workers were not in the view before; without one, all."""
        known = before._record.keys if before is not None else ()
        return [rank for rank, key in enumerate(self._record.keys) if key not in known]

    def exclude(self, *ranks: int, timeout: Optional[float] = None) -> None:
        """Removes workers from the job, with which this view cannot form: it ends, and the next one
        is without them. Their next raises Excluded. A view that has ended raises its error.
        """
        if self._error is not None:
            raise self._error
        m = self._member
        for rank in ranks:
            if not 0 <= rank < self.size:
                raise m._fail("exclude", f"invalid request: there is no rank {rank} in a view of {self.size}", (Invalid,))
        try:
            m._store.delete(*(self._record.keys[rank] for rank in ranks), timeout=timeout)
        except Error as e:
            raise m._caused("exclude", e) from None

    def finish(self, *, timeout: Optional[float] = None) -> None:
        """Records that the work of this run of the job is done: next of a worker that was cut off,
        or of a standby, raises Finished.
        """
        m = self._member
        try:
            m._store.set(m._keys.finished(self.run), b"", ttl=_RETENTION, timeout=timeout)
        except Error as e:
            raise m._caused("finish", e) from None

    def finished(self, *, timeout: Optional[float] = None) -> bool:
        """Reports whether a worker of this run of the job has called finish."""
        m = self._member
        try:
            return m._store.exists(m._keys.finished(self.run), timeout=timeout)
        except Error as e:
            raise m._caused("finished", e) from None

    def __repr__(self) -> str:
        return f"<muster_pg.View {self.generation} of {quote(self.job)}: rank {self.rank} of {self.size}{', over' if self._over.is_set() else ''}>"

    # What follows is called with the member's lock.

    def _end(self, lost: Sequence[int] = (), left: Sequence[int] = (), joined: Sequence[Worker] = (), why: str = "", kinds: Kinds = ()) -> None:
        if self._over.is_set():
            return
        gone = [self._record.workers[rank] for rank in (*lost, *left)]
        m = self._member
        self._error = view_over(m.job, m.id, self.rank, self.size, self.generation, lost, left, gone, joined, why, kinds)
        self._over.set()
        m._news.extend(self._callbacks)

    def _remove(self, key: str, left: bool) -> None:
        rank = self._record.rank(key)
        if rank >= 0:
            self._end(left=[rank]) if left else self._end(lost=[rank])

    def _replaced(self, record: _Record) -> None:
        """A worker that is not in record, and whose end was not seen, counts as failed."""
        lost = [rank for rank, key in enumerate(self._record.keys) if key not in record.keys]
        self._end(lost=lost, joined=[w for w, key in zip(record.workers, record.keys) if key not in self._record.keys])


class ElasticMember:
    """The registration of this worker in a job whose workers come, go and fail.

        with muster_pg.ElasticMember.join(store, "train", host, least=2, most=8) as member:
            while True:
                view = member.next()             # ranks and workers, once there are enough
                with view.group() as group:
                    ...                          # until view.error is not None

    It owns a lease and three threads, which close and leave end: one follows the roster in the
    store, one decides views while this worker is the one that registered first, and one waits for
    the end of the lease. Many threads may use it.
    """

    def __init__(self, store: Store, job: str, id: str, addr: str, least: int, most: int, settings: str, settle: float, ttl: float) -> None:
        """Not called by users: see join."""
        self.job, self.id = job, id
        self._store, self._owner = store._scoped(), store
        self._settle, self._ttl = settle, ttl
        self._keys = _Keys(job)
        self._self = _Registration(self._keys.workers + secrets.token_hex(13), 0, Worker(id, addr), least, most, settings)
        self._cond = threading.Condition()  # protects the fields below; not held during calls of the store
        self._roster = _Roster(self._keys)
        self._current: Optional[View] = None  # the newest one
        self._given: Optional[View] = None  # the one that next returned last
        self._why: Optional[Tuple[str, Kinds]] = None  # Evicted or Closed, when the member has ended
        self._unreachable = self._undecided = ""  # why there is no progress
        self._news: List[Callable[[], None]] = []  # callbacks of views that have ended, until the lock is free
        self._changes = 0
        self._lease: Optional[Lease] = None
        self._threads: List[threading.Thread] = []

    @classmethod
    def join(
        cls,
        store: Store,
        job: str,
        id: str,
        *,
        least: int,
        most: int = 0,
        addr: str = "",
        settings: str = "",
        settle: float = 0.0,
        ttl: float = _TTL,
        timeout: Optional[float] = None,
    ) -> "ElasticMember":
        """Registers this worker in job, on a store that stays open until the member is closed. It
        does not wait for other workers: next does.

        id is unique in the job; IDInUse if a live worker has it, which may be an earlier process of
        this one: try again for ttl seconds. addr is given to the others. least and most are the
        fewest and the most workers of a view, most 0 is least; workers beyond most are standbys.
        settings is a text that all workers must have in common, as the options of a program:
        Mismatch quotes both. settle is how many seconds the deciding worker waits for more workers
        when there are at least least and fewer than most; ttl is of the lease.
        """
        job, id, addr, settings = _named("Job", job), _named("ID", id), _named("Addr", addr, True), _named("Settings", settings, True)
        least, most = _arguments.whole(_bad, "least", least), _arguments.whole(_bad, "most", most)
        most = most or least
        if least < 1:
            raise _bad(f"Config.Min is {least}: a view has at least one worker", ())
        if most < least:
            raise _bad(f"Config.Max is {most}, less than Config.Min, {least}", ())
        settle = _arguments.seconds(_bad, "settle", settle, forever=False)
        ttl = _arguments.seconds(_bad, "ttl", ttl, zero=False, forever=False)
        m = cls(store, job, id, addr, least, most, settings, settle, ttl)
        try:
            m._register(m._until(timeout))
        except Error as e:
            m._close_lease()
            raise m._caused("join", e) from None
        except BaseException:
            m._close_lease()
            raise
        m._begin("follow", m._follow)
        m._begin("lead", m._lead)
        m._begin("guard", m._guard)
        return m

    def next(self, *, timeout: Optional[float] = None) -> View:
        """Waits for a view that is newer than the one it returned last and has this worker, and
        skips views that have ended already.

        A Timeout says what it was waiting for; Finished, that the job has finished without this
        worker; Evicted, that the lease has expired, and Excluded, that another worker has removed
        this one: a new member may join.
        """
        until, look = self._until(timeout), time.monotonic() + _POLL
        while True:
            with self._cond:
                view = self._current
                if self._why is None and view is not None and view is not self._given and view.rank >= 0 and not view._over.is_set():
                    self._given = view
                    return view
                if self._why is not None:
                    raise self._ended("next")
                now = time.monotonic()
                if now >= until:
                    raise self._fail("next", "timed out", (Timeout,), self._missing())
                if now < look:
                    self._cond.wait(min(until, look) - now)
                    continue
                run = view.run if view is not None else ""
            if run and self._has_finished(run):
                raise self._fail("next", "finished without this worker", (Finished,))
            look = time.monotonic() + _POLL

    def _has_finished(self, run: str) -> bool:
        try:
            return self._store.exists(self._keys.finished(run), timeout=_POLL)
        except Error:
            return False  # the threads report what is wrong with the store

    def leave(self, *, timeout: Optional[float] = None) -> None:
        """Is close with a goodbye: the others see that this worker has left, not that it failed.

        The last worker to leave deletes the keys of the job; if the job is not finished, it keeps
        the newest complete checkpoint. The registration ends even if leave raises.
        """
        with self._cond:
            before = self._why
        self._quit()
        try:
            if before is None:
                self._goodbye(self._until(timeout))
            elif Closed not in before[1]:
                raise self._fail("leave", *before)
        except Error as e:
            raise self._caused("leave", e) from None
        finally:
            self._end_calls()
            self._close_lease()

    def close(self) -> None:
        """Ends the registration of this worker: the others see it as failed. It waits about a
        second for the store. It may be called twice, and after leave.
        """
        self._quit()
        self._end_calls()
        self._close_lease()

    def __enter__(self) -> "ElasticMember":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<muster_pg.ElasticMember {quote(self.id)} of {quote(self.job)}{', ended' if self._why else ''}>"

    # Checkpoints.

    def start_checkpoint(self, epoch: int, path: str, *, timeout: Optional[float] = None) -> "Checkpoint":
        """Begins a checkpoint of the view that next returned last. One worker calls it and sends
        the id to the others. epoch and path are for the caller's use.
        """
        op = "start of a checkpoint"
        view = self._given
        if self._why is not None:
            raise self._ended(op)
        if view is None:
            raise self._fail(op, "not in the view: next has returned no view", (NotInView,))
        if view.error is not None:
            raise self._caused(op, view.error)
        r, id = view._record, f"{epoch}-{secrets.token_hex(13)}"
        slots = [{"ID": w.id, "Addr": w.addr, "Key": key} for w, key in zip(r.workers, r.keys)]
        saved = {"Epoch": _arguments.between(_bad, "epoch", epoch, *_arguments.INT64), "Path": path, "Generation": r.generation, "Slots": slots}
        try:
            self._store.set(self._keys.checkpoint(id) + "is", _encode(saved), ttl=_CHECKPOINT_TTL, timeout=timeout)
        except Error as e:
            raise self._caused(op, e) from None
        return Checkpoint(self, id, saved)

    def checkpoint(self, id: str, *, timeout: Optional[float] = None) -> "Checkpoint":
        """Returns the checkpoint with this id; NotFound if there is none."""
        key = self._keys.checkpoint(id) + "is"
        try:
            return Checkpoint(self, id, _decode(key, self._store.get(key, timeout=timeout), dict))
        except Error as e:
            raise self._caused(f"checkpoint {quote(id)}", e) from None

    def newest_checkpoint(self, *, timeout: Optional[float] = None) -> "Checkpoint":
        """Returns the complete checkpoint with the highest epoch, of several the one that was
        started last; NotFound if there is none. It may be of an earlier run of a job with this name.
        """
        op = "newest checkpoint"
        try:
            every = self._checkpoints(timeout)
        except Error as e:
            raise self._caused(op, e) from None
        best = _newest(every)
        if best is None:
            raise self._fail(op, f"not found: of {len(every)} checkpoints none is complete", (NotFound,))
        return Checkpoint(self, best.id, best.saved)

    def _checkpoints(self, timeout: Optional[float]) -> List["_Listed"]:
        every: Dict[str, _Listed] = {}
        prefix = self._keys.checkpoints
        for e in self._store.list(prefix, timeout=timeout):
            escaped, _, rest = e.key[len(prefix) :].partition("/")
            c = every.setdefault(escaped, _Listed(urllib.parse.unquote(escaped)))
            c.keys.append(e.key)
            if rest.startswith("ended/"):
                c.ended.add(rest[len("ended/") :])
            else:
                c.revision, c.saved = e.revision, _decode(e.key, e.value, dict)
        return list(every.values())

    # Registration and end.

    def _register(self, until: float) -> None:
        late = f"evicted: its lease of {self._ttl:g}s ended while it registered"
        self._lease = self._owner.lease(self._ttl, timeout=_left(until))
        key = self._self.key
        try:
            self._store.set(key, self._self.encode(), lease=self._lease, timeout=_left(until))
        except NotFound:
            raise self._fail("join", late, (Evicted,)) from None
        roster = _Roster(self._keys, self._store.list(self._keys.roster, timeout=_left(until)))
        registered = roster.workers.get(key)
        if registered is None:
            raise self._fail("join", late, (Evicted,))
        refused = roster.refuses(registered)
        if refused is not None:
            raise self._fail("join", *refused)
        self._roster = roster

    def _begin(self, name: str, run: Callable[[], None]) -> None:
        t = threading.Thread(target=run, name="muster " + name, daemon=True)
        self._threads.append(t)
        t.start()

    def _quit(self) -> None:
        with self._cond:
            self._finish("closed", (Closed,))
        self._tell()

    def _end_calls(self) -> None:
        """Ends the calls of this member, and waits for its threads."""
        self._store._end("closed")
        if self._lease is not None:
            self._lease._closed()  # ends the thread that waits for it
        for t in self._threads:
            if t is not threading.current_thread():
                t.join()

    def _close_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                lease.close(timeout=_CLOSE_WAIT)
            except Error:
                pass  # it expires after its ttl

    def _goodbye(self, until: float) -> None:
        store, keys = self._store, self._keys
        store.delete(self._self.key, timeout=_left(until))
        roster = _Roster(keys, store.list(keys.roster, timeout=_left(until)))
        if roster.workers or roster.view is None:
            return
        every = self._checkpoints(_left(until))
        finished = store.exists(keys.finished(roster.view.run), timeout=_left(until))
        last = _newest(every)
        old = [key for c in every if c is not last or finished for key in c.keys]
        try:  # another job of this name may have begun: it creates its checkpoints after its view
            store.swap(keys.view, roster.view.raw, None, timeout=_left(until))
        except Conflict:
            return
        if old:
            store.delete(*old, timeout=_left(until))

    # The roster. Each of these threads runs until the member ends.

    def _follow(self) -> None:
        """Keeps the roster up to date. While the store cannot be reached it does not change; the
        lease decides whether that takes too long.
        """
        pause = _FIRST_PAUSE
        while self._why is None:
            began = time.monotonic()
            try:
                self._watch()
            except (Closed, Denied) as e:
                self._evict(str(e))
            except Compacted:
                pause = _FIRST_PAUSE
            except Error as e:
                if time.monotonic() - began > _MOST_PAUSE:
                    pause = _FIRST_PAUSE
                with self._cond:
                    self._unreachable = str(e)
                pause = min(2 * pause, _MOST_PAUSE)
            self._sleep(pause)

    def _watch(self) -> None:
        after = self._store.revision()
        roster = _Roster(self._keys, self._store.list(self._keys.roster))
        with self._cond:
            self._load(roster)
            self._unreachable = ""
        self._tell()
        while self._why is None:
            try:
                for e in self._store.watch(self._keys.roster, after, timeout=DEFAULT_TIMEOUT):
                    with self._cond:
                        self._apply(e)
                    self._tell()
                    after = e.revision
            except Timeout:
                pass  # nothing has changed

    def _load(self, roster: _Roster) -> None:
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

    def _adopt(self, record: Optional[_Record]) -> None:
        """Makes record the current view if it is newer; it may be the same, renewed."""
        current = self._current
        if record is None or current is not None and record.generation <= current.generation:
            return
        if current is not None:
            current._replaced(record)
        self._current = View(self, record)
        for key in record.keys:
            if key not in self._roster.workers:
                self._current._remove(key, left=False)

    def _notify(self) -> None:
        self._changes += 1
        self._cond.notify_all()

    def _tell(self) -> None:
        """Makes the callbacks of views that have ended, without the lock."""
        with self._cond:
            news, self._news = self._news, []
        for call in news:
            call()

    def _finish(self, why: str, kinds: Kinds) -> None:
        """Ends the member. Only the first call has an effect. Called with the lock."""
        if self._why is not None:
            return
        self._why = why, kinds
        if self._current is not None:
            self._current._end(why=why, kinds=kinds)
        self._notify()

    def _guard(self) -> None:
        """Ends the member with its lease, even while the store cannot be reached."""
        lease = self._lease
        if lease is not None and lease.wait():
            self._evict(str(lease.error))

    def _evict(self, why: str) -> None:
        with self._cond:
            self._finish("evicted: " + why, (Evicted,))
        self._tell()

    def _sleep(self, seconds: float) -> None:
        with self._cond:
            self._cond.wait_for(lambda: self._why is not None, seconds)

    # Deciding views, while this worker is the first of those that are registered.

    def _lead(self) -> None:
        decider, pause = _Decider(self), 2 * _FIRST_PAUSE
        while self._why is None:
            with self._cond:
                seen = self._changes
            try:
                wait, self._undecided = decider.step(), ""
                pause = 2 * _FIRST_PAUSE
            except Error as e:
                wait = pause
                self._undecided, pause = str(e), min(2 * pause, _MOST_PAUSE)
                self._sleep(wait)
                continue
            with self._cond:
                self._cond.wait_for(lambda: self._changes != seen or self._why is not None, wait)

    # Errors.

    def _missing(self) -> str:
        """Says what next waits for."""
        live, view = self._roster.in_order(self._self), self._current
        if self._unreachable or self._undecided:
            return self._unreachable or self._undecided
        if len(live) < self._self.least:
            return f"{len(live)} of {self._self.least} workers are registered: {_names(live)}"
        if view is not None and not view._over.is_set():
            if view.rank < 0:
                return f"this worker is a standby: view {view.generation} has its {view.size} workers"
            return f"view {view.generation} has not ended"
        return ""

    def _rank(self) -> int:
        return self._given.rank if self._given is not None else -1

    def _fail(self, op: str, why: str, kinds: Kinds = (), detail: str = "") -> MemberError:
        return member_error(op, self.job, self.id, self._rank(), why + (f": {detail}" if detail else ""), kinds)

    def _ended(self, op: str) -> MemberError:
        assert self._why is not None
        return self._fail(op, *self._why)

    def _caused(self, op: str, e: Error) -> Error:
        """Returns the error of op that e has caused, which is of the same kinds."""
        return e if isinstance(e, MemberError) else self._fail(op, str(e), kinds_of(e))

    def _seconds(self, timeout: Optional[float]) -> float:
        return self._store._seconds(_bad, timeout)

    def _until(self, timeout: Optional[float]) -> float:
        return time.monotonic() + self._seconds(timeout)


class _Decider:
    """What the deciding worker knows. Two may be active for a moment, when a worker was evicted and
    does not know it: the compare-and-swap lets one of them create the next view.
    """

    def __init__(self, member: ElasticMember) -> None:
        self._m = member
        self._since = 0.0  # when a change that requires a new view was first seen, with at least Min workers
        self._kept, self._renewed = 0, 0.0  # the generation whose retention was last renewed, and when

    def step(self) -> float:
        """Does what is due, and returns after how many seconds to call it again if nothing changes."""
        m = self._m
        with m._cond:
            live, leads = self._elect(m._roster)
            record = m._current._record if m._current is not None else None
        same = record is not None and record.keys == [g.key for g in live]
        if not leads or same or len(live) < m._self.least:
            self._since = 0.0
            if leads and same and record is not None:
                self._tend(record)
            return _RETENTION / 3
        now = time.monotonic()
        self._since = self._since or now
        left = self._since + m._settle - now
        if left > 0 and len(live) < m._self.most:
            return left
        self._decide(record)
        return _RETENTION / 3

    def _elect(self, roster: _Roster) -> Tuple[List[_Registration], bool]:
        """Returns the workers that a view has, and whether this member is the first of them."""
        live = roster.in_order(self._m._self)[: self._m._self.most]
        return live, bool(live) and live[0].key == self._m._self.key

    def _decide(self, known: Optional[_Record]) -> None:
        """Creates a view of the live workers. It reads the roster again: the watch may be behind."""
        m = self._m
        roster = _Roster(m._keys, m._store.list(m._keys.roster))
        run, old = secrets.token_hex(13), None
        before = known  # without roster.view, the last worker to leave deleted it before this one joined: a new run begins
        if roster.view is not None:
            before, run, old = roster.view, roster.view.run, roster.view.raw
        live, leads = self._elect(roster)
        keys = [g.key for g in live]
        if not leads or len(live) < m._self.least or before is not None and before.keys == keys:
            return  # the watch will bring the change that this read has seen
        self._since = 0.0
        generation = before.generation + 1 if before is not None else 1
        flat = [text for g in live for text in (g.worker.id, g.worker.addr, g.key[len(m._keys.workers) :])]
        self._swap(generation, old, _encode({"Run": run, "Generation": generation, "Workers": flat}))

    def _swap(self, generation: int, old: Optional[bytes], view: bytes) -> None:
        """Replaces old by view, which may be the same. If the store has another one, another worker
        has decided.
        """
        try:
            self._m._store.swap(self._m._keys.view, old, view, ttl=_RETENTION)
        except Conflict:
            return
        self._kept, self._renewed = generation, time.monotonic()

    def _tend(self, record: _Record) -> None:
        """Renews the retention of the view."""
        if self._kept != record.generation or time.monotonic() - self._renewed >= _RETENTION / 3:
            self._swap(record.generation, record.raw, record.raw)


class _Listed:
    """A checkpoint as the store lists it."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.saved: Dict[str, Any] = {}  # empty: it has expired, and an end of it has not
        self.revision = 0
        self.ended: Set[str] = set()  # names of registrations
        self.keys: List[str] = []


def _newest(every: Sequence[_Listed]) -> Optional[_Listed]:
    """Returns the newest complete one."""
    complete = [c for c in every if c.saved.get("Slots") and all(s["Key"].rpartition("/")[2] in c.ended for s in c.saved["Slots"])]
    return max(complete, key=lambda c: (c.saved["Epoch"], c.revision), default=None)


class Checkpoint:
    """A checkpoint that all workers of a view save together. It is complete when each of them has
    called end.
    """

    def __init__(self, member: ElasticMember, id: str, saved: Dict[str, Any]) -> None:
        """Not called by users: see ElasticMember.start_checkpoint."""
        self._member, self.id, self._slots = member, id, saved["Slots"]
        self.epoch: int = saved["Epoch"]
        self.path: str = saved["Path"]
        self.generation: int = saved["Generation"]  # of the view
        self.workers = [Worker(s["ID"], s["Addr"]) for s in self._slots]  # by rank

    def end(self, *, timeout: Optional[float] = None) -> bool:
        """Records that this worker has saved its part, and reports whether all have. NotInView if
        this worker is not in the checkpoint's view: one that has joined again is another worker.
        """
        m, op = self._member, self._op("end")
        if m._why is not None:
            raise m._ended(op)
        if all(s["Key"] != m._self.key for s in self._slots):
            raise m._fail(op, f"not in the view: generation {self.generation} has {len(self._slots)} workers, and this worker is not one of them", (NotInView,))
        try:
            m._store.set(self._key(m._self.key), b"", ttl=_CHECKPOINT_TTL, timeout=timeout)
        except Error as e:
            raise m._caused(op, e) from None
        return not self.missing(timeout=timeout)

    def missing(self, *, timeout: Optional[float] = None) -> List[Worker]:
        """Returns the workers that have not called end, by rank."""
        m = self._member
        try:
            ended = {e.key for e in m._store.list(self._key(""), timeout=timeout)}
        except Error as e:
            raise m._caused(self._op("state"), e) from None
        return [w for w, s in zip(self.workers, self._slots) if self._key(s["Key"]) not in ended]

    def wait(self, *, timeout: Optional[float] = None) -> None:
        """Waits until the checkpoint is complete. A Timeout names the keys of the workers that are
        missing.
        """
        try:
            self._member._store.wait(*(self._key(s["Key"]) for s in self._slots), timeout=timeout)
        except Error as e:
            raise self._member._caused(self._op("wait"), e) from None

    def _key(self, registration: str) -> str:
        return self._member._keys.checkpoint(self.id) + "ended/" + registration.rpartition("/")[2]

    def _op(self, what: str) -> str:
        return f"{what} of checkpoint {quote(self.id)}"


def remove(store: Store, job: str, id: str) -> None:
    """Ends the registration of a worker whose process has ended, for its launcher: the others see
    at once that it has failed. If it lives, its next raises Evicted.
    """
    keys = _Keys(job)
    for key, g in _Roster(keys, store.list(keys.roster)).workers.items():
        if g.worker.id == id:  # the note comes first: the others read the changes in this order
            store.set(keys.lost + key[len(keys.workers) :], b"", ttl=_LOST_TTL)
            store.delete(key)


def _names(live: Sequence[_Registration]) -> str:
    most = 16
    more = f" and {len(live) - most} more" if len(live) > most else ""
    return ", ".join(str(g.worker) for g in live[:most]) + more


def escape(s: str) -> str:
    """Escapes s as a part of a path, as Go's url.PathEscape."""
    return urllib.parse.quote(s, safe="$&+:=@")


def _encode(v: Any) -> bytes:
    return json.dumps(v, separators=(",", ":"), ensure_ascii=False).encode()


def _decode(key: str, value: bytes, kind: type) -> Any:
    try:
        v = json.loads(value)
        if not isinstance(v, kind):
            raise ValueError(f"a {type(v).__name__}")
        return v
    except (ValueError, RecursionError) as e:
        raise _foreign(key, e) from None


def _foreign(key: str, why: object) -> Error:
    """Is the error that a key has a value that was not written by this package."""
    return make(Error, f"key {quote(key)} was not written by this package: {why}")


def _left(until: float) -> float:
    return max(until - time.monotonic(), 0.0)


def _named(field: str, v: str, empty: bool = False) -> str:
    v = _arguments.text(_bad, field, v)
    size = len(v.encode("utf-8", "surrogateescape"))
    if not v and not empty:
        raise _bad(f"Config.{field} is empty", ())
    if size > _MAX_NAME:
        raise _bad(f"Config.{field} has {size} bytes, the limit is {_MAX_NAME}", ())
    try:
        v.encode()
    except UnicodeEncodeError:
        raise _bad(f"Config.{field} is not UTF-8", ()) from None
    return v


def _bad(why: str, also: Kinds) -> Error:
    return make((*also, Invalid)[0], "membership: join: invalid request: " + why)
