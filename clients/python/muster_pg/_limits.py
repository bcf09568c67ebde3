"""Limits on one request."""

from __future__ import annotations

from . import _wire
from ._errors import StoreError, store_error
from ._wire import Code, Request


def check(req: Request, shown: str) -> None:
    """Refuses what no store takes, before anything is sent: a frame that is too large would cost
    the connection.
    """

    def bad(what: str) -> StoreError:
        return store_error(req.op.text, shown, Code.TOO_LARGE, what)

    c = req.group
    for name in (req.key, c.group, c.run, c.channel, c.verb, c.type, c.label, c.reason):
        if len(_wire.text(name)) > _wire.MAX_KEY:
            raise bad(f"{len(_wire.text(name))} bytes of name, the limit is {_wire.MAX_KEY}")
    if len(req.keys) > _wire.MAX_KEYS:
        raise bad(f"{len(req.keys)} keys, the limit is {_wire.MAX_KEYS}")
    second = len(req.expect or req.claim or req.token or b"")
    largest = max(len(req.value or b""), second)
    if largest > _wire.MAX_VALUE:
        raise bad(f"{largest} bytes of value, the limit is {_wire.MAX_VALUE}")
    total = len(req.value or b"") + second
    for k in req.keys:
        n = len(_wire.text(k))
        if n > _wire.MAX_KEY:
            raise bad(f"a key of {n} bytes, the limit is {_wire.MAX_KEY}")
        total += n + 4
    if total > _wire.MAX_VALUE:
        raise bad(f"{total} bytes in one request, the limit is {_wire.MAX_VALUE}")
