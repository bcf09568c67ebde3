"""The history of an elastic job, for people: who joined, left and was lost in each of its views.

The key and its JSON are those of Go (membership/history.go). No worker depends on it.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from ._errors import Conflict, NotFound
from ._roster import RETENTION, Keys, Record, Worker, encode

if TYPE_CHECKING:
    from ._store import Store
    from ._view import View

_CHANGES = 16  # of a history
_NAMED = 8  # workers that a change names in each of its lists
_ID = 64  # bytes of a worker's id there


def change(before: Optional[View], record: Record) -> Dict[str, Any]:
    """Returns how the view of record followed the view before."""
    gone: Dict[str, List[Worker]] = {"Lost": [], "Left": []}
    known: Sequence[str] = ()
    seconds = 0.0
    if before is not None:
        known = before._record.keys
        for worker, key in zip(before._record.workers, known):
            if record.rank(key) < 0:
                gone["Left" if key in before._left else "Lost"].append(worker)
        if before._ended_at:
            seconds = round(time.monotonic() - before._ended_at, 3)
    joined = [w for w, key in zip(record.workers, record.keys) if key not in known]
    c: Dict[str, Any] = {"Generation": record.generation, "Time": int(time.time() * 1000), "Workers": len(record.workers)}
    for what, workers in (("Joined", joined), *gone.items()):
        if workers:
            c[what] = {"N": len(workers), "IDs": [_short(w.id) for w in workers[:_NAMED]]}
    return {**c, "Seconds": seconds}


class History:
    """The changes that this worker has seen. Should it decide views, it writes them."""

    def __init__(self) -> None:
        self._changes: List[Dict[str, Any]] = []
        self._recorded = 0  # the generation up to which they are written, as far as they could be

    def saw(self, before: Optional[View], record: Record) -> None:
        """Notes a change. A first view that is not the job's first one was there before this worker."""
        if before is not None or record.generation == 1:
            self._changes = [*self._changes, change(before, record)][-_CHANGES:]

    def write(self, store: Store, keys: Keys, record: Record, again: bool) -> None:
        """Adds the changes that the store lacks, once for each view, or again. The swap keeps it from bringing
        back the history of a job whose last worker has left.
        """
        if self._recorded == record.generation and not again:
            return
        self._recorded = record.generation
        old: Optional[bytes] = None
        h: Dict[str, Any] = {}
        try:
            old = store.get(keys.history)
            h = json.loads(old)
            changes, seconds, newest = int(h["Changes"]), float(h["Seconds"]), list(h["Newest"])
            last = newest[-1]["Generation"] if newest else 0
        except (NotFound, ValueError, KeyError, TypeError, RecursionError, OverflowError):
            h = {}
        if h.get("Run") != record.run:
            changes, seconds, newest, last = 0, 0.0, [], 0
        for c in self._changes:
            if c["Generation"] > last:
                changes, seconds, newest = changes + 1, seconds + c["Seconds"], [*newest, c][-_CHANGES:]
        try:
            store.swap(keys.history, old, encode({"Run": record.run, "Changes": changes, "Seconds": seconds, "Newest": newest}), ttl=RETENTION)
        except Conflict:
            pass  # the next view brings what is missing


def _short(id: str) -> str:
    b = id.encode()
    return id if len(b) <= _ID else b[:_ID].decode("utf-8", "ignore") + "…"
