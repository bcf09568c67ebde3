"""One connection: bytes both ways, with TLS or without."""

from __future__ import annotations

import math
import os
import selectors
import socket
import ssl
import threading
import time
import weakref
from typing import Callable, List, Optional, Union

from ._errors import Denied, Error, ProtocolError, make
from ._wire import Op

_BUFFER_SIZE = 64 << 10
_BEHIND = 1 << 20  # bytes
_PLAIN = "this server does not use TLS: dial it without"


class Pipe:
    """Carries bytes. One thread receives, and any may send.

    Sending never waits for the peer to read: what it does not take at once, a thread of the pipe's
    own sends on. So the receiving thread can answer, and a caller's deadline holds regardless of
    the peer.

    TLS goes through memory, because an ssl.SSLSocket cannot send in one thread while another
    receives.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._timeout: Optional[float] = None  # of receive; it is the receiver's alone
        self._out = own(sock.dup())
        self._out.setblocking(False)
        self._tls: Optional[ssl.SSLObject] = None
        self._from = ssl.MemoryBIO()
        self._to = ssl.MemoryBIO()
        self._mu = threading.RLock()  # protects the fields below, and the TLS
        self._interrupted: Callable[[], bool] = self._mu._is_owned  # type: ignore[attr-defined]
        self._queue = bytearray()  # what the peer has not taken yet: while there is any, a thread sends it
        self._drain: Optional[threading.Thread] = None
        self._taken = self._seen = 0  # bytes of the queue that the peer has taken, now and at the last call of progress
        self._dead = False

    def secure(self, context: ssl.SSLContext, name: str, until: float) -> None:
        """Does the TLS handshake."""
        tls = context.wrap_bio(self._from, self._to, server_hostname=name)
        began = b""
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as e:
                self._push(self._to.read())  # the alert that says why
                raise refusal(e) from e
            self._push(self._to.read())
            b = self._receive(until - time.monotonic())
            if not b:
                raise EOFError("EOF")
            if len(began) < 5:
                began += b
                if len(began) < 5:
                    continue
                b = began
                _check_record(b)
            self._from.write(b)
        self._tls = tls
        self.send(b"")  # the end of the handshake is still in there

    def send(self, data: Union[bytes, bytearray]) -> None:
        """Sends data, behind all that was sent before.

        A signal that ends it ends the connection: half of data may be on its way. So does a signal
        handler that sends in the middle of it: what it has to send is repeated on the next one.
        """
        if self._interrupted():
            self.kill()
            return
        try:
            with self._mu:
                if self._tls is not None:
                    if data:
                        self._tls.write(data)
                    data = self._to.read()
                self._send(data)
        except OSError:
            self.kill()  # the receiving thread reports the reason
        except BaseException:
            self.kill()
            raise

    def _push(self, data: bytes) -> None:
        """Sends data as it is."""
        try:
            with self._mu:
                self._send(data)
        except OSError:
            self.kill()

    def _send(self, data: Union[bytes, bytearray]) -> None:
        """Sends what the peer takes now; a thread sends the rest. Called with the lock."""
        if self._dead:
            return
        if self._queue:
            self._queue += data
            return
        sent = 0
        try:
            while sent < len(data):
                sent += self._out.send(memoryview(data)[sent:] if sent else data)
        except BlockingIOError:
            self._hand_over(data[sent:] if sent else data)

    def _hand_over(self, rest: Union[bytes, bytearray]) -> None:
        drain = threading.Thread(target=self._send_on, name="muster sender", daemon=True)
        try:
            drain.start()
        except RuntimeError as e:  # the interpreter ends, or has no room for a thread
            raise OSError(str(e)) from e
        self._queue += rest
        self._drain = drain  # that it has been started is what close relies on

    def _send_on(self) -> None:
        """Sends until nothing is queued, as the peer takes it."""
        with selectors.DefaultSelector() as ready:
            try:
                ready.register(self._out, selectors.EVENT_WRITE)
            except (OSError, ValueError):
                self.kill()
            while True:
                with self._mu:
                    if not self._queue or self._dead:
                        return
                    data = bytes(self._queue[:_BUFFER_SIZE])
                ready.select()
                try:
                    n = self._out.send(data)
                except BlockingIOError:
                    continue
                except OSError:
                    self.kill()
                    continue
                with self._mu:
                    del self._queue[:n]
                    self._taken += n

    def progress(self) -> bool:
        """Reports whether the peer is in the middle of a long request: more than 1 MiB waits for
        it, and it has taken some since the last call.
        """
        with self._mu:
            seen, self._seen = self._seen, self._taken
            return len(self._queue) > _BEHIND and self._taken != seen

    def receive(self, timeout: float, until: float = math.inf) -> bytes:
        """Returns what comes next, and b"" at the end.

        Nothing in that time, or until then, is socket.timeout.
        """
        if self._tls is None:
            return self._receive(min(timeout, until - time.monotonic()))
        while True:
            with self._mu:
                b = _readable(self._tls)
            if b:
                return b
            b = self._receive(min(timeout, until - time.monotonic()))
            if not b:
                return b
            with self._mu:
                self._from.write(b)

    def _receive(self, timeout: float) -> bytes:
        if timeout <= 0:
            raise socket.timeout("timed out")
        if timeout != self._timeout:  # it is a call of the system
            self._timeout = timeout
            self._sock.settimeout(timeout)
        return self._sock.recv(_BUFFER_SIZE)

    def kill(self) -> None:
        """Ends the connection, from any thread: receive gives b"", or an error."""
        with self._mu:
            self._dead = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer was first

    def close(self) -> None:
        """Ends the connection. Called by the receiving thread."""
        self.kill()
        drain = self._drain
        if drain is not None:
            drain.join()
        self._sock.close()
        self._out.close()


_sockets: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


def own(sock: socket.socket) -> socket.socket:
    """Notes a socket, from its beginning on, that is to be this process's alone."""
    _sockets.add(sock)
    return sock


def _let_go() -> None:
    """Closes what a forked child has of its parent's connections: while it lives, the store would
    not see the parent end.
    """
    for sock in list(_sockets):
        sock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _readable(tls: ssl.SSLObject) -> bytes:
    """Takes what has been decrypted."""
    parts: List[bytes] = []
    while True:
        try:
            b = tls.read(_BUFFER_SIZE)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            break
        except ssl.SSLError:
            if parts:
                break  # it comes again
            raise
        if not b:
            break
        parts.append(b)
    return b"".join(parts)


def _check_record(b: bytes) -> None:
    """Refuses what is no TLS record: a store without TLS says so in a frame, whose length's upper
    bytes are 0.
    """
    if b[0] in (20, 21, 22, 23) and b[1] == 3:
        return
    if b[2] == 0 and b[3] == 0 and b[4] == Op.HELLO:
        raise make(Denied, _PLAIN)
    raise make(ProtocolError, "not a muster store: the server does not use TLS")


def refusal(e: ssl.SSLError) -> Error:
    """Is what an error of TLS says of either side not trusting the other."""
    if isinstance(e, ssl.SSLCertVerificationError):
        return make(Denied, f"its certificate is not trusted: {e.verify_message}")
    if e.reason and "ALERT" in e.reason:
        return make(Denied, f"TLS refused: {e.reason.split('ALERT_')[-1].replace('_', ' ').lower()}")
    return make(Denied, f"TLS: {e.reason or e}")
