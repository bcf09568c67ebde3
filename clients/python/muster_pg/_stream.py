"""Messages between two ranks of a group."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Optional, Tuple

from . import _arguments, _arrays, _objects
from ._errors import Error, Expired, Invalid, StoreError, TooLarge, make, quote
from ._span import Span
from ._store import nanoseconds
from ._verb import BYTES, check_size, words
from ._wire import Contribution, Op, Request

if TYPE_CHECKING:
    from ._group import Group

_ANY = "any"  # the type of a message that is msgpack
_RECEIPT = 64 << 10  # bytes of a message that recv acknowledges at once; the recv of the next message acknowledges a smaller one


class Box:
    """Where this rank is in the stream from another."""

    def __init__(self) -> None:
        self.busy = threading.Lock()  # held for the whole of a recv
        self.taken = 0  # messages


def send(g: Group, span: Span, obj: Any, dst: int, timeout: Optional[float]) -> None:
    op, dst = _check_peer(g, "send to", "dst", dst)
    bad = g._membership.bad(op)
    until = g._membership.until(bad, timeout)
    try:
        raw = isinstance(obj, (bytes, bytearray, memoryview)) and _arrays.of(obj) is None
        payload = bytes(obj) if raw else _objects.pack(obj)
        check_size(len(payload))
    except Exception as e:
        raise bad(words(e), (TooLarge,) if isinstance(e, TooLarge) else ()) from e
    span.given = len(payload)
    c = _part(g, dst, BYTES if raw else _ANY)
    req = Request(Op.SEND, value=payload, ttl=nanoseconds(g._membership.config.expiry), group=c)
    try:
        g._calls._send(req, until)
    except StoreError as e:
        raise g._fault(op, 0, e) from None


def recv(g: Group, span: Span, src: int, timeout: Optional[float]) -> Any:
    op, src = _check_peer(g, "recv from", "src", src)
    until = g._membership.until(g._membership.bad(op), timeout)
    with g._membership.lock:
        box = g._boxes.setdefault(src, Box())
    if not box.busy.acquire(blocking=False):
        raise g._busy_error(op)
    try:
        c = _part(g, src, "")
        c.seq = box.taken + 1
        span.receives(src, c.seq)
        try:
            rep = g._calls._request(Request(Op.RECV, group=c), until)
        except StoreError as e:
            if isinstance(e, Expired):
                box.taken += 1
            raise g._fault(op, 0, e) from None
        payload = rep.value or b""
        span.given = len(payload)
        obj = payload if rep.type == BYTES else _message(g, op, rep.type, payload)
        box.taken += 1
        if len(payload) >= _RECEIPT:
            _acknowledge(g, c, until)
        return obj
    finally:
        box.busy.release()


def _acknowledge(g: Group, c: Contribution, until: float) -> None:
    """Has the store drop the message that was received.

    If that fails, the recv of the next message does it.
    """
    try:
        g._calls._request(Request(Op.ACK, group=c), until)
    except Error:
        pass


def _message(g: Group, op: str, kind: str, payload: bytes) -> Any:
    try:
        return _objects.unpack(payload)
    except Exception as e:
        says = f"pgroup: {op} of group {quote(g.name)} on rank {g.rank}: {quote(kind)} that is no object: {words(e)}"
        raise make(Invalid, says) from None


def _part(g: Group, peer: int, kind: str) -> Contribution:
    c = g._membership.contribution()
    c.root, c.channel, c.type = peer, g._channel, kind
    return c


def _check_peer(g: Group, verb: str, name: str, peer: int) -> Tuple[str, int]:
    """Returns what errors call it, and the rank."""
    peer = _arguments.whole(g._membership.bad(verb), name, peer)
    op = f"{verb} {peer}"
    if not 0 <= peer < g.size:
        raise g._membership.bad(op)(f"rank {peer} of a group of {g.size}: ranks are 0 to {g.size - 1}", ())
    g._begin(op)
    return op, peer
