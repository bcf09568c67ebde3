"""A process that kills this one when it hangs, so that a launcher replaces it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Callable, Optional

from . import _stacks
from ._elastic import ElasticMember
from ._errors import Error, quote

_BEAT = 1.0  # seconds
_ASK = 0.25  # seconds that the store may take to answer; without an answer nobody is killed
_SLACK = 3  # beats before the end in which the stacks are logged
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}

_log = logging.getLogger("muster_pg")


class Monitor:
    """Has this process killed when it has not run for grace seconds, or when wrong has returned a
    text for as long.

    A thread cannot do that: none runs while C code holds the interpreter's lock, or the process is
    stopped. A thread "muster monitor" sends beats to the other process, until close. wrong says what
    is wrong with this process, as "is excluded", and "" if nothing is. The other process is in the
    same process group, so that Ctrl-Z stops both, but ignores what the worker is to handle. It is a
    child of this process, and ends with it. Without room for it there is a warning, and no monitor.
    """

    def __init__(self, job: str, id: str, grace: float, wrong: Callable[[], str]) -> None:
        self._job, self._grace, self._wrong = job, grace, wrong
        self._beat = min(_BEAT, grace / 8)
        self._pid = os.getpid()
        self._over = threading.Event()
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._pipe = read = -1
        self._thread = threading.Thread(target=self._run, name="muster monitor", daemon=True)
        try:
            read, self._pipe = os.pipe()  # neither is inherited by what the program executes
            os.set_blocking(self._pipe, False)
            self._process = _start(read, self._pid, f"{grace:g}", quote(job), quote(id))
            self._thread.start()
        except (OSError, ValueError, RuntimeError, subprocess.SubprocessError) as e:
            _log.warning("elastic job %s: no monitor process: if this worker hangs, it has to be killed by hand: %s", job, e)
            self._end()
        except BaseException:  # of a signal
            self.close()
            raise
        finally:
            if read >= 0:
                os.close(read)

    def close(self) -> None:
        """Ends the thread and the process. It may be called twice."""
        if os.getpid() != self._pid:  # a fork; the monitor is the parent's
            return
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._end()

    def _end(self) -> None:
        pipe, self._pipe = self._pipe, -1
        process, self._process = self._process, None
        if pipe >= 0:
            os.close(pipe)
        if process is not None:  # the end of the pipe is not enough: forks may hold it open
            process.kill()
            process.wait()

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})  # its default ends the program
        bad, beats = "", 0
        while True:
            wrong, before = self._wrong(), bad
            bad, beats = wrong, beats + 1 if wrong else 0
            try:
                if not bad or not before:
                    os.write(self._pipe, " ".join(bad.split()).encode("utf-8", "replace")[:1000] + b"\n")
            except BlockingIOError:
                pass  # it has been stopped: it has enough to read
            except OSError as e:
                _log.warning("elastic job %s: the monitor process has ended: if this worker hangs, it has to be killed by hand: %s", self._job, e)
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


def _start(read: int, pid: int, *args: str) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise OSError("sys.executable is not set")
    script = str(Path(__file__).with_name("_monitor_main.py"))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # the process has them blocked from its beginning
    try:
        return subprocess.Popen([sys.executable, "-I", "-S", script, str(pid), *args], stdin=read, stdout=subprocess.DEVNULL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
