"""Membership of elastic jobs: who is in, in which order, under which generation.

It is package membership of Go over the same keys, so that Go and Python workers may be in one job:
docs/explanation/membership.md has the rules and the keys.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from typing import Optional

from . import _arguments
from ._arguments import Bad
from ._checkpoint import CHECKPOINT_TTL, Checkpoint, Saved, left, listed, newest
from ._errors import Closed, Conflict, Error, Evicted, Finished, Invalid, Kinds, NotFound, NotInView, Timeout, kinds_of, member_error, quote
from ._roster import LOST_TTL, Keys, Roster
from ._store import Store
from ._track import Tracker
from ._view import View

_TTL = 10.0
_MAX_NAME = 256  # bytes of a job, an id, an address or settings
_POLL = 1.0  # seconds between two looks whether the job has finished, in next
_CLOSE_WAIT = 1.0  # seconds that close waits for the store's reply


class ElasticMember(Tracker):
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
        launch: str = "",
        timeout: Optional[float] = None,
    ) -> ElasticMember:
        """Registers this worker in job, on a store that stays open until the member is closed. It
        does not wait for other workers: next does.

        id is unique in the job; IDInUse if a live worker has it, which may be an earlier process of
        this one: try again for ttl seconds. addr is given to the others. least and most are the
        fewest and the most workers of a view, most 0 is least; workers beyond most are standbys.
        settings is a text that all workers must have in common, as the options of a program:
        Mismatch quotes both. settle is how many seconds the deciding worker waits for more workers
        when there are at least least and fewer than most; ttl is of the lease.

        launch names the launch of the job: the same in all its workers, and in no earlier job of
        this name. A worker that starts when the work of its launch is done gets Finished; without a
        name it begins the work anew. MUSTER_LAUNCH has that of muster run.
        """
        bad = _bad_join(job, id)
        if not isinstance(store, Store):
            raise _arguments.of_type(bad, "store", "a muster_pg.Store", store)
        job, id = _named(bad, "Job", job), _named(bad, "ID", id)
        addr, settings, launch = _named(bad, "Addr", addr, True), _named(bad, "Settings", settings, True), _named(bad, "Launch", launch, True)
        least, most = (_arguments.between(bad, name, n, *_arguments.INT64) for name, n in (("least", least), ("most", most)))
        most = most or least
        if least < 1:
            raise bad(f"Config.Min is {least}: a view has at least one worker", ())
        if most < least:
            raise bad(f"Config.Max is {most}, less than Config.Min, {least}", ())
        settle = _arguments.seconds(bad, "settle", settle, forever=False)
        ttl = _arguments.seconds(bad, "ttl", ttl, zero=False, forever=False)
        m = cls(store, job, id, addr, least, most, settings, settle, ttl, launch)
        until = m._until("join", timeout)
        try:
            with m._errors_of("join"):
                m._register(until)
            for name, run in (("follow", m._follow), ("lead", m._lead), ("guard", m._guard)):
                m._begin(name, run)
        except BaseException:  # of a signal, and where there is no room for a thread, too
            m._quit()
            m._close_lease(until + _CLOSE_WAIT)
            raise
        return m

    @classmethod
    def follow(cls, store: Store, job: str, id: str, registration: str, *, launch: str = "") -> ElasticMember:
        """Follows the registration of another process of this worker, which has called join. The
        member has the same views, and ends with that registration; to leave is the other process's.
        """
        bad = _bad_join(job, id)
        m = cls(store, _named(bad, "Job", job), _named(bad, "ID", id), "", 1, 1, "", 0, _TTL, launch, registration)
        m._begin("follow", m._follow)
        return m

    @property
    def registration(self) -> str:
        """The name of the registration, for follow. It is not used again."""
        return self._self.key[len(self._keys.workers) :]

    def next(self, *, timeout: Optional[float] = None) -> View:
        """Waits for a view that is newer than the one it returned last and has this worker, and
        skips views that have ended already.

        A Timeout says what it was waiting for; Finished, that a worker of this run of the job has
        called View.finish, even if this one was evicted; Evicted, that the lease has expired, and
        Excluded, that another worker has removed this one: a new member may join.
        """
        until, look = self._until("next", timeout), 0.0
        self._refuse_fork("next")
        while True:
            with self._cond:
                ended, view, now = self._why, self._candidate(), time.monotonic()
                if ended is None and view is None and now >= until:
                    raise self._fail("next", "timed out", (Timeout,), self._missing())
                if ended is None and view is None and now < look:
                    self._cond.wait(min(until, look) - now)
                    continue
                run = self._current.run if self._current is not None else ""
            if ended is not None and not _evicted(ended[1]):
                raise self._fail("next", *ended)
            if run and self._has_finished(run):
                raise self._fail("next", "finished without this worker", (Finished,))
            if ended is not None:
                raise self._fail("next", *ended)
            look = time.monotonic() + _POLL
            with self._cond:
                if view is not None and view is self._candidate() and self._why is None:
                    self._given = view
                    return view

    def _candidate(self) -> Optional[View]:
        """Returns the view that next may return, if there is one. Called with the lock."""
        view = self._current
        return view if view is not None and view is not self._given and view.rank >= 0 and not view._over.is_set() else None

    def _has_finished(self, run: str) -> bool:
        try:
            return self._store.exists(self._keys.finished(run), timeout=_POLL)
        except Error:
            return False  # the threads report what is wrong with the store

    def leave(self, *, timeout: Optional[float] = None) -> None:
        """Is close with a goodbye: the others see that this worker has left, not that it failed.

        The last worker to leave deletes the keys of the job; if the job is not finished, it keeps
        the newest complete checkpoint. The registration ends even if leave raises. After close it
        does nothing.
        """
        until = self._until("leave", timeout)
        self._refuse_fork("leave")
        with self._cond:
            before = self._why
        self._quit()
        try:
            if before is None:
                with self._errors_of("leave"):
                    self._goodbye(until)
        finally:
            self._close_lease(until + _CLOSE_WAIT)
        if before is not None and _evicted(before[1]):
            raise self._fail("leave", *before)

    def close(self) -> None:
        """Ends the registration of this worker: the others see it as failed. It waits about a
        second for the store. It may be called twice, and after leave.
        """
        if os.getpid() == self._pid:  # the member of a fork is the parent's
            until = time.monotonic() + _CLOSE_WAIT
            self._quit()
            self._close_lease(until)

    def __enter__(self) -> ElasticMember:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<muster_pg.ElasticMember {quote(self.id)} of {quote(self.job)}{', ended' if self._why else ''}>"

    # Checkpoints.

    def start_checkpoint(self, epoch: int, path: str, *, timeout: Optional[float] = None) -> Checkpoint:
        """Begins a checkpoint of the view that next returned last. One worker calls it and sends
        the id to the others. epoch and path are for the caller's use.
        """
        op = "start of a checkpoint"
        epoch, path = _arguments.between(self._bad(op), "epoch", epoch, *_arguments.INT64), _arguments.text(self._bad(op), "path", path)
        if not _is_utf8(path):
            raise self._fail(op, f"invalid request: path {quote(path)} is not UTF-8", (Invalid,))
        view = self._given
        if self._why is not None:
            raise self._ended(op)
        if view is None:
            raise self._fail(op, "not in the view: next has returned no view", (NotInView,))
        if view.error is not None:
            raise view._ended()
        id, saved = f"{epoch}-{secrets.token_hex(13)}", Saved.of(epoch, path, view._record)
        with self._errors_of(op):
            self._store.set(self._keys.checkpoint(id) + "is", saved.encode(), ttl=CHECKPOINT_TTL, timeout=timeout)
        return Checkpoint(self, id, saved)

    def checkpoint(self, id: str, *, timeout: Optional[float] = None) -> Checkpoint:
        """Returns the checkpoint with this id, which another worker may have started; NotFound if
        there is none.
        """
        key = self._keys.checkpoint(_arguments.text(self._bad("checkpoint"), "id", id)) + "is"
        with self._errors_of(f"checkpoint {quote(id)}"):
            return Checkpoint(self, id, Saved.decode(key, self._store.get(key, timeout=timeout)))

    def newest_checkpoint(self, *, timeout: Optional[float] = None) -> Checkpoint:
        """Returns the complete checkpoint with the highest epoch, of several the one that was
        started last; NotFound if there is none. It may be of an earlier run of a job with this name.
        """
        op = "newest checkpoint"
        until = self._until(op, timeout)
        with self._errors_of(op):
            every = listed(self._store, self._keys, until)
        best = newest(every)
        if best is None or best.saved is None:
            raise self._fail(op, f"not found: of {len(every)} checkpoints none is complete", (NotFound,))
        return Checkpoint(self, best.id, best.saved)

    # Registration and end.

    def _register(self, until: float) -> None:
        late = f"evicted: its lease of {self._ttl:g}s ended while it registered"
        self._lease = self._store.lease(self._ttl, timeout=left(until))
        key = self._self.key
        try:
            self._store.set(key, self._self.encode(), lease=self._lease, timeout=left(until))
        except NotFound:
            raise self._fail("join", late, (Evicted,)) from None
        roster = Roster(self._keys, self._store.list(self._keys.roster, timeout=left(until)))
        registered = roster.workers.get(key)
        if registered is None:
            raise self._fail("join", late, (Evicted,))
        refused = roster.refuses(registered)
        if refused is not None:
            raise self._fail("join", *refused)
        if self._launch and self._is_done(until):  # even if there is a view: those that are in it are about to leave
            raise self._fail("join", "finished before this worker started", (Finished,))
        self._roster = roster

    def _is_done(self, until: float) -> bool:
        """Reports whether the work of this launch of the job is done."""
        launch = self._launch.encode()
        return any(e.value == launch for e in self._store.list(self._keys.finished(""), timeout=left(until)))

    def _refuse_fork(self, op: str) -> None:
        """Refuses a fork of the process, before it touches a lock that another thread may hold."""
        if os.getpid() != self._pid:
            raise self._fail(op, "closed: it has joined in another process, of which this is a fork", (Closed,))

    def _quit(self) -> None:
        """Ends the member, and waits for its threads; a callback of at_end, which one of them makes,
        does not wait.
        """
        with self._cond:
            self._finish("closed", (Closed,))
        self._tell()
        if self._lease is not None:
            self._lease._closed()  # ends the thread that waits for it
        if threading.current_thread() not in self._threads:
            for t in self._threads:
                t.join()

    def _close_lease(self, until: float) -> None:
        """Ends the lease, and with it the registration; without the store's answer they expire."""
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                lease.close(timeout=left(until))
            except Error:
                pass

    def _goodbye(self, until: float) -> None:
        store, keys = self._store, self._keys
        store.delete(self._self.key, timeout=left(until))
        roster = Roster(keys, store.list(keys.roster, timeout=left(until)))
        if roster.workers or roster.view is None:
            return
        every = listed(store, keys, until)
        finished = store.exists(keys.finished(roster.view.run), timeout=left(until))
        last = newest(every)  # a job that has been drained begins with it again
        old = [keys.history, *(key for c in every if c is not last or finished for key in c.keys)]
        try:  # another job of this name may have begun: it creates its checkpoints after its view
            store.swap(keys.view, roster.view.raw, None, timeout=left(until))
        except Conflict:
            return
        store.delete(*old, timeout=left(until))


def remove(store: Store, job: str, id: str) -> None:
    """Ends the registration of a worker whose process has ended, for its launcher: the others see
    at once that it has failed. If it lives, its next raises Evicted.
    """
    keys = Keys(job)
    try:
        for key, g in Roster(keys, store.list(keys.roster)).workers.items():
            if g.worker.id == id:  # the note comes first: the others read the changes in this order
                store.set(keys.lost + key[len(keys.workers) :], b"", ttl=LOST_TTL)
                store.delete(key)
    except Error as e:
        raise member_error("remove", job, id, -1, str(e), kinds_of(e)) from None


def _evicted(kinds: Kinds) -> bool:
    return any(issubclass(kind, Evicted) for kind in kinds)


def _is_utf8(s: str) -> bool:
    try:
        s.encode()
    except UnicodeEncodeError:
        return False
    return True


def _named(bad: Bad, field: str, v: str, empty: bool = False) -> str:
    v = _arguments.text(bad, field, v)
    size = len(v.encode("utf-8", "surrogateescape"))
    if not v and not empty:
        raise bad(f"Config.{field} is empty", ())
    if size > _MAX_NAME:
        raise bad(f"Config.{field} has {size} bytes, the limit is {_MAX_NAME}", ())
    if not _is_utf8(v):
        raise bad(f"Config.{field} is not UTF-8", ())
    return v


def _bad_join(job: object, id: object) -> Bad:
    """Makes the errors of join's arguments."""
    return lambda why, also: member_error("join", str(job), str(id), -1, "invalid request: " + why, (*also, Invalid)[:1])
