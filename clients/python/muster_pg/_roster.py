"""The keys of an elastic job, and their values: those of keys.go in Go's package membership."""

from __future__ import annotations

import json
import urllib.parse
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from ._errors import Error, IDInUse, Kinds, Mismatch, make, quote
from ._store import Entry

RETENTION = 3600.0  # seconds that the store keeps a view which no worker renews
LOST_TTL = 60.0  # seconds that the note remains that a removed worker has failed


@dataclass(frozen=True)
class Worker:
    """A worker, as the others know it."""

    id: str
    addr: str = ""

    def __str__(self) -> str:
        return quote(self.id) + (f" at {self.addr}" if self.addr else "")


@dataclass(frozen=True)
class Registration:
    """A worker's entry. Registrations are ordered by their revisions."""

    key: str
    revision: int
    worker: Worker
    least: int
    most: int
    settings: str

    def agrees(self, o: "Registration") -> bool:
        """Reports whether two workers may be in one job. A worker that does not agree with the
        first one is refused; until it has left it does not count.
        """
        return (self.least, self.most, self.settings) == (o.least, o.most, o.settings)

    def encode(self) -> bytes:
        fields: Dict[str, Any] = {"ID": self.worker.id, "Addr": self.worker.addr, "Min": self.least, "Max": self.most}
        if self.settings:
            fields["Settings"] = self.settings
        return encode(fields)


@dataclass(frozen=True)
class Record:
    """A view as the store has it."""

    run: str
    generation: int
    workers: Sequence[Worker]  # by rank
    keys: Sequence[str]  # of their registrations
    raw: bytes  # for compare-and-swap

    def rank(self, key: str) -> int:
        return self.keys.index(key) if key in self.keys else -1


class Keys:
    """The keys of a job. The view sorts before the workers: a worker that lists the roster and
    finds its own registration was registered when it read the view.
    """

    def __init__(self, job: str) -> None:
        self.job = f"membership/{escape(job)}/"
        self.roster = self.job + "roster/"
        self.view, self.lost, self.workers = self.roster + "view", self.roster + "lost/", self.roster + "worker/"
        self.history, self.checkpoints, self.groups = self.job + "history", self.job + "checkpoint/", self.job + "group/"

    def finished(self, run: str) -> str:
        return f"{self.job}finished/{run}"

    def checkpoint(self, id: str) -> str:
        return f"{self.checkpoints}{escape(id)}/"


class Roster:
    """The registered workers and the newest view."""

    def __init__(self, keys: Keys, entries: Iterable[Entry] = ()) -> None:
        self._keys = keys
        self.workers: Dict[str, Registration] = {}
        self.lost: Dict[str, bool] = {}  # keys of workers that were removed because they have failed
        self.view: Optional[Record] = None
        for e in entries:
            self.add(e.key, e.value, e.revision)

    def add(self, key: str, value: bytes, revision: int) -> None:
        k = self._keys
        if key.startswith(k.workers):
            v = decode(key, value, ID=str, Addr=str, Min=int, Max=int, Settings=str)
            self.workers[key] = Registration(key, revision, Worker(v["ID"], v["Addr"]), v["Min"], v["Max"], v["Settings"])
        elif key.startswith(k.lost):
            self.lost[k.workers + key[len(k.lost) :]] = True
        elif key == k.view:
            v = decode(key, value, Run=str, Generation=int, Workers=list)
            workers, names = threes(key, v["Workers"])
            self.view = Record(v["Run"], v["Generation"], workers, [k.workers + name for name in names], value)
        else:
            raise foreign(key, "unknown key")

    def in_order(self, self_: Registration) -> List[Registration]:
        """Returns the workers that agree with self_, in the order of registration; of several with
        the same id the first: the others are about to be refused.
        """
        seen: Dict[str, Registration] = {}
        for g in sorted(self.workers.values(), key=lambda g: g.revision):
            if g.agrees(self_):
                seen.setdefault(g.worker.id, g)
        return list(seen.values())

    def refuses(self, self_: Registration) -> Optional[Tuple[str, Kinds]]:
        """Returns why a worker that has just registered must leave. Of two that exclude each other
        only the later one is refused.
        """
        first = self_
        for g in self.workers.values():
            if g.worker.id == self_.worker.id and g.revision < self_.revision:
                return f"id in use: by worker {g.worker}", (IDInUse,)
            first = min(first, g, key=lambda g: g.revision)
        if first.agrees(self_):
            return None
        if first.settings != self_.settings:
            return f"ranks disagree: {quote(self_.settings)} here, and {quote(first.settings)} on worker {first.worker}", (Mismatch,)
        return (
            f"ranks disagree: Min is {self_.least} and Max is {self_.most} here, and {first.least} and {first.most} on worker {first.worker}",
            (Mismatch,),
        )


def names(live: Sequence[Registration]) -> str:
    """Returns the first 16 workers as text."""
    most = 16
    more = f" and {len(live) - most} more" if len(live) > most else ""
    return ", ".join(str(g.worker) for g in live[:most]) + more


def escape(s: str) -> str:
    """Escapes s as a part of a path, as Go's url.PathEscape."""
    return urllib.parse.quote(s, safe="$&+:=@", errors="surrogateescape")


def encode(v: Any) -> bytes:
    """Returns v as JSON. What Python decodes from JSON may have halves of surrogate pairs."""
    return json.dumps(v, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode(key: str, value: bytes, **fields: type) -> Dict[str, Any]:
    """Returns a JSON object whose fields have these types. One that is absent is zero, as in Go."""
    try:
        v = json.loads(value)
        if type(v) is not dict:
            raise ValueError(f"it is a {type(v).__name__}")
        for name, kind in fields.items():
            if v.get(name) is None:
                v[name] = kind()
            if type(v[name]) is not kind:
                raise ValueError(f"{name} is a {type(v[name]).__name__}")
        return v
    except (ValueError, RecursionError) as e:
        raise foreign(key, e) from None


def threes(key: str, flat: Sequence[Any]) -> Tuple[List[Worker], List[str]]:
    """Returns the workers of a list that has the id, the address and a name of each, and the names."""
    if len(flat) % 3 or not all(type(text) is str for text in flat):
        raise foreign(key, "a worker is incomplete")
    return [Worker(*w) for w in zip(flat[::3], flat[1::3])], list(flat[2::3])


def foreign(key: str, why: object) -> Error:
    """Is the error that a key has a value that was not written by this package."""
    return make(Error, f"key {quote(key)} was not written by this package: {why}")
