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
import threading
import time
import types
from typing import Any, Callable, Dict, List, Union

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
    if isinstance(v, muster_pg.View):
        return {"run": v.run, "generation": v.generation, "rank": v.rank, "ids": [w.id for w in v.workers]}
    if isinstance(v, muster_pg.Error):
        return error(v)
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
    if isinstance(e, muster_pg.ViewOver):
        out.update(lost=e.lost, left=e.left)
    if isinstance(e, muster_pg.RankError):
        out.update(missing=e.missing, lost=e.lost, left=e.left, by=e.by, waited=e.waited)
    return out


class Rank:
    """What the calls are made on."""

    def __init__(self) -> None:
        self.on: Dict[str, Any] = {"new": self}
        self.seen: Dict[str, Any] = {}  # the views of the member, and how it has ended

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

    def phase(self, name: str, total: int, done: int) -> None:
        """Begins a phase that never ends."""
        phase: muster_pg.Phase = self.on["group"].phase(name, total)
        phase.__enter__()
        phase.done(done)

    def facts(self) -> Any:
        g = self.on["group"]
        return [g.rank, g.size, g.name, [m.pid for m in g.members], g.local_rank]

    def key(self, name: str, data: bytes) -> None:
        self.on["group"].store.set(name, data)

    def member(self, id: str, **more: Any) -> None:
        self.on["member"] = muster_pg.ElasticMember.join(self.on["store"], "train", id, addr="10.0.0.1:" + id, **more)

    def next(self, timeout: float = 30) -> muster_pg.View:
        v: muster_pg.View = self.on["member"].next(timeout=timeout)
        self.on["view"] = v
        return v

    def take(self) -> None:
        """Takes each view, in a thread, until the member has ended."""
        seen: Dict[str, Any] = {"views": [], "ended": None}
        self.seen = seen

        def run() -> None:
            try:
                while True:
                    seen["views"].append(self.next(1e9))
            except muster_pg.Error as e:
                seen["ended"] = e

        threading.Thread(target=run, daemon=True).start()

    def form(self, what: str) -> List[str]:
        """Exchanges a text in the group of the view."""
        view: muster_pg.View = self.on["view"]
        with view.group(timeout=30) as g:
            every: List[str] = g.all_gather(what)
            g.shutdown()
        return every

    def over(self) -> Any:
        """Waits for the end of the view, and returns its error."""
        view: muster_pg.View = self.on["view"]
        view.wait(30)
        return view.error

    def checkpoint(self, id: str = "", epoch: int = 0) -> str:
        """Begins a checkpoint, or takes up one that has begun."""
        m: muster_pg.ElasticMember = self.on["member"]
        c = self.on["checkpoint"] = m.checkpoint(id) if id else m.start_checkpoint(epoch, "/ckpt")
        return c.id

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
