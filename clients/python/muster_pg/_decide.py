"""Who decides the views of an elastic job: the live worker that registered first."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, List, Optional, Tuple

from ._errors import Conflict
from ._roster import RETENTION, Record, Registration, Roster, encode

if TYPE_CHECKING:
    from ._track import Tracker


class Decider:
    """What the deciding worker knows. Two may be active for a moment, when a worker was evicted and
    does not know it: the compare-and-swap lets one of them create the next view.
    """

    def __init__(self, member: Tracker) -> None:
        self._m = member
        self._since = 0.0  # when a change that requires a new view was first seen, with at least Min workers
        self._kept, self._renewed = 0, 0.0  # the generation whose retention was last renewed, and when

    def step(self) -> float:
        """Does what is due, and returns after how many seconds to call it again if nothing changes."""
        m = self._m
        with m._cond:
            live, leads = self._elect(m._roster)
            record = m._current._record if m._current is not None else None
        same = record is not None and record.keys == [g.key for g in live]
        if not leads or same or len(live) < m._self.least:
            self._since = 0.0
            if leads and same and record is not None:
                self._tend(record)
            return RETENTION / 3
        now = time.monotonic()
        self._since = self._since or now
        left = self._since + m._settle - now
        if left > 0 and len(live) < m._self.most:
            return left
        self._decide()
        return RETENTION / 3

    def _elect(self, roster: Roster) -> Tuple[List[Registration], bool]:
        """Returns the workers that a view has, and whether this member is the first of them."""
        live = roster.in_order(self._m._self)[: self._m._self.most]
        return live, bool(live) and live[0].key == self._m._self.key

    def _decide(self) -> None:
        """Creates a view of the live workers. It reads the roster again: the watch may be behind.

        No thread uses the view before the watch brings it, after this worker's eviction if there was
        one.
        """
        m = self._m
        roster = Roster(m._keys, m._calls.list(m._keys.roster))
        before = self._known()  # without roster.view, the last worker to leave deleted it before this one joined: a new run begins
        run, old = secrets.token_hex(13), None
        if roster.view is not None:
            before, run, old = roster.view, roster.view.run, roster.view.raw
        live, leads = self._elect(roster)
        keys = [g.key for g in live]
        if not leads or len(live) < m._self.least or before is not None and before.keys == keys:
            return  # the watch will bring the change that this read has seen
        self._since = 0.0
        generation = before.generation + 1 if before is not None else 1
        flat = [text for g in live for text in (g.worker.id, g.worker.addr, g.key[len(m._keys.workers) :])]
        self._swap(generation, old, encode({"Run": run, "Generation": generation, "Workers": flat}))

    def _known(self) -> Optional[Record]:
        """Returns the newest view that this member may take up: that of the roster with which it
        registered, until the watch has brought one.
        """
        m = self._m
        with m._cond:
            return m._current._record if m._current is not None else m._roster.view

    def _swap(self, generation: int, old: Optional[bytes], view: bytes) -> None:
        """Replaces old by view, which may be the same. If the store has another one, another worker
        has decided.
        """
        try:
            self._m._calls.swap(self._m._keys.view, old, view, ttl=RETENTION)
        except Conflict:
            return
        self._kept, self._renewed = generation, time.monotonic()

    def _tend(self, record: Record) -> None:
        """Renews the retention of the view, and writes the history: no view is to be decided, so that
        none waits for it.
        """
        due = self._kept != record.generation or time.monotonic() - self._renewed >= RETENTION / 3
        if due:
            self._swap(record.generation, record.raw, record.raw)
        self._m._history.write(self._m._calls, self._m._keys, record, due)
