"""What users pass, before anything of it is sent: each mistake is an error that names the verb and
the argument.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
from collections.abc import Sequence
from typing import Any, Callable, List, Optional, Union

from ._errors import Error, InvalidType, Kinds, quote

MOST_SECONDS = 1e9  # 31 years
LEAST_STALL = 2.0
INT64 = -(1 << 63), (1 << 63) - 1
Value = Union[bytes, bytearray, memoryview]
Bad = Callable[[str, Kinds], Error]  # makes the error of a verb: what is wrong, and what the error is beside Invalid


def of_type(bad: Bad, name: str, what: str, v: object) -> Error:
    """Is the error of an argument of a wrong type."""
    return bad(f"{name} is {what}, not {type(v).__name__}", (InvalidType,))


def text(bad: Bad, name: str, v: Any) -> str:
    """Returns a str that has bytes."""
    if not isinstance(v, str):
        raise of_type(bad, name, "a str", v)
    if v.isascii():
        return v
    try:
        v.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise bad(f"{name} is {quote(v)}, which is no text: {e.reason}", ()) from None
    return v


def value(bad: Bad, name: str, v: Any) -> bytes:
    """Returns the bytes of a value."""
    if isinstance(v, bytes):
        return v
    if not isinstance(v, (bytearray, memoryview)):
        raise of_type(bad, name, "bytes", v)
    return bytes(v)


def secret(bad: Bad, v: Any) -> Optional[bytes]:
    """Returns a secret, or None."""
    if v is not None and not isinstance(v, bytes):
        raise of_type(bad, "secret", "bytes", v)
    return v


def whole(bad: Bad, name: str, v: Any) -> int:
    """Returns an int, which may be of at most 64 bits. A bool is none."""
    if type(v) is not int:
        if isinstance(v, bool) or not hasattr(v, "__index__"):
            raise of_type(bad, name, "an int", v)
        v = operator.index(v)
    if v.bit_length() > 64:
        raise bad(f"{name} is a number of {v.bit_length()} bits", ())
    return int(v)


def between(bad: Bad, name: str, v: Any, least: int, most: int) -> int:
    """Returns an int within bounds."""
    n = whole(bad, name, v)
    if not least <= n <= most:
        raise bad(f"{name} is {n}, which is not from {least} to {most}", ())
    return n


def seconds(bad: Bad, name: str, v: Any, *, zero: bool = True, forever: bool = True) -> float:
    """Returns a duration of at most MOST_SECONDS, which every clock can add; math.inf is no timeout."""
    if type(v) not in (float, int) and (isinstance(v, bool) or not isinstance(v, numbers.Real)):
        raise of_type(bad, name, "a number of seconds", v)
    try:
        s = float(v)
    except OverflowError:
        s = MOST_SECONDS if v > 0 else -math.inf
    if s != s or s < 0 or s == 0 and not zero or s == math.inf and not forever:
        raise bad(f"{name} is {s:g}: it has to be {'≥ 0' if zero else '> 0'} seconds{'' if forever else ', and an end'}", ())
    return s if s == math.inf else min(s, MOST_SECONDS)


def stall(bad: Bad, v: Any) -> float:
    """Returns the seconds without progress after which a rank has stalled; 0: never."""
    s = seconds(bad, "stall", v, forever=False)
    if 0 < s < LEAST_STALL:
        raise bad(f"stall is {s:g}: it has to be at least {LEAST_STALL:g} seconds, or 0 for none: reports come once a second", ())
    return s


def several(bad: Bad, name: str, v: Any) -> List[Any]:
    """Returns the elements of a sequence that is meant to be one."""
    if not isinstance(v, Sequence) or isinstance(v, (str, bytes, bytearray, memoryview)):
        raise of_type(bad, name, "a list", v)
    return list(v)


def file(bad: Bad, name: str, v: Any) -> Any:
    """Returns the path of a file. A number is none: it would be a file that happens to be open."""
    if not isinstance(v, (str, os.PathLike)):
        raise of_type(bad, name, "the path of a file", v)
    return v
