"""Objects as msgpack, as Go's groups have them: text is text, bytes are bytes, and equal values
have equal bytes.
"""

from __future__ import annotations

from typing import Any

import msgpack

from . import _wire


def pack(v: object) -> bytes:
    """Returns the bytes of v: None, bool, int, float, str, bytes, an aware datetime, and lists,
    tuples and dicts of them.
    """
    b: bytes = msgpack.packb(_sorted(v), use_bin_type=True, datetime=True, unicode_errors="surrogateescape")
    return b


def unpack(b: bytes) -> Any:
    """Returns the value whose bytes b are. They may come from anywhere: the worst is an error."""
    return msgpack.unpackb(b, raw=False, strict_map_key=False, timestamp=3, unicode_errors="surrogateescape")


def _sorted(v: object) -> object:
    """Gives dicts whose keys are text the order that Go has, without which equal ones had other
    bytes.
    """
    if isinstance(v, dict):
        keys = sorted(v, key=_wire.text) if all(isinstance(k, str) for k in v) else list(v)
        return {k: _sorted(v[k]) for k in keys}
    if isinstance(v, (list, tuple)):
        return [_sorted(x) for x in v]
    return v

