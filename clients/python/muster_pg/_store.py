"""Keys, and what the store decides for groups."""

from __future__ import annotations

import math
import socket
import struct
import time
import warnings
from dataclasses import dataclass
from typing import Iterator, List, Optional, Sequence, Tuple, Type, TypeVar

from . import _arguments, _dial, _limits, _wire
from ._arguments import Bad, Value
from ._call import Call, NoAnswer, Scope
from ._dial import Dialer
from ._errors import Conflict, NotFound, Quoted, StoreError, Unavailable, Unknown, clip, quote, store_error, words_of
from ._lease import Lease
from ._secure import TLS
from ._session import Session
from ._wire import Code, Op, Reply, Request

DEFAULT_TIMEOUT = 300.0
_QUEUE = "\0queue"  # follows a queue's name in the key of its head, which exists while the queue has values
_QUEUE_HEAD = struct.Struct("<QQ")  # numbers of the first value, and of the next push
_DELETE_AT_ONCE = 1024  # keys that fit into one request, however long they are
_PAGE = 1000  # entries that one round trip of list brings

_S = TypeVar("_S", bound="Store")
_Subject = Tuple[str, Sequence[str], str]  # the key, keys and group of a request, without the prefix


@dataclass(frozen=True)
class Entry:
    """A key, and what the store knows of it."""

    key: str
    value: bytes
    revision: int  # of its last change
    ttl: Optional[float]  # remaining seconds; None: it does not expire


@dataclass(frozen=True)
class Event:
    """A change of an entry."""

    key: str
    value: Optional[bytes]  # None if it is gone
    revision: int
    deleted: bool
    expired: bool  # deleted, because its time was over


class Store:
    """A store: keys with values, which are bytes. Many threads may use it.

    The client reconnects. It repeats calls that have no answer, and each change takes effect
    exactly once. If the session cannot be resumed, open changes are Unknown. Every call waits for
    at most timeout seconds, or the timeout of connect (300); math.inf is no timeout.

    Keys are str of at most 8 KiB, values are bytes (or bytearray, or memoryview) of at most 16 MiB,
    times are seconds, int or float. Any call may also raise Timeout; Unavailable, if the store is
    gone; Unknown too, if it may have taken effect; Denied, TooLarge or Full, if the store refuses
    it; Closed; and Invalid, before anything is sent.
    """

    def __init__(self, session: Session, timeout: float, prefix: str = "", owner: Optional[Store] = None, scope: Optional[Scope] = None) -> None:
        """Not called by users: see connect."""
        self._session = session
        self._timeout = timeout
        self._prefix = prefix
        self._owner = owner  # the Store whose close ends the session; None: this one
        self._scope = scope

    def __del__(self) -> None:
        if self._owner is None and self._session.drop():
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self)

    @classmethod
    def connect(
        cls: Type[_S],
        address: str,
        *,
        tls: Optional[TLS] = None,
        secret: Optional[bytes] = None,
        timeout: float = DEFAULT_TIMEOUT,
        wait: bool = False,
        liveness_timeout: Optional[float] = None,
    ) -> _S:
        """Connects to the store at address: host:port, muster://host:port/prefix?name=value&…, or
        etcd://host:port/root?name=value&…

        Several host:port with commas are addresses of one store: relays (muster relay), the store
        itself, or its replicas. They are tried in turn, and again when a connection breaks. The
        parameters of such a URL are secret-file, ca, cert, key, server-name and tls, as in Go's
        store.DialURL. An etcd:// or etcds:// URL names the members of an etcd that keeps the store
        (muster serve --etcd), with the parameters of Go's etcdlog.ParseURL: the leader is looked up
        for each connection, and waited for. With wait it retries until the store is served: ranks
        may start before the store. timeout is in seconds, for connecting and for each call without
        its own. Denied: access denied. ProtocolError: no muster store listens there. Unavailable:
        the store is not served. liveness_timeout is for how many seconds this process may be silent
        before its ranks have failed: it is silent while a thread holds the interpreter's lock. It
        is also for how long the store may be silent before the connection is made anew. Default:
        the store's own (10), at least 0.6.
        """
        bad = _bad("dial", address)
        _arguments.text(bad, "address", address)
        timeout = _arguments.seconds(bad, "timeout", timeout)
        target = _dial.parse(address, tls, secret, liveness_timeout)
        dialer, wait = Dialer(target), wait or target.etcd is not None
        began = time.monotonic()
        until, pause, why = began + timeout, 0.005, None
        while True:
            try:
                return cls(Session(dialer, dialer.first(until)), timeout, target.prefix)
            except (Exception, _dial.Refusal) as e:
                if not wait or not _dial.not_served(e):
                    raise _dial.dial_error(target.addr, e) from None
                time.sleep(max(min(pause, until - time.monotonic()), 0))
                pause = min(2 * pause, 0.25)
                now = time.monotonic()
                if why is None or not isinstance(e, socket.timeout):  # the last attempt has less time than those before
                    why = e
                if now >= until:
                    raise _dial.dial_error(target.addr, why, now - began) from None

    @property
    def address(self) -> str:
        """Where the store is, as host:port."""
        return self._session.target.addr

    @property
    def _connection(self) -> object:
        """The connection that there is, until there is another one."""
        return self._session._line

    @property
    def _failed(self) -> str:
        """Why the store has failed, in its words; "" if it has not, or has not said so."""
        return self._session.failed

    @property
    def _anew(self) -> bool:
        """Whether the session is not the first one: what was done in the name of that is over."""
        return self._session._lost is not None

    def below(self, prefix: str) -> "Store":
        """Returns the part of the store below prefix. Its close does nothing."""
        prefix = self._prefix + _arguments.text(_bad("below"), "prefix", prefix)
        return Store(self._session, self._timeout, prefix, self._owner or self, self._scope)

    def within(self: _S, timeout: float) -> _S:
        """Sets the timeout of calls without their own, and returns the store."""
        self._timeout = _arguments.seconds(_bad("within"), "timeout", timeout)
        return self

    def get(self, key: str, *, timeout: Optional[float] = None) -> bytes:
        """Returns the value of key; NotFound at once if there is none."""
        bad = _bad("get", key)
        req, until = Request(Op.GET, key=_arguments.text(bad, "key", key)), self._until(bad, timeout)
        return self._do(req, until).value or b""

    def exists(self, key: str, *, timeout: Optional[float] = None) -> bool:
        """Reports whether key is there."""
        bad = _bad("exists", key)
        try:
            self._do(Request(Op.GET, key=_arguments.text(bad, "key", key)), self._until(bad, timeout))
        except NotFound:
            return False
        return True

    def wait(self, *keys: str, timeout: Optional[float] = None) -> List[bytes]:
        """Returns the values of all keys, in their order, once all of them exist.

        A Timeout names those that are missing.
        """
        bad = _bad("wait")
        asked, until = _keys(bad, keys), self._until(bad, timeout)
        return [v or b"" for v in self._do(Request(Op.WAIT, keys=asked), until).values or []]

    def set(
        self,
        key: str,
        value: Value,
        *,
        ttl: Optional[float] = None,
        lease: Optional[Lease] = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Gives key a value.

        It goes after ttl seconds, or with a lease of this store; otherwise it stays.
        """
        bad = _bad("set", key)
        req = Request(Op.SET, key=_arguments.text(bad, "key", key), value=_arguments.value(bad, "value", value))
        if ttl is not None:
            req.ttl = nanoseconds(_arguments.seconds(bad, "ttl", ttl, zero=False))
        if lease is not None:
            if not isinstance(lease, Lease):
                raise _arguments.of_type(bad, "lease", "a muster_pg.Lease", lease)
            if lease._store._session is not self._session:
                raise bad("the lease is of another Store", ())
            req.lease = lease.id
        self._do(req, self._until(bad, timeout))

    def lease(self, ttl: float, *, timeout: Optional[float] = None) -> Lease:
        """Grants a lease: entries that are set with it are deleted ttl seconds after this process
        was last alive.

        A thread keeps it alive, until its close. ttl is a lower bound.
        """
        bad = _bad("lease")
        ttl = _arguments.seconds(bad, "ttl", ttl, zero=False, forever=False)
        n = self._do(Request(Op.GRANT, ttl=nanoseconds(ttl)), self._until(bad, timeout)).n
        return Lease(self, n, ttl)

    def queue_push(self, queue: str, value: Value, *, timeout: Optional[float] = None) -> None:
        """Appends value to a queue, atomically. Names of queues are separate from keys."""
        bad = _bad("push", queue)
        req = Request(Op.PUSH, key=_arguments.text(bad, "queue", queue), value=_arguments.value(bad, "value", value))
        self._do(req, self._until(bad, timeout))

    def queue_pop(self, queue: str, block: bool = True, *, timeout: Optional[float] = None) -> bytes:
        """Removes the first value of a queue, and returns it: each value once.

        It waits until there is one; without block that is NotFound. After an Unknown error the
        value may have been removed.
        """
        bad = _bad("pop", queue)
        name, until = _arguments.text(bad, "queue", queue), self._until(bad, timeout)
        while True:
            try:
                return self._do(Request(Op.POP, key=name), until).value or b""
            except NotFound:
                if not block:
                    raise
            try:
                self._do(Request(Op.WAIT, keys=[name + _QUEUE]), until)
            except StoreError as e:
                _, _, code, detail, failure, also, what, _ = e._parts
                raise store_error("pop", _clip(name), code, detail, failure, also, what) from None

    def queue_len(self, queue: str, *, timeout: Optional[float] = None) -> int:
        """Returns the number of values in a queue."""
        bad = _bad("queue length", queue)
        req = Request(Op.GET, key=_arguments.text(bad, "queue", queue) + _QUEUE)
        try:
            head = self._do(req, self._until(bad, timeout), op="queue length").value or b""
        except NotFound:
            return 0
        if len(head) != _QUEUE_HEAD.size:
            raise bad(f"the value at the key {quote(queue + _QUEUE)} was not written by push: delete that key", ())
        first, end = _QUEUE_HEAD.unpack(head)
        return int(end - first)

    def add(self, key: str, delta: int = 1, *, timeout: Optional[float] = None) -> int:
        """Adds delta to the counter key, which starts at 0, and returns its new value.

        Counters are decimal text of 64 bits; what is none, or would overflow, is Invalid.
        """
        bad = _bad("add", key)
        req = Request(Op.ADD, key=_arguments.text(bad, "key", key), add=_arguments.between(bad, "delta", delta, *_arguments.INT64))
        return self._do(req, self._until(bad, timeout)).n

    def swap(
        self, key: str, old: Optional[Value], new: Optional[Value], *, ttl: Optional[float] = None, timeout: Optional[float] = None
    ) -> None:
        """Replaces the value of key by new if it is old; otherwise that is a Conflict, whose value
        is what is there.

        None is "absent": swap(key, None, v) creates, swap(key, v, None) deletes. With ttl the entry
        expires after so many seconds.
        """
        bad = _bad("swap", key)
        req = Request(Op.SWAP, key=_arguments.text(bad, "key", key))
        req.value = None if new is None else _arguments.value(bad, "new", new)
        req.expect = None if old is None else _arguments.value(bad, "old", old)
        if ttl is not None:
            req.ttl = nanoseconds(_arguments.seconds(bad, "ttl", ttl, zero=False))
        self._do(req, self._until(bad, timeout))

    def append(self, key: str, value: Value, *, timeout: Optional[float] = None) -> int:
        """Appends to the value of key, which starts empty, and returns its new length in bytes."""
        bad = _bad("append", key)
        req = Request(Op.APPEND, key=_arguments.text(bad, "key", key), value=_arguments.value(bad, "value", value))
        return self._do(req, self._until(bad, timeout)).n

    def delete(self, *keys: str, timeout: Optional[float] = None) -> int:
        """Deletes keys and returns how many were there. Up to 1,024 of them are deleted at once; if
        there are more, an error may leave the later ones.
        """
        bad = _bad("delete")
        names, until = _keys(bad, keys), self._until(bad, timeout)
        chunks = range(0, max(len(names), 1), _DELETE_AT_ONCE)
        return sum(
            self._do(Request(Op.DELETE, keys=names[i : i + _DELETE_AT_ONCE]), until).n for i in chunks
        )

    def revision(self, *, timeout: Optional[float] = None) -> int:
        """Returns the number of the store's last change."""
        return self._do(Request(Op.PING), self._until(_bad("revision"), timeout)).rev

    def list(self, prefix: str = "", *, timeout: Optional[float] = None) -> Iterator[Entry]:
        """Gives the entries whose keys start with prefix, in the order of their keys, a page at a
        time; timeout is for each page.
        """
        bad = _bad("list", prefix)
        return self._list(_arguments.text(bad, "prefix", prefix), self._seconds(bad, timeout))

    def _list(self, prefix: str, timeout: float) -> Iterator[Entry]:
        after: Sequence[str] = ()
        while True:
            rep = self._do(Request(Op.LIST, key=prefix, keys=after, limit=_PAGE), time.monotonic() + timeout)
            keys, values, nums = rep.keys or [], rep.values or [], rep.nums or []
            for i, key in enumerate(keys):
                yield Entry(key, values[i] or b"", nums[2 * i], nums[2 * i + 1] / 1e9 or None)
            if rep.n == 0 or not keys:
                return
            after = keys[-1:]

    def watch(self, prefix: str = "", after: int = 0, *, timeout: Optional[float] = None) -> Iterator[Event]:
        """Gives the changes below prefix after a revision, in their order, each once; after 0 those
        from now on.

        When nothing has changed for timeout seconds, that is a Timeout; Compacted says that the
        store has forgotten changes that came after the revision: list again.
        """
        bad = _bad("watch", prefix)
        rev = _arguments.between(bad, "after", after, 0, (1 << 64) - 1)
        return self._watch(_arguments.text(bad, "prefix", prefix), rev, self._seconds(bad, timeout))

    def _watch(self, prefix: str, after: int, timeout: float) -> Iterator[Event]:
        while True:
            rep = self._do(Request(Op.WATCH, key=prefix, after=after), time.monotonic() + timeout)
            values, nums = rep.values or [], rep.nums or []
            for i, key in enumerate(rep.keys or []):
                what = nums[2 * i + 1]
                yield Event(key, values[i], nums[2 * i], deleted=what != 0, expired=what == 2)
            after = rep.rev

    def close(self) -> None:
        """Ends the session: its ranks have left, they are not lost. It may be called twice."""
        if self._owner is None:
            self._session.close()

    def __enter__(self: _S) -> _S:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<muster_pg.Store {self.address}{'/' + self._prefix if self._prefix else ''}>"

    def _seconds(self, bad: Bad, timeout: Optional[float]) -> float:
        return self._timeout if timeout is None else _arguments.seconds(bad, "timeout", timeout)

    def _until(self, bad: Bad, timeout: Optional[float]) -> float:
        return time.monotonic() + self._seconds(bad, timeout)

    def _do(self, req: Request, until: float, *, op: str = "", also_ok: Code = Code.OK) -> Reply:
        """Has the store answer req, with the prefix in front of its keys; an answer with another
        code is an error.
        """
        subject, prefix = (req.key, req.keys, req.group.group), self._prefix
        if prefix:
            if req.op not in _NO_KEY:
                req.key = prefix + req.key
            if req.keys:
                req.keys = [prefix + k for k in req.keys]
            if req.op == Op.JOIN:
                req.group.group = prefix + req.group.group
        try:
            rep = self._call(req, subject, until)
        except NoAnswer as e:
            detail = f"{e.addr}: {e.detail}" if e.addr else e.detail
            raise store_error(op or req.op.text, _shown(subject), e.code, detail, also=e.also, what=e.what) from None
        if rep.keys and prefix:
            rep.keys = [k[len(prefix) :] for k in rep.keys]
        if rep.code == Code.OK or rep.code == also_ok:
            return rep
        op, shown = op or req.op.text, _shown(subject)
        if req.op == Op.WAIT and rep.keys:
            shown = _named(rep.keys)
        error = store_error(op, shown, rep.code, rep.detail or (rep.failure.reason if rep.failure else ""), rep.failure)
        if isinstance(error, Conflict):
            error.value = rep.value
        raise error

    def _call(self, req: Request, subject: _Subject, until: float) -> Reply:
        left = until - time.monotonic()
        if left <= 0:
            raise NoAnswer(Code.TIMEOUT)
        if req.op in _wire.WAITS and left < math.inf:
            req.timeout = nanoseconds(left)
        call = Call(req, self._scope)
        if len(call.frame) > _wire.MAX_KEY:  # nothing is beyond a limit in a shorter one
            _limits.check(req, _shown(subject))
        return self._session.do(call, until)

    def _collect(self, req: Request, until: float) -> Tuple[List[bytes], int]:
        """Sends a vote.

        Returns the wanted part of the record, once that is decided, and the rank that arrived last,
        or -1 if unknown.
        """
        try:
            rep = self._do(req, until)
        except StoreError as e:
            raise unknown(e) from None
        got = [v or b"" for v in rep.values or []] if rep.value is None else [rep.value]
        return got, rep.n - 1

    def _send(self, req: Request, until: float) -> None:
        """Puts a message into a stream, and waits while that is full.."""
        value = req.value or b""
        while True:
            rep = self._do(req, until, also_ok=Code.WOULD_BLOCK)
            if rep.code == Code.OK:
                return
            room = Request(Op.SEND_READY, length=len(value), group=req.group)
            self._do(room, until, op=Op.SEND.text)

    def _scoped(self) -> "Store":
        """Returns this store for calls of one channel, which _end ends."""
        return Store(self._session, self._timeout, self._prefix, self._owner or self, Scope())

    def _end(self, why: str) -> None:
        """Ends the calls of this scope, and refuses later ones: see Session.end.

        Raises NoAnswer in a fork of the process, and does nothing.
        """
        if self._scope is not None:
            self._session.end(self._scope, why)

    def _deadline(self, op: str, timeout: Optional[float]) -> float:
        return self._until(_bad(op), timeout)

    def _request(self, req: Request, until: float) -> Reply:
        """Has the store answer a request of a group.."""
        return self._do(req, until)


# Operations whose key, if they have one, is none of the store's.
_NO_KEY = frozenset(
    {
        Op.PING, Op.WAIT, Op.DELETE, Op.JOIN, Op.LEAVE, Op.FOLLOW, Op.COLLECT, Op.SEND, Op.RECV, Op.SEND_READY, Op.EXPIRED,
        Op.CLOSE_CHANNEL, Op.ACK, Op.GRANT, Op.KEEP_ALIVE, Op.REVOKE, Op.PROGRESS,
    }
)  # fmt: skip


def _bad(op: str, key: object = "") -> Bad:
    """Makes the errors of a verb's arguments."""
    return lambda why, also: store_error(op, _clip(key) if isinstance(key, str) else "", Code.INVALID, why, also=also)


def _keys(bad: Bad, keys: Sequence[str]) -> List[str]:
    for i, k in enumerate(keys):
        _arguments.text(bad, f"key {i}", k)
    return list(keys)


def unknown(e: StoreError) -> StoreError:
    """Marks an error that is not the store's word: the record may have been decided either way."""
    if e.failure is None and not isinstance(e, Unknown) and (isinstance(e, Unavailable) or e.code in (Code.TIMEOUT, Code.CANCELLED)):
        op, key, code, detail, _, also, what, _ = e._parts
        return store_error(op, key, code, detail, None, (*also, Unknown), "outcome unknown: " + (what or words_of(code)))
    return e


def nanoseconds(seconds: Optional[float]) -> int:
    """Returns a duration for the wire: at least 1, since 0 is no timeout."""
    if seconds is None or seconds == math.inf:
        return 0
    return max(int(seconds * 1e9), 1)


def _shown(subject: _Subject) -> str:
    """What an error shows of a request."""
    key, keys, group = subject
    return _named(keys) if keys and not key else _clip(key or group)


def _named(keys: Sequence[str]) -> str:
    """What an error shows of keys: several are quoted one by one."""
    return _clip(keys[0]) if len(keys) == 1 else Quoted(", ".join(quote(_clip(k)) for k in keys[:10]) + (" and others" if len(keys) > 10 else ""))


def _clip(s: str) -> str:
    return clip(s, 100)
