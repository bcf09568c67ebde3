"""How a connection to a store is made: addresses, TLS, hello, and the proof of a secret."""

from __future__ import annotations

import errno
import math
import os
import socket
import ssl
import time
import urllib.parse
from dataclasses import dataclass, field, replace
from typing import Callable, Dict, List, Optional, Tuple

from . import _arguments, _etcd, _secure, _wire
from ._connect import Attempt, connect
from ._errors import Denied, Error, Kinds, ProtocolError, StoreError, kind_of, make, quote, store_error, words_of
from ._pipe import Pipe, refusal
from ._secure import TLS
from ._wire import Code, Op, Reply, Request

DEFAULT_LIVENESS_TIMEOUT = 10.0  # seconds, for noticing a silent store; the store has a default for noticing us
_LEAST_LIVENESS_TIMEOUT = 0.6
_HANDSHAKE = 10.0  # seconds, for a handshake whose deadline is later
_HELLO_LIMIT = 32 << 10
_CAME_BY_RELAY = 1  # what a welcome says of relays, as the third of its numbers
_NO_WELCOME = "not a muster store: its answer is no welcome"


@dataclass(frozen=True)
class Target:
    """A store, and how to come in.

    Its addr is a host:port, or several with commas: ways to one and the same store, through relays
    or to itself.
    """

    addr: str
    tls: Optional[TLS] = None
    secret: Optional[bytes] = field(default=None, repr=False)
    prefix: str = ""
    liveness_timeout: Optional[float] = None  # None is the store's own
    etcd: Optional[_etcd.Etcd] = None  # knows the address for each connection; addr then only names the store in errors

    @property
    def silence(self) -> float:
        """Is for how many seconds the store may say nothing, until the connection is made anew."""
        return max(self.liveness_timeout or DEFAULT_LIVENESS_TIMEOUT, _LEAST_LIVENESS_TIMEOUT)

    def ways(self) -> List[str]:
        return self.addr.split(",") if self.etcd is None else [self.addr]


def _split(way: str) -> Tuple[str, int]:
    """Returns host and port."""
    host, _, port = way.rpartition(":")
    return host.strip("[]"), int(port)


def parse(address: str, tls: Optional[TLS], secret: Optional[bytes], liveness_timeout: Optional[float] = None) -> Target:
    """Returns the store at an address, host:port, muster://host:port/prefix?name=value&… or
    etcd://host:port/root?name=value&…

    Several ways to it, or members of the etcd, have commas between them.
    """

    def bad(why: str, also: Kinds) -> StoreError:
        return store_error("dial", _redacted(address), Code.INVALID, why, also=also)

    if tls is not None and not isinstance(tls, TLS):
        raise _arguments.of_type(bad, "tls", "a muster_pg.TLS", tls)
    if liveness_timeout is not None:
        liveness_timeout = _arguments.seconds(bad, "liveness_timeout", liveness_timeout, zero=False, forever=False)
    t = Target(address, tls, _arguments.secret(bad, secret), liveness_timeout=liveness_timeout)
    if "://" in address or address.startswith("mem:"):
        t = _parse_url(address, t)
    for way in t.ways() if t.etcd is None else ():
        why = _wrong(way)
        if why:
            raise store_error("dial", t.addr, Code.INVALID, why)
    if t.secret is not None:
        _secure.check_secret(t.secret)
    return t


def _wrong(addr: str) -> str:
    """Returns what is wrong with an address that no amount of waiting makes right."""
    host, colon, port = addr.rpartition(":")
    if not colon:
        return "missing port in address"
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        return "too many colons in address"
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        return f"port {quote(port)} is not a number from 1 to 65535"
    return ""


_PARAMETERS = ("secret-file", "ca", "cert", "key", "server-name", "tls")


def _parse_url(url: str, t: Target) -> Target:

    def bad(why: str) -> StoreError:
        return store_error("dial", _redacted(url), Code.INVALID, why)

    try:
        u = urllib.parse.urlsplit(url)
    except ValueError as e:
        raise bad(str(e)) from None

    etcd = u.scheme in _etcd.SCHEMES
    if u.scheme != "muster" and not etcd:
        raise bad("it is no URL of the form muster://host:port or etcd://host:port")
    if "@" in u.netloc and not etcd:
        raise bad("there are no users: a secret is in a file, ?secret-file=FILE")
    if u.fragment:
        raise bad("it has a #fragment, which means nothing here")
    values: Dict[str, str] = {}
    known = _etcd.PARAMETERS if etcd else _PARAMETERS
    for name, value in urllib.parse.parse_qsl(u.query, keep_blank_values=True):
        if name not in known:
            raise bad(f"unknown parameter {quote(name)}: there are {', '.join(known)}")
        if name in values:
            raise bad(f"the parameter {name} is there twice")
        if not value:
            raise bad(f"the parameter {name} is empty")
        values[name] = value
    if etcd:
        found = _etcd.parse(u, values, bad)
        t = replace(t, addr=",".join(found.members), tls=_etcd.tls_of(values, "store-") or t.tls, etcd=found)
    else:
        prefix = urllib.parse.unquote(u.path).lstrip("/")
        t = replace(t, addr=u.netloc, tls=_tls_of(values, t.tls, bad), prefix=prefix + "/" if prefix else "")
    if "secret-file" in values:
        t = replace(t, secret=_secure.read_secret(values["secret-file"]))
    return t


def _tls_of(values: Dict[str, str], tls: Optional[TLS], bad: Callable[[str], StoreError]) -> Optional[TLS]:
    """Returns the TLS that a URL's parameters turn on or off; what it had if they say nothing of
    it.
    """
    on = any(name in values for name in ("ca", "cert", "key"))
    said = values.get("tls")
    if said not in (None, "true", "false"):
        raise bad(f"the parameter tls is {quote(said or '')}, which is neither true nor false")
    if said == "false":
        if on or "server-name" in values:
            raise bad("tls=false, and parameters of TLS")
        return None
    if on or said == "true":
        return TLS(values.get("ca"), values.get("cert"), values.get("key"), values.get("server-name", ""))
    if "server-name" in values:
        raise bad("server-name is of TLS: say tls=true, or ca")
    return tls


def _redacted(url: str) -> str:
    scheme, sep, rest = url.partition("://")
    return scheme + sep + rest.rpartition("@")[2] if sep else url


class Refusal(Exception):
    """What the store said instead of a welcome."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(f"{words_of(code)}: {detail}" if detail else words_of(code))
        self.code, self.detail = code, detail


class Line:
    """One connection of a session, and the frames that come on it."""

    def __init__(self, pipe: Pipe, addr: str = "") -> None:
        self.pipe = pipe
        self.addr = addr  # host:port
        self.limit = _HELLO_LIMIT
        self.welcome = Reply()
        self.error: Optional[Exception] = None  # why a caller that read could not go on; the session's thread ends the connection
        self._in = bytearray()

    def read(self, timeout: float, until: float = math.inf) -> Tuple[_wire.Header, bytes]:
        """Returns the next frame.

        Nothing in that time, or not all of it until then, is socket.timeout, the end EOFError.
        """
        if not self._in:
            b = self.pipe.receive(timeout, until)
            if not b:
                raise EOFError("EOF")
            if len(b) >= _wire.HEADER_LEN:
                h = _wire.parse_header(b, self.limit)
                if len(b) == _wire.HEADER_LEN + h.length:  # one frame, as an answer mostly is
                    return h, b[_wire.HEADER_LEN :]
            self._in += b
        while True:
            if len(self._in) >= _wire.HEADER_LEN:
                h = _wire.parse_header(self._in, self.limit)
                end = _wire.HEADER_LEN + h.length
                if len(self._in) >= end:
                    body = bytes(memoryview(self._in)[_wire.HEADER_LEN : end])
                    del self._in[:end]
                    return h, body
            b = self.pipe.receive(timeout, until)
            if not b:
                raise EOFError("EOF")
            self._in += b

    def began(self) -> bytes:
        """Is what has come and is no frame."""
        return bytes(self._in[:100])


class Dialer:
    """Makes connections to one store. One thread at a time uses it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.ways = target.ways()
        self._next = 0  # that is tried next

    def first(self, until: float) -> Line:
        """Opens a session. Every way is tried once."""
        for _ in self.ways[1:]:
            try:
                return self.dial(until)
            except Exception:
                if time.monotonic() >= until:
                    raise
        return self.dial(until)

    def dial(self, until: float, resume: Optional[Request] = None, attempt: Optional[Attempt] = None) -> Line:
        """Connects and says hello: for a new session, or to take up the one that resume names.

        The caller may end the attempt through attempt.

        After an error of this address the next attempt uses another one.
        """
        attempt, way = attempt or Attempt(), self.ways[self._next]
        try:
            if self.target.etcd is not None:
                way = self.target.etcd.leader(until, attempt)
            return _dial(self.target, way, until, resume, attempt)
        except BaseException:
            self._next = (self._next + 1) % len(self.ways)
            raise

    def replaced(self, line: Line, until: float, attempt: Attempt) -> bool:
        """Reports whether etcd knows another leader than the one that line is connected to.

        False if etcd does not answer.
        """
        if self.target.etcd is None:
            return False
        try:
            return self.target.etcd.leader(until, attempt) != line.addr
        except (OSError, StoreError):  # the connection may be good all the same
            return False

    def elsewhere(self, e: Exception, relayed: bool) -> bool:
        """Reports whether the store may be there though a connection was refused: it was a relay
        that has ended, and there may soon be another, or there are other ways.
        """
        return (relayed or len(self.ways) > 1) and isinstance(e, ConnectionRefusedError)


def _dial(t: Target, way: str, until: float, resume: Optional[Request], attempt: Attempt) -> Line:
    until = min(until, time.monotonic() + _HANDSHAKE)
    context = t.tls.context() if t.tls is not None else None
    host, port = _split(way)
    pipe = Pipe(connect(host, port, until, attempt))
    try:
        attempt.has(pipe)
        return _enter(Line(pipe, way), t, host, context, until, resume)
    except BaseException as e:
        pipe.close()
        if isinstance(e, socket.timeout):
            raise socket.timeout("it has not answered") from None
        raise


def _enter(line: Line, t: Target, host: str, context: Optional[ssl.SSLContext], until: float, resume: Optional[Request]) -> Line:
    binding = b""
    if context is not None:
        name = (t.tls.server_name if t.tls is not None else "") or host
        if t.secret is None:
            line.pipe.secure(context, name, until)
        else:
            with _secure.exporting(context) as export:
                line.pipe.secure(context, name, until)
                binding = export()
    _hello(line, t.secret, binding, until, replace(resume or Request(Op.HELLO), timeout=int((t.liveness_timeout or 0) * 1e9)))
    line.limit = _wire.MAX_REPLY
    return line


def _hello(line: Line, secret: Optional[bytes], binding: bytes, until: float, req: Request) -> None:
    """Opens the session.

    With a secret it ends well only if the store has proved that it knows it too.
    """
    nonce = None if secret is None else os.urandom(_secure.NONCE_LEN)
    req = replace(req, key=f"pid {os.getpid()} on {socket.gethostname()}", token=nonce)
    line.pipe.send(_wire.PREFACE + _wire.encode(req))
    h, rep = _answer(line, until)
    theirs = b""
    if secret is not None and nonce is not None and h.op == Op.PROOF:
        theirs = rep.value or b""
        line.pipe.send(_wire.encode(Request(Op.PROOF, value=_secure.prove(secret, nonce, theirs, binding))))
        h, rep = _answer(line, until)
    if h.op != Op.HELLO:
        raise make(ProtocolError, _NO_WELCOME)
    if rep.code != Code.OK:
        raise Refusal(rep.code, rep.detail)
    if secret is not None and nonce is not None:
        shown = rep.values[0] if rep.values is not None and len(rep.values) == 1 else None
        if shown is None or not _secure.proves(shown, secret, nonce, theirs, binding):
            raise make(Denied, "the store did not prove that it knows the secret")
    line.welcome = rep


def _answer(line: Line, until: float) -> Tuple[_wire.Header, Reply]:
    """Reads one frame of the handshake."""
    try:
        h, body = line.read(math.inf, until)
    except ssl.SSLError as e:
        raise refusal(e) from e
    except _wire.Malformed:
        raise make(ProtocolError, f"not a muster store: it answered {quote(line.began().decode('utf-8', 'surrogateescape'))}") from None
    if h.op == Op.GOODBYE:
        raise EOFError("it is shutting down: EOF")
    try:
        return h, _wire.parse_reply(h, body)
    except _wire.Malformed:
        raise make(ProtocolError, _NO_WELCOME) from None


def not_served(e: BaseException) -> bool:
    """Reports whether e may go away when the server has started."""
    if isinstance(e, Refusal):
        return e.code in (Code.UNAVAILABLE, Code.LOST)  # by a relay, of the store
    if isinstance(e, (socket.gaierror, socket.timeout, TimeoutError, EOFError, ConnectionError)):
        return not isinstance(e, Error)
    return isinstance(e, OSError) and e.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH)


def refused(e: BaseException) -> bool:
    """Reports whether no store is served there, nor, as a relay reports, behind the relay."""
    return isinstance(e, ConnectionRefusedError) or isinstance(e, Refusal) and e.code == Code.LOST


def relayed(welcome: Reply) -> bool:
    """Reports whether a welcome has come through a relay."""
    return welcome.nums is not None and len(welcome.nums) > 2 and welcome.nums[2] == _CAME_BY_RELAY


def words(e: BaseException) -> str:
    """Is e in words, without the number of an error of the system."""
    if isinstance(e, OSError) and not isinstance(e, Error) and e.strerror:
        return e.strerror.lower()
    return str(e)


def dial_error(addr: str, e: BaseException, waited: Optional[float] = None) -> Error:
    """Returns the error of a dial that e ended; waited is for how many seconds no store was served
    there.
    """
    if isinstance(e, StoreError):
        return e
    if isinstance(e, ProtocolError):
        return store_error("dial", addr, Code.UNAVAILABLE, also=(ProtocolError,), what=str(e))
    if isinstance(e, Denied):
        return store_error("dial", addr, Code.DENIED, str(e))
    if isinstance(e, Refusal) and not not_served(e):
        if e.code == Code.DENIED:
            return store_error("dial", addr, Code.DENIED, e.detail)
        what = f"{words_of(Code.UNAVAILABLE)}: {words_of(e.code)}"
        return store_error("dial", addr, Code.UNAVAILABLE, e.detail, also=kind_of(e.code), what=what)
    what = f"{words_of(Code.UNAVAILABLE)}: {e.detail if isinstance(e, Refusal) else words(e)}"
    if waited is None:
        return store_error("dial", addr, Code.UNAVAILABLE, what=what)
    detail = f"no store answered for {waited:.2f}s"
    return store_error("dial", addr, Code.TIMEOUT, detail, also=kind_of(Code.UNAVAILABLE), what=what)
