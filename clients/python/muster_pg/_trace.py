"""The file of what the ranks of a process did, as Go's trace.Chrome writes it: for "muster trace",
and Perfetto.

Verbs do not wait for the file: a thread writes what there is within 0.1 s. So a process that is
killed loses what it did in that time, and its file, which lacks its end then, is still read. A
failure alone is written at once, since programs end because of them, if that takes no more than 0.1
s.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import socket
import threading
import time
from typing import BinaryIO, Dict, List, Optional, Tuple

from ._span import Span, now

_VERSION = 1  # of the fields that the reader knows
_DELAY = 0.1  # seconds that an event may be in memory alone
_MAX_PENDING = 8 << 20  # bytes that wait for a slow file
_CLOSE_TIMEOUT = 5.0  # seconds that the end of a group waits for its file
_END = "\n]\n"


def create(directory: str, rank: int, host: str) -> Trace:
    """Makes directory, and a file in it that is not there yet: a process may have several, and its
    number may come again.
    """
    os.makedirs(directory, exist_ok=True)
    name = f"rank{rank}-{re.sub('[^-.0-9A-Za-z]', '_', host)}-{os.getpid()}"
    n, path = 0, os.path.join(directory, name + ".json")
    while True:
        try:
            return Trace(path, open(path, "xb", buffering=0))
        except FileExistsError:
            n += 1
            path = os.path.join(directory, f"{name}-{n}.json")


class Trace:
    """A file. Every group that writes to it holds it; the last one closes it, or the end of the
    process.
    """

    def __init__(self, path: str, file: BinaryIO) -> None:
        self._path, self._file, self._pid = path, file, os.getpid()
        self._cond = threading.Condition()  # protects the fields below; not held while the file is written
        self._refs = 1
        self._closed = False
        self._error: Optional[OSError] = None  # the first one of the file
        self._dropped = 0
        self._hurry = False  # there is a failure to write
        self._added = self._written = 0  # lines
        self._named = False
        self._rows: Dict[str, List[_Row]] = {}  # by group, by when the last event of each ended: events of one row must not overlap
        self._tids = 0
        wall, self._start = time.time_ns(), now()
        self._waiting = [f'[\n{{"name":"muster","ph":"M","pid":{self._pid},"tid":0,"args":{{"version":{_VERSION},"start":"{wall}","host":{_text(socket.gethostname())}}}}}']
        self._size = 0
        self._write()  # at once, and before there is a thread: no file is empty
        self._thread = threading.Thread(target=self._run, name="muster trace", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # there is no room for a thread
            file.close()
            raise
        atexit.register(self._close)

    def record(self, s: Span) -> None:
        """Takes in what has ended."""
        if os.getpid() != self._pid:  # a fork: another thread may have held the lock
            return
        with self._cond:
            if self._closed or self._error is not None:
                return
            if self._size > _MAX_PENDING:
                self._dropped += 1
                return
            self._note_dropped(s.end)
            self._event(s)
            if s.error:
                self._hurry, mine = True, self._added
                self._cond.notify_all()
                self._cond.wait_for(lambda: self._written >= mine or self._error is not None, _DELAY)

    def hold(self) -> None:
        with self._cond:
            self._refs += 1

    def release(self) -> None:
        """Lets go of the file."""
        if os.getpid() != self._pid:
            return
        with self._cond:
            self._refs -= 1
            last = self._refs == 0
        if last:
            atexit.unregister(self._close)
            self._close()

    def _close(self) -> None:
        """Ends the file. That it could not be written is no reason for a group to fail."""
        if os.getpid() != self._pid:
            return
        with self._cond:
            if self._closed:
                return
            self._closed = True
            self._note_dropped(now())
            self._add(_END)
            self._cond.notify_all()
        self._thread.join(_CLOSE_TIMEOUT)
        if self._thread.is_alive():
            logging.getLogger("muster_pg").error("the trace %s could not be written within %g s: the group ends without it", self._path, _CLOSE_TIMEOUT)
            return
        self._file.close()
        if self._error is not None:
            logging.getLogger("muster_pg").error("the trace %s could not be written: %s", self._path, self._error)

    def _run(self) -> None:
        """Writes what there is, a little later."""
        closed = False
        while not closed:
            with self._cond:
                self._cond.wait_for(lambda: self._waiting or self._closed)
                self._cond.wait_for(lambda: self._closed or self._hurry, _DELAY)
                closed, self._hurry = self._closed, False
            self._write()

    def _write(self) -> None:
        with self._cond:
            b, upto = "".join(self._waiting).encode(), self._added
            self._waiting, self._size = [], 0
            if self._error is not None:
                return
        error: Optional[OSError] = None
        try:
            while b:
                b = b[self._file.write(b) :]
        except OSError as e:
            error = e
        with self._cond:
            self._written, self._error = upto, error
            self._cond.notify_all()

    # What is called with the lock.

    def _add(self, line: str) -> None:
        self._waiting.append(line)
        self._added += 1
        self._size += len(line)
        if len(self._waiting) == 1:
            self._cond.notify_all()

    def _note_dropped(self, at: int) -> None:
        """Says how many events are missing before at."""
        if self._dropped:
            says = f"{self._dropped} events left out: the file was too slow"
            self._add(f',\n{{"name":"{says}","cat":"dropped","ph":"i","s":"p","pid":{self._pid},"tid":0,"ts":{_micros(at - self._start)}}}')
            self._dropped = 0

    def _event(self, s: Span) -> None:
        if not self._named:
            self._named = True
            self._name("process_name", 0, f"rank {s.member.rank} of {s.member.size}")
        row = self._row(s)
        self._add(
            f',\n{{"name":"{s.verb}","cat":"pgroup","ph":"X","pid":{self._pid},"tid":{row},"ts":{_micros(s.start - self._start)},'
            f'"dur":{_micros(s.end - s.start)},"args":{{"group":{_text(s.member.name)}{_args(s)}}}}}'
        )

    def _row(self, s: Span) -> int:
        """Is where an event is drawn: the first row of its group that is free."""
        rows = self._rows.setdefault(s.member.name, [])
        for row in rows:
            if row.end <= s.start:
                row.end = s.end
                return row.tid
        self._tids += 1
        rows.append(_Row(self._tids, s.end))
        self._name("thread_name", self._tids, f"pgroup · {s.member.name}" + (f" ({len(rows)})" if len(rows) > 1 else ""))
        return self._tids

    def _name(self, what: str, tid: int, name: str) -> None:
        """Gives the process, or a row of it, a name."""
        self._add(f',\n{{"name":"{what}","ph":"M","pid":{self._pid},"tid":{tid},"args":{{"name":{_text(name)}}}}}')


class _Row:
    def __init__(self, tid: int, end: int) -> None:
        self.tid, self.end = tid, end


def _args(s: Span) -> str:
    """Is what is there of the rest."""
    out: List[Tuple[str, object]] = []
    if s.channel:
        out.append(("channel", _text(s.channel)))
    if s.member.generation:
        out.append(("generation", s.member.generation))
    if s.member.id:  # text: numbers have 53 bits in some readers
        out.append(("id", f'"{s.member.id:x}"'))
    if s.seq:
        out.append(("seq", s.seq))
    out += [("rank", s.member.rank), ("size", s.member.size)]
    if s.last >= 0:
        out.append(("last", s.last))
    if s.given:
        out.append(("bytes", s.given))
    if s.waited > 0:
        out.append(("waited", _micros(s.waited)))
    if s.error:
        out.append(("error", _text(s.error)))
    return "".join(f',"{name}":{value}' for name, value in out)


def _micros(ns: int) -> str:
    """Is a time in microseconds, to the nanosecond."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _text(s: str) -> str:
    return json.dumps(s)
