"""One rank of a group, or one client of a store, that a test in Go leads: a line of JSON for each
call, and a line for its outcome.

{"on": "group" | "store" | "new", "do": "barrier", "args": [...], "kwargs": {...}}
{"value": ...} or {"error": {"text": ..., "kinds": [...], "missing": [...], ...}}

Bytes are {"bytes": base64}, and arrays of numpy {"array": lists, "dtype": name}.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import os
import re
import sys
import time
import types
from typing import Any, Callable, Dict, Union

import muster_pg


def plain(v: Any) -> Any:
    """Makes JSON of a value."""
    if isinstance(v, (bytes, bytearray)):
        return {"bytes": base64.b64encode(v).decode()}
    if isinstance(v, muster_pg.Array):
        v = v.numpy()
    if "numpy" in sys.modules and isinstance(v, sys.modules["numpy"].ndarray):
        return {"array": v.tolist(), "dtype": v.dtype.name}
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    if isinstance(v, types.GeneratorType):
        return [plain(x) for x in v]
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items()}
    return v if isinstance(v, (str, int, float, bool, type(None))) else repr(v)


def value(v: Any) -> Any:
    """Makes a value of JSON."""
    if isinstance(v, dict):
        if set(v) == {"array", "dtype"}:
            return importlib.import_module("numpy").array(v["array"], v["dtype"])
        return base64.b64decode(v["bytes"]) if set(v) == {"bytes"} else {k: value(x) for k, x in v.items()}
    return [value(x) for x in v] if isinstance(v, list) else v


def error(e: BaseException) -> Dict[str, Any]:
    out: Dict[str, Any] = {"text": str(e), "kinds": [k.__name__ for k in type(e).__mro__]}
    if isinstance(e, muster_pg.RankError):
        out.update(missing=e.missing, lost=e.lost, left=e.left, by=e.by, waited=e.waited)
    return out


class Rank:
    """What the calls are made on."""

    def __init__(self) -> None:
        self.on: Dict[str, Any] = {"new": self}

    def join(self, rank: int, size: int, store: str, **more: Any) -> int:
        g = self.on["group"] = muster_pg.Group.join(rank, size, store, **self._secure(more))
        return g.generation

    def from_env(self, **env: str) -> int:
        os.environ.update(env)
        g = self.on["group"] = muster_pg.Group.from_env()
        return g.rank

    def connect(self, address: str, **more: Any) -> None:
        self.on["store"] = muster_pg.Store.connect(address, **self._secure(more))

    def _secure(self, more: Dict[str, Any]) -> Dict[str, Any]:
        if "tls" in more:
            more["tls"] = muster_pg.TLS(**more["tls"])
        if "secret_file" in more:
            more["secret"] = muster_pg.read_secret(more.pop("secret_file"))
        return more

    def shrink(self) -> int:
        old: muster_pg.Group = self.on["group"]
        g = self.on["group"] = old.shrink()
        old.close()
        return g.rank

    def channel(self, name: str) -> None:
        self.on[name] = self.on["group"].channel(name)

    def facts(self) -> Any:
        g = self.on["group"]
        return [g.rank, g.size, g.name, [m.pid for m in g.members], g.local_rank]

    def key(self, name: str, data: bytes) -> None:
        self.on["group"].store.set(name, data)

    def hold(self, milliseconds: int) -> None:
        """Holds the interpreter's lock, as a large import does: no thread of this process runs
        meanwhile.
        """
        ctypes.PyDLL(None).usleep(milliseconds * 1000)

    def match(self, seconds: float) -> None:
        """Matches a regular expression, which holds the interpreter's lock, for some seconds."""
        n, took = 16, 0.0
        while took < seconds / 2:
            n, began = n + 1, time.monotonic()
            re.match(r"(a+)+$", "a" * n + "b")
            took = time.monotonic() - began


def main() -> None:
    rank = Rank()
    for line in sys.stdin:
        call = json.loads(line)
        out: Dict[str, Any]
        try:
            target = rank.on[call["on"]]
            attribute: Union[Callable[..., Any], Any] = getattr(target, call["do"])
            args, kwargs = value(call.get("args") or []), value(call.get("kwargs") or {})
            out = {"value": plain(attribute(*args, **kwargs) if callable(attribute) else attribute)}
        except Exception as e:
            out = {"error": error(e)}
        print(json.dumps(out), flush=True)


if __name__ == "__main__":
    main()
