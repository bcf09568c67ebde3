"""A process that watches this one, and acts when something in it makes no progress.

A thread cannot do that: none runs while C code holds the interpreter's lock, or the process is
stopped. What is watched is in memory that both processes share.
"""

from __future__ import annotations

import atexit
import faulthandler
import itertools
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Optional

from ._monitor_main import CUT, DONE_AT, EXIT, RECORD, RECORDS

_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
_PR_SET_PTRACER = 0x59616D61

_lock = threading.Lock()  # protects _monitor, and what of it is in use
_monitor: Optional[_Monitor] = None
_ids = itertools.count(1)


class _Monitor:
    """The process, and the memory. It is in the same process group, so that Ctrl-Z stops both, but
    ignores what the worker is to handle. It is a child of this process, and ends with it, or with the
    pipe, which no program inherits that this process executes.
    """

    def __init__(self) -> None:
        self.free = list(range(RECORDS))
        with _file() as f:
            os.ftruncate(f.fileno(), RECORDS * RECORD.size)
            self.memory = mmap.mmap(f.fileno(), RECORDS * RECORD.size)
            read, self._pipe = os.pipe()
            try:
                self.process = _start(read, f.fileno())
            except BaseException:
                os.close(self._pipe)
                raise
            finally:
                os.close(read)

    def close(self) -> None:
        os.close(self._pipe)
        self.process.kill()  # forks may hold the pipe open
        self.process.wait()


def _file() -> IO[bytes]:
    """Returns a file that has no name."""
    return open(os.memfd_create("muster"), "r+b") if sys.platform == "linux" else tempfile.TemporaryFile()


def _start(read: int, fd: int) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise OSError("sys.executable is not set")
    script = str(Path(__file__).with_name("_monitor_main.py"))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # the process has them blocked from its beginning
    try:
        args = [sys.executable, "-I", "-S", script, str(os.getpid()), str(fd)]
        return subprocess.Popen(args, stdin=read, stdout=subprocess.DEVNULL, pass_fds=[fd])
    except (ValueError, subprocess.SubprocessError) as e:
        raise OSError(str(e)) from e
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Watch:
    """One thing that is watched, until close. The first one starts the process, and the last one
    ends it. OSError: there is no room for it.
    """

    def __init__(self) -> None:
        global _monitor
        with _lock:
            self._of = _monitor = _monitor or _Monitor()
            if not self._of.free:
                raise OSError(f"{RECORDS} things are watched already")
            self._at = self._of.free.pop() * RECORD.size

    def set(self, seconds: float, action: int, text: str, done: int = 0, total: int = -1) -> memoryview:
        """Watches something else, or the same again: done has to change within some seconds (0: it is
        not watched). Returns the memory of done. Otherwise the process writes text to stderr, and
        acts. See _monitor_main.py.
        """
        if action == EXIT and not faulthandler.is_enabled():
            faulthandler.enable(2)
        if action == CUT:
            self._allow()
        RECORD.pack_into(self._of.memory, self._at, next(_ids), done, total, seconds, action, text.encode("utf-8", "replace"))
        return memoryview(self._of.memory)[self._at + DONE_AT : self._at + DONE_AT + 8].cast("q")

    def _allow(self) -> None:
        """Allows the process to duplicate sockets of this one, where Yama restricts that."""
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, self._of.process.pid, 0, 0, 0)

    @property
    def ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self._of.process.poll() is not None

    def close(self) -> None:
        """Ends it. Only the process that made it may call it."""
        self.set(0, 0, "")
        with _lock:
            self._of.free.append(self._at // RECORD.size)
            if len(self._of.free) == RECORDS:
                _end()


def _end() -> None:
    global _monitor
    monitor, _monitor = _monitor, None
    if monitor is not None:
        monitor.close()


def _forget() -> None:
    """Is called in a fork: the process is the parent's."""
    global _monitor, _lock
    _monitor, _lock = None, threading.Lock()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
