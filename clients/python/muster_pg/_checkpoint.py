"""Checkpoints of an elastic job."""

from __future__ import annotations

import time
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Set

from ._errors import NotInView, Timeout, quote
from ._roster import Keys, Record, Worker, decode, encode, threes
from ._store import Store

if TYPE_CHECKING:
    from ._elastic import ElasticMember

CHECKPOINT_TTL = 24 * 3600.0
_POLL = 1.0  # seconds between two looks whether the view has ended, in wait


@dataclass(frozen=True)
class Saved:
    """A checkpoint as the store has it."""

    epoch: int
    path: str
    generation: int
    workers: Sequence[Worker] = ()  # by rank
    keys: Sequence[str] = ()  # of their registrations

    @classmethod
    def of(cls, epoch: int, path: str, r: Record) -> Saved:
        return cls(epoch, path, r.generation, r.workers, r.keys)

    @classmethod
    def decode(cls, key: str, value: bytes) -> Saved:
        v = decode(key, value, Epoch=int, Path=str, Generation=int, Slots=list)
        flat = [slot.get(name) if isinstance(slot, dict) else None for slot in v["Slots"] for name in ("ID", "Addr", "Key")]
        return cls(v["Epoch"], v["Path"], v["Generation"], *threes(key, flat))

    def encode(self) -> bytes:
        slots = [{"ID": w.id, "Addr": w.addr, "Key": key} for w, key in zip(self.workers, self.keys)]
        return encode({"Epoch": self.epoch, "Path": self.path, "Generation": self.generation, "Slots": slots})


class Listed:
    """A checkpoint as the store lists it."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.saved: Optional[Saved] = None  # it has expired, and an end of it has not
        self.revision = 0
        self.ended: Set[str] = set()  # names of registrations
        self.keys: List[str] = []

    @property
    def complete(self) -> bool:
        s = self.saved
        return s is not None and len(s.keys) > 0 and all(_name(key) in self.ended for key in s.keys)


def listed(store: Store, keys: Keys, until: float) -> List[Listed]:
    """Lists the checkpoints of a job."""
    every: Dict[str, Listed] = {}
    for e in store.list(keys.checkpoints, timeout=left(until)):
        escaped, _, rest = e.key[len(keys.checkpoints) :].partition("/")
        c = every.setdefault(escaped, Listed(urllib.parse.unquote(escaped)))
        c.keys.append(e.key)
        if rest.startswith("ended/"):
            c.ended.add(rest[len("ended/") :])
        else:
            c.revision, c.saved = e.revision, Saved.decode(e.key, e.value)
    return list(every.values())


def newest(every: Sequence[Listed]) -> Optional[Listed]:
    """Returns the complete one with the highest epoch; of several the one that was started last."""
    return max((c for c in every if c.complete), key=lambda c: (c.saved.epoch if c.saved else 0, c.revision), default=None)


class Checkpoint:
    """A checkpoint that all workers of a view save together. It is complete when each of them has
    called end. If one of them fails before, it is never complete.
    """

    def __init__(self, member: ElasticMember, id: str, saved: Saved) -> None:
        """Not called by users: see ElasticMember.start_checkpoint."""
        self._member, self.id, self._saved = member, id, saved
        self.epoch, self.path = saved.epoch, saved.path
        self.generation = saved.generation  # of the view
        self.workers = list(saved.workers)  # by rank
        given = member._given
        self._view = given if given is not None and given._record.keys == saved.keys else None

    def end(self, *, timeout: Optional[float] = None) -> bool:
        """Records that this worker has saved its part, and reports whether all have. NotInView if
        this worker is not in the checkpoint's view: one that has joined again is another worker.
        """
        m, op = self._member, self._op("end")
        until = m._until(op, timeout)
        if m._why is not None:
            raise m._ended(op)
        if m._self.key not in self._saved.keys:
            raise m._fail(op, f"not in the view: generation {self.generation} has {len(self.workers)} workers, and this worker is not one of them", (NotInView,))
        with m._errors_of(op):
            m._store.set(self._key(m._self.key), b"", ttl=CHECKPOINT_TTL, timeout=left(until))
        return not self._missing(until)

    def missing(self, *, timeout: Optional[float] = None) -> List[Worker]:
        """Returns the workers that have not called end, by rank."""
        return self._missing(self._member._until(self._op("state"), timeout))

    def _missing(self, until: float) -> List[Worker]:
        m = self._member
        with m._errors_of(self._op("state")):
            ended = {e.key for e in m._store.list(self._key(""), timeout=left(until))}
        return [w for w, key in zip(self.workers, self._saved.keys) if self._key(key) not in ended]

    def wait(self, *, timeout: Optional[float] = None) -> None:
        """Waits until the checkpoint is complete. A Timeout names the keys of the workers that are
        missing. If the view that next returned last is that of the checkpoint, its end raises its
        error.
        """
        m, op = self._member, self._op("wait")
        until = m._until(op, timeout)
        while True:
            with m._errors_of(op):
                try:
                    m._store.wait(*map(self._key, self._saved.keys), timeout=min(left(until), _POLL))
                    return
                except Timeout:
                    if self._view is not None and self._view.error is not None:
                        raise self._view._ended() from None
                    if time.monotonic() >= until:
                        raise

    def _key(self, registration: str) -> str:
        return self._member._keys.checkpoint(self.id) + "ended/" + _name(registration)

    def _op(self, what: str) -> str:
        return f"{what} of checkpoint {quote(self.id)}"


def left(until: float) -> float:
    """Returns the seconds until then."""
    return max(until - time.monotonic(), 0.0)


def _name(registration: str) -> str:
    return registration.rpartition("/")[2]
