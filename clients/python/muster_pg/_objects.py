"""Objects as msgpack, as Go's groups have them: text is text, bytes are bytes, and equal values
have equal bytes.
"""

from __future__ import annotations

import datetime
import functools
from typing import Any, Callable

import msgpack

from . import _arrays, _wire
from ._errors import Invalid, make

_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
_DEPTH = 200  # of lists and dicts in each other: Go decodes 256


def pack(v: object) -> bytes:
    """Returns the bytes of v, or raises Invalid if a part of it would arrive as something else."""
    b: bytes = msgpack.packb(_plain(v, _DEPTH), use_bin_type=True, datetime=True, unicode_errors="surrogateescape")
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


def _plain(v: Any, depth: int) -> object:
    """Returns v as msgpack has it, with lists and dicts in at most depth levels.

    Dicts whose keys are text have the order that Go has, without which equal ones had other bytes.
    """
    if type(v) in _PLAIN:
        if type(v) is int and not -(1 << 63) <= v < 1 << 64:
            raise make(Invalid, f"an int of {v.bit_length()} bits cannot be sent")
        return v
    if depth == 0:
        raise make(Invalid, f"lists and dicts in {_DEPTH} levels: does one contain itself?")
    if isinstance(v, dict):
        if _arrays.is_map(v):
            raise make(Invalid, "a dict with the keys DType, Data and Shape would arrive as an array: pass a muster_pg.Array")
        keys = sorted(v, key=_wire.text) if all(isinstance(k, str) for k in v) else list(v)
        return {_key(k): _plain(v[k], depth - 1) for k in keys}
    if isinstance(v, (list, tuple)) and not isinstance(v, msgpack.ExtType):
        return [_plain(x, depth - 1) for x in v]
    a = _arrays.of(v)
    if a is not None:
        return _arrays.to_map(a)
    v = _arrays.scalar(v)
    if isinstance(v, (str, bytes, int, float, bytearray, memoryview)) or type(v) is datetime.datetime and v.tzinfo is not None:
        return v
    raise make(Invalid, f"a {_named(v)} cannot be sent")


def _key(k: object) -> object:
    k = _arrays.scalar(k)
    if k is None or isinstance(k, (str, bytes, int, float)):
        return k
    raise make(Invalid, f"a dict with a {_named(k)} as a key cannot be sent")


def _named(v: object) -> str:
    """Returns what v is, in words."""
    name = type(v).__name__
    return name + " without a time zone" if name == "datetime" else name
