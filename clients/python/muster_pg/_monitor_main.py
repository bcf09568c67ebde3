"""The process of _watch.py: acts when what the worker that has started it does makes no progress.

    _monitor_main.py PID FD

FD is a file of RECORDS times RECORD, which the worker maps: it takes no lock of the worker to read
it. The process ends with the worker, or with its standard input. It is a script that imports little.
"""

import errno
import os
import select
import signal
import struct
import sys
import time

SHOWN = "Qqqdq968s"  # id, done, total (−1: it is not shown), seconds without progress (0: nothing is watched), action, text
RECORD = struct.Struct("<qq" + SHOWN)  # moved: it changes with other progress; waits: not 0 while there may be none
RECORDS = 16
SHOWN_AT, DONE_AT = 16, 24
HERE = "\0"  # in a text: where the seconds are
LOG, CUT, EXIT, KILL = range(4)

_SLICE = 0.25  # seconds
_LAST_WORDS = 2.0  # seconds that faulthandler may take
_FULL = 1.0  # seconds that a pipe may stay full
_PIDFD_GETFD = 438


def main(pid: int, fd: int) -> None:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    watched = [_Watched(pid) for _ in range(RECORDS)]
    while os.getppid() == pid:  # another one: the worker has ended, and forks of it may hold the pipe open
        began = time.monotonic()
        if poll.poll(_SLICE * 1000):
            return
        ran = min(time.monotonic() - began, _SLICE)  # not the time for which both have been suspended
        memory = os.pread(fd, RECORDS * RECORD.size, 0)
        for w, record in zip(watched, RECORD.iter_unpack(memory)):
            w.look(record, ran)


class _Watched:
    """What one record is about."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: tuple[int, ...] = 0, 0, 0  # moved, id and done
        self._idle = 0.0  # seconds
        self._acted = False

    def look(self, record: tuple[int, int, int, int, int, float, int, bytes], ran: float) -> None:
        """Looks at a record, after some seconds in which the worker could make progress. Half of a
        change is one: it takes the next look for it to be whole.
        """
        moved, waits, id, done, total, seconds, action, text = record
        seen = moved, id, done
        if seen != self._seen or waits or not seconds:
            self._seen, self._idle, self._acted = seen, 0.0, False
            return
        self._idle += ran
        if self._acted or self._idle < seconds:
            return
        if action != LOG and _traced(self._pid):
            self._idle = 0.0
            return
        self._acted = True
        units = f", {done} of {total} ({100 * done // total}%)" if total > 0 else f", {done} done" if total == 0 < done else ""
        says = text.rstrip(b"\0").decode("utf-8", "replace").replace(HERE, f"{self._idle:.0f}s") + units
        if os.getppid() == self._pid:
            _say(says)
            self._act(action)

    def _act(self, action: int) -> None:
        if action == CUT:
            _cut(self._pid)
        elif action == EXIT or action == KILL and self._pid == 1:  # which ends by what it handles alone
            os.kill(self._pid, signal.SIGABRT)  # faulthandler's
            until = time.monotonic() + _LAST_WORDS
            while os.getppid() == self._pid and time.monotonic() < until:
                time.sleep(_SLICE / 10)
        if action in (EXIT, KILL) and os.getppid() == self._pid:
            os.kill(self._pid, signal.SIGKILL)


def _cut(pid: int) -> None:
    """Shuts down the TCP connections of the worker. First their writing ends: other ranks of gloo see
    an end. At once with a reset, gloo (of torch 2.15) may forget an operation that it begins then.
    """
    import socket

    try:
        found = [socket.socket(fileno=fd) for fd in _sockets(pid)]
    except (OSError, AttributeError) as e:
        _say(f'muster: its connections cannot be cut: {e}: in a container, allow SYS_PTRACE, or use on_stall="exit"')
        return
    for end in (socket.SHUT_WR, socket.SHUT_RD):
        for s in found:
            if s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM:
                try:
                    s.getpeername()
                    s.shutdown(end)
                except OSError:
                    pass  # it listens, or has ended
        time.sleep(_SLICE)
    for s in found:
        s.close()


def _sockets(pid: int) -> list[int]:
    """Returns duplicates of the sockets of the worker, which may hang."""
    import ctypes

    found, libc, folder = [], ctypes.CDLL(None, use_errno=True), f"/proc/{pid}/fd"
    pidfd = os.pidfd_open(pid)
    try:
        for name in os.listdir(folder):
            try:
                if not os.readlink(f"{folder}/{name}").startswith("socket:"):
                    continue
            except FileNotFoundError:  # it has just been closed
                continue
            fd = libc.syscall(_PIDFD_GETFD, pidfd, int(name), 0)
            if fd >= 0:
                found.append(fd)
            elif ctypes.get_errno() != errno.EBADF:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(pidfd)
    return found


def _say(text: str) -> None:
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    if not poll.poll(_FULL * 1000):
        return  # nobody reads it: to act matters more
    try:
        os.write(2, text.encode("utf-8", "backslashreplace") + b"\n")
    except OSError:
        pass  # nobody reads it


def _traced(pid: int) -> bool:
    """Reports whether a debugger is attached, on Linux."""
    try:
        with open(f"/proc/{pid}/status", "rb") as f:
            return any(line.startswith(b"TracerPid:") and line.split()[1] != b"0" for line in f)
    except OSError:
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
