"""What this rank does, and how far it is: for the store, and for the process that watches this one."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import Callable, List, Optional, Union

from . import _arguments, _monitor_main, _wire
from ._arguments import Bad
from ._errors import Error, Timeout, Unavailable, clip, quote
from ._watch import Watch

_LOOK = 0.25  # seconds until a rank looks at its phases again
_REPORT = 1.0  # seconds between two reports, at least
_SHARE = 0.002  # seconds between two reports, for each rank of the group: a large one makes no more than one of 500
_ACTIONS = {"log": _monitor_main.LOG, "cut": _monitor_main.CUT, "exit": _monitor_main.EXIT}
_MOST = _arguments.INT64[1]

_Cell = Union[List[int], memoryview]

_log = logging.getLogger("muster_pg")
_shared: "weakref.WeakSet[Phase]" = weakref.WeakSet()  # phases whose done is in memory that a fork would share


class Phase:
    """What this rank does, from the beginning of a with statement to its end: see Group.phase."""

    def __init__(self, progress: Progress, bad: Bad, name: str, total: int, stall: float, on_stall: str) -> None:
        """Not called by users."""
        self._progress, self._bad = progress, bad
        if not _arguments.text(bad, "name", name):
            raise bad("name is empty", ())
        self.name = clip(name, _wire.MAX_PHASE)
        self.total = _arguments.between(bad, "total", total, 0, _MOST)
        self.stall, self.on_stall = _arguments.stall(bad, stall), _arguments.text(bad, "on_stall", on_stall)
        if on_stall not in _ACTIONS:
            raise bad(f"on_stall is {on_stall!r}: there are {', '.join(_ACTIONS)}", ())
        if on_stall != "log" and not stall:
            raise bad(f"on_stall is {on_stall!r}: it needs a stall, in seconds", ())
        self.id = 0  # differs each time that it begins
        self.units = [0]  # those done
        self.shown: _Cell = [0]  # the same, in memory that is shared while it is watched
        self.moved: _Cell = [0]  # changes with units; in such memory while any phase is watched
        self.seen = 0  # units at the last look

    def done(self, n: int) -> None:
        """Says that n units are done so far. It takes less than a microsecond."""
        if type(n) is not int or not 0 <= n <= _MOST:
            n = _arguments.between(self._bad, "done", n, 0, _MOST)
        if n != self.units[0]:
            self.units[0] = self.shown[0] = n
            self.moved[0] += 1

    def __enter__(self) -> Phase:
        try:
            self._progress.begin(self)
            return self
        except BaseException:  # of a signal
            self._progress.end(self)
            raise

    def __exit__(self, *_: object) -> None:
        self._progress.end(self)


class Progress:
    """The phases of a rank that have not ended. The one that has begun or progressed last, in any thread, is current.

    A thread "muster progress" reports it, at most once a second, and in a group of n ranks once in 2n
    ms, until there is none, or close. One with a stall, its own or that of another one that is open, is
    watched by another process, until close: all of them have to stop for it to act.
    In a fork of this process, phases are neither reported nor watched.
    """

    def __init__(self, who: str) -> None:
        """who is the rank, in words."""
        self.who = who
        self._pid = os.getpid()
        self._over = threading.Event()
        self._lock = threading.RLock()  # protects the fields below
        self._report: Optional[Callable[[_wire.Phase], object]] = None
        self._connection: Callable[[], object] = lambda: None
        self._interval = _REPORT
        self._reported = -math.inf  # when
        self._open: List[Phase] = []  # the current one is the last
        self._waiting = 0  # verbs that wait for other ranks
        self._last = 0  # id
        self._thread: Optional[threading.Thread] = None
        self._watch: Optional[Watch] = None
        self._monitors = 2  # that may be started

    def reports(self, size: int, report: Callable[[_wire.Phase], object], connection: Callable[[], object]) -> None:
        """Reports to a group of a size from now on, in which nothing was reported. report may raise an
        Error. What was reported is reported again on another connection: a store may have been
        restarted.
        """
        with self._lock:
            self._interval, self._report, self._connection = max(_REPORT, _SHARE * size), report, connection
            if self._last > 0:
                self._start()

    def _start(self) -> None:
        """Starts the thread, if there is none. Called with the lock."""
        if (self._report or self._watch) and self._thread is None and not self._over.is_set():
            thread = threading.Thread(target=self._run, name="muster progress", daemon=True)
            with suppress(RuntimeError):  # there is no room for it, or the interpreter ends
                thread.start()
                self._thread = thread

    def begin(self, phase: Phase) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._look()  # what progressed before is not current
            self._last += 1
            phase.id, phase.units, phase.seen = self._last, [0], 0
            self._open.append(phase)
            self._show()
            self._start()

    def end(self, phase: Phase) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            if phase in self._open:
                self._open.remove(phase)
                _own(phase)
                self._show()

    def close(self) -> None:
        """Ends the thread, and watches no more. Phases that have not ended may do so later."""
        if os.getpid() != self._pid:
            return
        self._over.set()
        thread = self._thread
        if thread is not None and not self._lock._is_owned():  # type: ignore[attr-defined]  # a signal handler
            thread.join()
        with self._lock:
            self._unshare()
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def waits(self, n: int) -> None:
        """Says that n more verbs wait for other ranks, whose stalls are theirs to notice."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._waiting += n
            if self._watch is not None:
                self._watch.pause(self._waiting > 0)

    def _look(self) -> Optional[Phase]:
        """Returns the phase that has progressed since the last look: the current one, or that which has begun last. Called with the lock."""
        moved = [p for p in self._open if p.units[0] != p.seen]
        for p in moved:
            p.seen = p.units[0]
        return None if not moved else self._open[-1] if self._open[-1] in moved else max(moved, key=lambda p: p.id)

    def _follow(self) -> None:
        """Makes the phase that has progressed last current, and has it watched. Called with the lock."""
        moved = self._look()
        if moved is not None and moved is not self._open[-1]:
            self._open.remove(moved)
            self._open.append(moved)
            self._show()
        elif self._watch is not None and self._watch.ended:
            self._show()

    def state(self) -> _wire.Phase:
        """Returns what is to be reported."""
        with self._lock:
            if not self._open:
                return _wire.Phase()
            phase = self._open[-1]
            return _wire.Phase(phase.id, phase.name, phase.units[0], phase.total, int(1e9 * self._patience().stall))

    def _patience(self) -> Phase:
        """Returns the phase whose stall is that of the current one. While that one lacks a stall, all others have stopped for as long. Called with the lock."""
        return next((p for p in reversed(self._open) if p.stall), self._open[-1])

    def _unshare(self) -> None:
        for phase in self._open:
            _own(phase)

    def _show(self) -> None:
        """Has the current phase watched, if it has a stall. Called with the lock."""
        self._unshare()
        if self._watch is not None and self._watch.ended:
            self._watch.close()
            self._watch = None
            what = "another one is started" if self._monitors else "on_stall has no effect any more"
            _log.warning("%s: the monitor process has ended: %s", self.who, what)
        if not self._open:
            if self._watch is not None:
                self._watch.set(0, 0, "")
            return
        phase, patience = self._open[-1], self._patience()
        if patience.stall and self._watch is None and self._monitors and not self._over.is_set():
            self._monitors -= 1
            try:
                self._watch = Watch()
                self._watch.pause(self._waiting > 0)
            except OSError as e:
                self._monitors = 0
                _log.warning("phase %s: no monitor process: on_stall has no effect: %s", phase.name, e)
        watch = self._watch  # a signal handler may close it
        if watch is not None:
            text = f"muster: {self.who} has made no progress for {_monitor_main.HERE}: {quote(phase.name)[1:-1]}"
            phase.shown = watch.set(patience.stall, _ACTIONS[patience.on_stall], text, phase.units[0], phase.total)
            for p in self._open:
                p.moved = watch.moved
                _shared.add(p)

    def _run(self) -> None:
        seen: Optional[_wire.Phase] = None
        sent: object = None
        progress = 0.0
        while True:
            with self._lock:
                self._follow()
                state, report = self.state(), self._report
                what = state, self._connection(), report
                if not (report or self._watch) or not self._open and (report is None or what == sent):
                    self._thread = None
                    return
            now = time.monotonic()
            if state != seen:
                seen, progress = state, now
            if report is not None and what != sent and now - self._reported > self._interval - _LOOK / 2:  # waits are not exact
                self._reported, sent = now, what
                try:
                    report(state._replace(ago=int(1e9 * (now - progress))))
                except (Timeout, Unavailable):
                    sent = None
                except Error as e:  # the group is over, or the store too old
                    _log.debug("progress is not reported: %s", e)
                    with self._lock:
                        self._report = None if self._report is report else self._report
            if self._over.wait(_LOOK):
                return


def _own(phase: Phase) -> None:
    """Ends the sharing of a phase's memory."""
    phase.shown, phase.moved = [0], [0]


def _forget() -> None:
    """Is called in a fork."""
    for phase in list(_shared):
        _own(phase)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
