"""A process that watches this one, and acts when something in it makes no progress.

A thread cannot do that: none runs while C code holds the interpreter's lock, or the process is
stopped. What is watched is in memory that both processes share.
"""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import itertools
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Optional

from ._monitor_main import CUT, DONE_AT, EXIT, KILL, RECORD, RECORDS, SHOWN, SHOWN_AT

_STOPS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT}
_OWN = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}  # of a fault of its own
_SHOWN = struct.Struct("<" + SHOWN)
_PR_SET_PTRACER = 0x59616D61

_lock = threading.RLock()  # protects _monitor, and what of it is in use; a signal handler may close a watch
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
            read, write = os.pipe()
            self._pipe = _high(write)
            os.close(write)
            try:
                self.process = _start(read, f.fileno())
            except BaseException:
                os.close(self._pipe)
                raise
            finally:
                os.close(read)

    def close(self) -> None:
        os.close(self._pipe)
        self.process.kill()  # a program may hold the pipe open
        self.process.wait()

    def forget(self) -> None:
        """Leaves it to the parent of this fork: it ends when that executes another program."""
        os.close(self._pipe)
        self.process.returncode = 0  # nobody waits for it here


def _file() -> IO[bytes]:
    """Returns a file that has no name."""
    with open(os.memfd_create("muster"), "r+b") if sys.platform == "linux" else tempfile.TemporaryFile() as f:
        return open(_high(f.fileno()), "r+b")


def _high(fd: int) -> int:
    """Returns a duplicate that is not 0 to 2, where a process has its standard files, even if this one has closed them."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def _start(read: int, fd: int) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise OSError("sys.executable is not set")
    script = str(Path(__file__).with_name("_monitor_main.py"))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _STOPS - _OWN)  # the process has them blocked from its beginning
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
            if _monitor is None or _monitor.process.poll() is not None:
                _monitor = _Monitor()
            self._of = _monitor
            if not self._of.free:
                raise OSError(f"{RECORDS} things are watched already")
            self._at = self._of.free.pop() * RECORD.size
        self.moved, self._waits = (memoryview(self._of.memory)[at : at + 8].cast("q") for at in (self._at, self._at + 8))
        self._waits[0] = 0

    def set(self, seconds: float, action: int, text: str, done: int = 0, total: int = -1) -> memoryview:
        """Watches something else, or the same again: done has to change within some seconds (0: it is
        not watched). Returns the memory of done. Otherwise the process writes text to stderr, and
        acts. See _monitor_main.py.
        """
        if os.getpid() == 1 and action in (EXIT, KILL):
            _end_by_abort()
        if action == EXIT and not faulthandler.is_enabled():
            faulthandler.enable(2)
        if action == CUT:
            self._allow()
        _SHOWN.pack_into(self._of.memory, self._at + SHOWN_AT, next(_ids), done, total, seconds, action, text.encode("utf-8", "replace"))
        return memoryview(self._of.memory)[self._at + DONE_AT : self._at + DONE_AT + 8].cast("q")

    def pause(self, waits: bool) -> None:
        """Has it watched, or not, independently of set."""
        self._waits[0] = waits

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
                _end(self._of)


def _end(monitor: Optional[_Monitor]) -> None:
    global _monitor
    if _monitor is monitor:
        _monitor = None
    if monitor is not None:
        monitor.close()


_aborts = False


def _end_by_abort() -> None:
    """Has SIGABRT end this process, after faulthandler: the kernel keeps what a process 1 does not
    handle, SIGKILL too, from it.
    """
    global _aborts
    if not _aborts:
        import ctypes

        _aborts = True
        enabled, libc = faulthandler.is_enabled(), ctypes.CDLL(None)
        faulthandler.disable()
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal(signal.SIGABRT, ctypes.cast(libc._exit, ctypes.c_void_p))
        if enabled:
            faulthandler.enable(2)  # calls the handler that there was


def _forget() -> None:
    """Is called in a fork: the process is the parent's."""
    global _monitor, _lock
    if _monitor is not None:
        _monitor.forget()
    _monitor, _lock = None, threading.RLock()


atexit.register(lambda: _end(_monitor))
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
