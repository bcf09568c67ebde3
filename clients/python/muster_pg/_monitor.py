"""Has this process killed when it hangs, so that a launcher replaces it."""

from __future__ import annotations

import logging
import os
import threading
from typing import Callable, Optional

from . import _stacks
from ._elastic import ElasticMember
from ._errors import Error, quote
from ._monitor_main import HERE, KILL
from ._watch import Watch

_BEAT = 1.0  # seconds
_ASK = 0.25  # seconds that the store may take to answer; without an answer nobody is killed
_SLACK = 3  # beats before the end in which the stacks are logged

_log = logging.getLogger("muster_pg")


class Monitor:
    """Has this process killed when it has not run for grace seconds, or when wrong has returned a
    text for as long: a thread "muster monitor" sends beats to the process that watches this one,
    until close.

    wrong says what is wrong with this process, as "is excluded", and "" if nothing is. Without room
    for the thread or the process there is a warning, and no monitor.
    """

    def __init__(self, job: str, id: str, grace: float, wrong: Callable[[], str]) -> None:
        self._job, self._id, self._grace, self._wrong = job, id, grace, wrong
        self._beat = min(_BEAT, grace / 8)
        self._pid = os.getpid()
        self._over = threading.Event()
        self._watch: Optional[Watch] = None
        self._thread = threading.Thread(target=self._run, name="muster monitor", daemon=True)
        try:
            self._watch = Watch()
            self._thread.start()
        except (OSError, RuntimeError) as e:
            _log.warning("elastic job %s: no monitor process: if this worker hangs, it has to be killed by hand: %s", job, e)
            self._end()
        except BaseException:  # of a signal
            self.close()
            raise

    def close(self) -> None:
        """Ends the thread and the watch. It may be called twice."""
        if os.getpid() != self._pid:  # a fork; the monitor is the parent's
            return
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._end()

    def _end(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def _run(self) -> None:
        watch, bad, beats = self._watch, "", 0
        assert watch is not None
        while True:
            wrong, before = self._wrong(), bad
            bad, beats = wrong, beats + 1 if wrong else 0
            if not bad or not before:
                says = f"{' '.join(bad.split())}, and has not come back from the program's code" if bad else "has not run"
                worker = f"muster: elastic job {quote(self._job)}: worker {quote(self._id)} (pid {self._pid})"
                watch.set(self._grace, KILL, f"{worker} {says} for {HERE}: killing it, so that it can be replaced")
            if watch.ended:
                _log.warning("elastic job %s: the monitor process has ended: if this worker hangs, it has to be killed by hand", self._job)
                return
            if beats == max(int(self._grace / self._beat) - _SLACK, 1):
                _log.warning("elastic job %s: this worker %s, and is about to be killed:\n%s", self._job, bad, _stacks.text().decode("utf-8", "replace"))
            if self._over.wait(self._beat):
                return


def gone(member: Optional[ElasticMember]) -> str:
    """Says how a member has ended, as the store has it; "" if it has not. While the store cannot be
    reached, nobody can replace the worker, and it may be waiting for the store.
    """
    if member is None or member._why is None:
        return ""
    try:
        member._store.exists(member._self.key, timeout=_ASK)
    except Error:
        return ""
    return "is " + member._why[0].partition(": ")[0]
