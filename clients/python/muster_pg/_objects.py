"""Objects as msgpack, as Go's groups have them: text is text, bytes are bytes, and equal values
have equal bytes.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import msgpack

from . import _arrays, _wire


def pack(v: object) -> bytes:
    """Returns the bytes of v: None, bool, int, float, str, bytes, an aware datetime, an array, and
    lists, tuples and dicts of them.
    """
    b: bytes = msgpack.packb(_sorted(v), use_bin_type=True, datetime=True, unicode_errors="surrogateescape")
    return b


def unpack(b: bytes) -> Any:
    """Returns the value whose bytes b are. They may come from anywhere: the worst is an error."""
    return unpack_for("", b)


def unpacker(like: object) -> Callable[[bytes], Any]:
    """Returns an unpack whose arrays are of the library that those in an object are of."""
    return functools.partial(unpack_for, _arrays.library_in(like))


def unpack_for(library: str, b: bytes) -> Any:
    """Is unpack with arrays of a library, or Arrays."""

    def hook(m: Any) -> Any:
        v = _arrays.from_map(m)
        return v if v is m else _arrays.as_library(v, library)

    return msgpack.unpackb(b, raw=False, strict_map_key=False, timestamp=3, unicode_errors="surrogateescape", object_hook=hook)


_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})


def _sorted(v: object) -> object:
    """Gives dicts whose keys are text the order that Go has, without which equal ones had other
    bytes.
    """
    if isinstance(v, dict):
        keys = sorted(v, key=_wire.text) if all(isinstance(k, str) for k in v) else list(v)
        return {k: _sorted(v[k]) for k in keys}
    if isinstance(v, (list, tuple)):
        return [_sorted(x) for x in v]
    if type(v) in _PLAIN:
        return v
    a = _arrays.of(v)
    return _arrays.scalar(v) if a is None else _arrays.to_map(a)

