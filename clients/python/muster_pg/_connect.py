"""How a name becomes a connection: all of its addresses, within one deadline."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from ._errors import quote
from ._pipe import Pipe, own

_STAGGER = 0.25  # seconds after which the next address is tried too, as RFC 8305 has it
_GLANCE = 0.25  # seconds between one look whether this is to end, and the next

_Found = List[Tuple[int, Tuple[Any, ...]]]  # family and address


class Attempt:
    """One dialing, which another thread may end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the fields below
        self._pipe: Optional[Pipe] = None
        self._ended = False

    def has(self, pipe: Pipe) -> None:
        """Notes what is to be ended."""
        with self._lock:
            self._pipe = pipe
            ended = self._ended
        if ended:
            pipe.kill()

    def end(self) -> None:
        """Ends the dialing: it fails soon."""
        with self._lock:
            self._ended = True
            pipe = self._pipe
        if pipe is not None:
            pipe.kill()

    def left(self, until: float) -> float:
        """Returns how many seconds there are until the next look; when none are left, that is
        socket.timeout.
        """
        left = until - time.monotonic()
        if left <= 0 or self._ended:
            raise socket.timeout("timed out")
        return min(left, _GLANCE)


def connect(host: str, port: int, until: float, attempt: Attempt) -> socket.socket:
    """Connects to the first address of host that answers.

    They are tried in their order, each a moment after the one before, or when that has failed; all
    end with the same deadline. If none answers, the error says of each why.
    """
    found = _resolve(host, port, until, attempt)
    with contextlib.closing(_Race()) as race:
        try:
            return race.run(found, until, attempt)
        except OSError as e:
            raise race.error(host, e) from None


class _Race:
    """Connections that are being made, of which the first to be there wins."""

    def __init__(self) -> None:
        self._ready = selectors.DefaultSelector()
        self._failed: Dict[str, OSError] = {}  # by address

    def run(self, todo: _Found, until: float, attempt: Attempt) -> socket.socket:
        """Returns the winner. socket.timeout: there is none yet; another error: there will be none."""
        begin = 0.0
        while True:
            left = attempt.left(until)
            if todo and time.monotonic() >= begin:
                begin = time.monotonic() + _STAGGER
                self._begin(*todo[0])
                todo = todo[1:]
            for key, _ in self._ready.select(left if self._ready.get_map() else 0):
                sock, name = key.fileobj, key.data
                assert isinstance(sock, socket.socket)
                self._ready.unregister(sock)
                error = _outcome(sock)
                if error is None:
                    return sock
                self._fail(sock, name, error)
            if not self._ready.get_map():
                if not todo:
                    raise next(iter(self._failed.values()))
                begin = 0.0  # nothing to wait for

    def _begin(self, family: int, address: Tuple[Any, ...]) -> None:
        name = _name(address)
        try:
            sock = own(socket.socket(family, socket.SOCK_STREAM))
        except OSError as e:
            self._failed[name] = e
            return
        try:
            sock.setblocking(False)
            sock.connect(address)
        except BlockingIOError:
            pass
        except OSError as e:
            self._fail(sock, name, e)
            return
        except BaseException:
            sock.close()
            raise
        self._ready.register(sock, selectors.EVENT_WRITE, name)

    def _fail(self, sock: socket.socket, name: str, e: OSError) -> None:
        sock.close()
        self._failed[name] = e

    def error(self, host: str, e: OSError) -> OSError:
        """Returns what has become of all, of those that are still being made e.

        What may still go away counts for more than a refusal.
        """
        failed = {**self._failed, **{key.data: e for key in self._ready.get_map().values()}}
        errors = [e for kind in (socket.timeout, ConnectionRefusedError, OSError) for e in failed.values() if isinstance(e, kind)]
        if not errors:
            return e
        says = "; ".join(f"{name}: {_words(e)}" for name, e in failed.items())
        if len(failed) == 1 and next(iter(failed)).rpartition(":")[0].strip("[]") == host:
            says = _words(errors[0])  # it is what was asked for
        return socket.timeout(says) if isinstance(errors[0], socket.timeout) else OSError(errors[0].errno, says)

    def close(self) -> None:
        for key in list(self._ready.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._ready.close()


def _outcome(sock: socket.socket) -> Optional[OSError]:
    """Returns why a connection that is ready has failed; None if it is there."""
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    try:
        if not code and sock.getsockname() == sock.getpeername():
            code = errno.ECONNREFUSED  # no process listens at a port of the range from which both ends got theirs: it is connected to itself
    except OSError:
        code = errno.ECONNRESET  # it was there, and has ended just now
    return OSError(code, os.strerror(code)) if code else None


def _name(address: Tuple[Any, ...]) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def _words(e: OSError) -> str:
    return e.strerror.lower() if e.strerror else str(e)


def _resolve(host: str, port: int, until: float, attempt: Attempt) -> _Found:
    """Returns the addresses of host.

    Nothing can interrupt a resolver that waits for a name server. So it waits in a thread of its
    own, a daemon, which ends when the resolver gives up; no thread waits for it, and what it finds
    after the deadline is dropped.
    """
    with contextlib.suppress(socket.gaierror):
        return _look_up(host, port, socket.AI_NUMERICHOST)  # needs no name server
    found: List[_Found] = []
    errors: List[Exception] = []
    done = threading.Event()

    def look_up() -> None:
        try:
            found.append(_look_up(host, port, 0))
        except Exception as e:
            errors.append(e)
        done.set()

    threading.Thread(target=look_up, name="muster resolver", daemon=True).start()
    try:
        while not done.wait(attempt.left(until)):
            pass
    except socket.timeout:
        raise socket.timeout(f"no name server has said in time where {quote(host)} is") from None
    for e in errors:
        raise e
    return found[0]


def _look_up(host: str, port: int, flags: int) -> _Found:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in found]
