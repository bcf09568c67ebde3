"""Numbers and arrays of all ranks, reduced by the store in rank order."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, List, Optional

from . import _arguments, _arrays
from ._errors import Invalid, make
from ._verb import INT64, Verb, plain
from ._wire import WANT_REDUCED

if TYPE_CHECKING:
    from ._group import Group

_OPS = {"sum": 1, "product": 2, "min": 3, "max": 4, "avg": 1}
_ALIASES = {"mean": "avg"}


def all_reduce(g: Group, numbers: Any, op: str, timeout: Optional[float]) -> Any:
    """See Group.all_reduce."""
    with Verb(g, "allreduce", timeout, want=WANT_REDUCED) as v:
        op = _ALIASES.get(_arguments.text(plain, "op", op), op)
        if op not in _OPS:
            raise make(Invalid, f"there is no reduction {op}: there are {', '.join((*_OPS, *_ALIASES))}")
        v.c.reduce_op = _OPS[op]
        if _arrays.library(numbers):
            return _array(v, numbers, op, g.size)
        ns, v.c.reduce_kind, form = v.numbers(numbers)
        v.c.label = f"{op} of {len(ns)}"
        v.brings(struct.pack(f"<{len(ns)}{form}", *ns))
        [got] = v.decode(bytes, v.cast(), 1)
        out: List[Any] = list(struct.unpack(f"<{len(got) // 8}{form}", got))
        if op == "avg":
            out = [_quotient(n, g.size) if v.c.reduce_kind == INT64 else n / g.size for n in out]
        return out


def _array(v: Verb, numbers: Any, op: str, size: int) -> Any:
    r = _arrays.Reduction(numbers, op == "avg")
    v.c.label, v.c.type, v.c.reduce_kind = f"{op} of {r.count}", r.type, r.kind
    v.brings(r.payload())
    [got] = v.decode(bytes, v.cast(), 1)
    return r.result(got, size, op == "avg")


def _quotient(n: int, by: int) -> int:
    """Divides as Go does: truncated toward 0."""
    return n // by if n >= 0 else -(-n // by)
