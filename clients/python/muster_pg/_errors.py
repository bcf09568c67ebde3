"""Errors, with the texts of Go.

The class of an error has two bases: its origin, StoreError or RankError, and its kind, such as
Timeout or Lost:

    try:
        group.barrier(timeout=30)
    except muster_pg.Lost as e:          # of any verb
        print(e.code, e)
    except muster_pg.RankError as e:     # any other failure of a group operation
        print(e.missing, e.doing)
"""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional, Sequence, Tuple, Type, cast

from . import _failure
from ._wire import Code, Failure


class Error(Exception):
    """The base of all errors of this package."""

    code: Code = Code.INVALID

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NotFound(Error):
    """There is no such key."""


class Expired(Error):
    """It has expired."""


class Conflict(Error):
    """Another client was first, or holds this rank."""

    value: Optional[bytes] = None  # of a swap: the current value


class Lost(Error):
    """Failure detected: a rank's process or connection ended without goodbye. The group is closed."""


class Timeout(Error, TimeoutError):
    """A deadline passed."""


class Stalled(Timeout):
    """A rank that others wait for has made no progress for the stall of the operation, and of its
    phase.
    """


class TooLarge(Error):
    """An object exceeds a limit on its size."""


class Full(Error):
    """The store has reached a limit."""


class Denied(Error):
    """Access denied by the store, or the store did not authenticate itself."""


class Unavailable(Error, ConnectionError):
    """The store cannot be reached."""


class Unsupported(Error):
    """The store does not support the operation."""


class Compacted(Error):
    """The store no longer has the requested changes: list again."""


class Closed(Error):
    """This process has closed it."""


class Invalid(Error, ValueError):
    """An invalid argument."""


class InvalidType(Invalid, TypeError):
    """An argument has the wrong type."""


class Mismatch(Error):
    """Ranks called different verbs, or the same with another root, type or length.

    The group is closed.
    """


class Aborted(Error):
    """A rank called abort. The group is closed."""


class Left(Error):
    """A rank closed the group."""


class Cancelled(Error):
    """A rank cancelled the verb."""


class Stale(Error):
    """The generation has ended."""


class Failed(Error):
    """A rank could not do its part. The group continues."""


class Skipped(Error):
    """A rank went on to a later verb without taking part in this one. The group continues."""


class Unknown(Error):
    """The store did not answer in time: the call may have taken effect. Combined with another kind."""


class SessionLost(Error):
    """The session has expired: this client was disconnected, or sent nothing, for too long.

    Combined with Unavailable.
    """


class ProtocolError(Error):
    """The process that listens there is not a muster store."""


class Busy(Error):
    """Another thread is in a collective verb of this group, or waits for the same rank's messages; or a
    signal handler has interrupted a call of its own thread.
    """


class IDInUse(Error):
    """Another live worker of the job has this ID."""


class Evicted(Error):
    """The lease of this worker has expired, or its launcher has removed it. It may join again."""


class Excluded(Evicted):
    """Another worker has removed this one: their view could not form with it."""


class Finished(Error):
    """The work of the job is done, without this worker."""


class StateLost(Error):
    """No worker of a job has a whole state: begin with a checkpoint."""


class NotInView(Error):
    """This worker is not in the view."""


Kinds = Tuple[Type[Error], ...]

# What each code is, and what an error says of it.
_CODES = {
    Code.NOT_FOUND: (NotFound, "not found"),
    Code.EXPIRED: (Expired, "expired"),
    Code.CONFLICT: (Conflict, "conflict"),
    Code.LOST: (Lost, "peer lost"),
    Code.STALLED: (Stalled, "a rank stalled"),  # before Timeout, which it is too
    Code.TIMEOUT: (Timeout, "timed out"),
    Code.TOO_LARGE: (TooLarge, "too large"),
    Code.FULL: (Full, "store full"),
    Code.DENIED: (Denied, "denied"),
    Code.UNAVAILABLE: (Unavailable, "store unavailable"),
    Code.UNSUPPORTED: (Unsupported, "unsupported by this engine"),
    Code.COMPACTED: (Compacted, "revision compacted"),
    Code.CLOSED: (Closed, "closed"),
    Code.INVALID: (Invalid, "invalid request"),
    Code.MISMATCH: (Mismatch, "ranks disagree"),
    Code.ABORTED: (Aborted, "aborted"),
    Code.LEFT: (Left, "peer left"),
    Code.CANCELLED: (Cancelled, "cancelled"),
    Code.STALE: (Stale, "generation over or sequence passed"),
    Code.FAILED: (Failed, "a rank failed"),
    Code.SKIPPED: (Skipped, "a rank skipped it"),
    Code.AGAIN: (Full, "no room for the answer"),
}


def kind_of(code: Code) -> Kinds:
    """Returns the class that a code stands for, if there is one."""
    return (_CODES[code][0],) if code in _CODES else ()


def words_of(code: Code) -> str:
    """Returns what an error says of a code."""
    return _CODES[code][1] if code in _CODES else code.text


class StoreError(Error):
    """A verb of a store failed."""

    op: str
    key: str
    detail: str
    failure: Optional[Failure]
    _parts: Tuple[Any, ...]

    def __reduce__(self) -> Tuple[Callable[..., Error], Tuple[Any, ...]]:
        return store_error, self._parts


class RankError(Error):
    """The failure of a group operation. All ranks get the same one."""

    op: str
    group: str
    channel: str
    rank: int
    size: int
    seq: int
    failure: Failure
    _parts: Tuple[Any, ...]

    @property
    def missing(self) -> List[int]:
        """The ranks that had not come."""
        return self.failure.missing

    @property
    def doing(self) -> List[str]:
        """What each of the first missing ranks is doing instead."""
        return self.failure.doing

    @property
    def lost(self) -> List[int]:
        """The ranks whose session ended without goodbye."""
        return self.failure.lost

    @property
    def left(self) -> List[int]:
        """The ranks that said goodbye."""
        return self.failure.left

    @property
    def by(self) -> int:
        """The rank that said no; -1 is the store."""
        return self.failure.by

    @property
    def reason(self) -> str:
        """What it said."""
        return self.failure.reason

    @property
    def waited(self) -> float:
        """Seconds from the first vote to the decision."""
        return self.failure.waited / 1e9

    def __reduce__(self) -> Tuple[Callable[..., Error], Tuple[Any, ...]]:
        return rank_error, self._parts


class MemberError(Error):
    """An operation of a worker of an elastic job failed."""

    op: str
    job: str
    id: str  # of the worker
    rank: int  # in the view that next returned last; -1 before that
    _parts: Tuple[Any, ...]

    def __reduce__(self) -> Tuple[Callable[..., Error], Tuple[Any, ...]]:
        return member_error, self._parts


class ViewOver(Error):
    """A view of an elastic job has ended. It is also Lost if ranks have failed, Left if ranks have
    left, and Evicted or Closed if this worker was evicted or closed.
    """

    job: str
    id: str  # of this worker
    rank: int  # of this worker
    size: int
    generation: int
    lost: List[int]  # ranks that have failed
    left: List[int]  # ranks that have left
    gone: List[Any]  # the workers of these ranks
    joined: List[Any]  # the new workers of the view that follows
    _parts: Tuple[Any, ...]

    def __reduce__(self) -> Tuple[Callable[..., Error], Tuple[Any, ...]]:
        return view_over, self._parts


_BASES = (Error, StoreError, RankError, MemberError, ViewOver)


@functools.lru_cache(maxsize=None)
def _class(base: Type[Error], kinds: Kinds) -> Type[Error]:
    """Returns the class of the errors that are a base and of some kinds."""
    return cast(Type[Error], type(base.__name__, (base, *kinds), {"__module__": "muster_pg", "__doc__": base.__doc__}))


def _distinct(kinds: Kinds) -> Kinds:
    """Leaves out what another one is anyway."""
    return tuple(k for k in dict.fromkeys(kinds) if not any(other is not k and issubclass(other, k) for other in kinds))


class Quoted(str):
    """A subject of several keys, which are in quotes already."""


def store_error(
    op: str,
    key: str,
    code: Code,
    detail: str = "",
    failure: Optional[Failure] = None,
    also: Kinds = (),
    what: str = "",
    says: str = "",
) -> StoreError:
    """Makes the error of a verb of a store: what is wrong, if not what code says, and the kinds
    that it also is.
    """
    says = says or f"store: {op}" + (f" {key if isinstance(key, Quoted) else quote(key)}" if key else "") + f": {what or words_of(code)}" + (f": {detail}" if detail else "")
    e = cast(StoreError, _class(StoreError, _distinct(kind_of(code) + also))(says))
    e.op, e.key, e.code, e.detail, e.failure = op, key, code, detail, failure
    e._parts = (op, key, code, detail, failure, also, what, says)
    return e


def rank_error(
    op: str, group: str, channel: str, rank: int, size: int, seq: int, failure: Failure, also: Kinds = (), cause: str = ""
) -> RankError:
    """Makes the error of a verb of a group. The cause is said if the failure has no reason."""
    says = "" if "." in op else "pgroup: "
    if op:
        says += op + (f" #{seq}" if seq else "") + " of "
    says += f"group {quote(group)}" + (f" channel {quote(channel)}" if channel else "")
    says += f" on rank {rank} of {size}: {_failure.why(failure, rank, cause)}"
    e = cast(RankError, _class(RankError, _distinct(kind_of(failure.code) + also))(says))
    e.op, e.group, e.channel, e.rank, e.size, e.seq, e.failure, e.code = op, group, channel, rank, size, seq, failure, failure.code
    e._parts = (op, group, channel, rank, size, seq, failure, also, cause)
    return e


def member_error(op: str, job: str, id: str, rank: int, why: str, kinds: Kinds = ()) -> MemberError:
    """Makes the error of an operation of a worker."""
    at = f" (rank {rank})" if rank >= 0 else ""
    e = cast(MemberError, _class(MemberError, _distinct(kinds))(f"membership: {op} of worker {quote(id)}{at} in job {quote(job)}: {why}"))
    e.op, e.job, e.id, e.rank, e.code = op, job, id, rank, _code_of(kinds)
    e._parts = (op, job, id, rank, why, kinds)
    return e


def view_over(
    job: str,
    id: str,
    rank: int,
    size: int,
    generation: int,
    lost: Sequence[int],
    left: Sequence[int],
    gone: Sequence[Any],
    joined: Sequence[Any],
    why: str = "",
    kinds: Kinds = (),
) -> ViewOver:
    """Makes the error of what failed because a view ended. gone has the workers of lost and left."""
    says = [f"lost rank {rank}, worker {w}" for rank, w in zip(lost, gone)]
    says += [f"left by rank {rank}, worker {w}" for rank, w in zip(left, gone[len(lost) :])]
    says += [f"joined by worker {w}" for w in joined] + [why] * bool(why)
    every = (*kinds, *(Lost,) * bool(lost), *(Left,) * bool(left))
    text = f"membership: view {generation} of job {quote(job)} ended on rank {rank} of {size}, worker {quote(id)}: {', '.join(says)}"
    e = cast(ViewOver, _class(ViewOver, _distinct(every))(text))
    e.job, e.id, e.rank, e.size, e.generation, e.code = job, id, rank, size, generation, _code_of(every)
    e.lost, e.left, e.gone, e.joined = list(lost), list(left), list(gone), list(joined)
    e._parts = (job, id, rank, size, generation, e.lost, e.left, e.gone, e.joined, why, kinds)
    return e


def kinds_of(e: Error) -> Kinds:
    """Returns the kinds that e is of."""
    return _distinct(tuple(k for k in type(e).__mro__ if issubclass(k, Error) and k.__module__ == __name__ and k not in _BASES))


def _code_of(kinds: Kinds) -> Code:
    return next((code for code, (k, _) in _CODES.items() if any(issubclass(kind, k) for kind in kinds)), Code.INVALID)


def make(kind: Type[Error], says: str) -> Error:
    """Makes an error that has no store error and no failure."""
    e = kind(says)
    e.code = _code_of((kind,))
    return e


_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\", '"': '\\"'}


def quote(s: str) -> str:
    """Returns s in double quotes, as Go has it."""
    return '"' + "".join(_quoted(c) for c in s) + '"'


def _quoted(c: str) -> str:
    n = ord(c)
    if c in _ESCAPES:
        return _ESCAPES[c]
    if c.isprintable():
        return c
    if 0xDC80 <= n <= 0xDCFF:  # a byte that is no text
        return f"\\x{n - 0xDC00:02x}"
    if n < 0x20 or n == 0x7F:
        return f"\\x{n:02x}"
    return f"\\u{n:04x}" if n < 0x10000 else f"\\U{n:08x}"


def clip(s: str, n: int) -> str:
    """Shortens s to n bytes, at the end of a character."""
    try:
        b = s.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        b = s.encode("utf-8", "backslashreplace")
        s = b.decode()
    if len(b) <= n:
        return s
    return b[: n - 3].decode("utf-8", "ignore") + "…"


def clear(e: BaseException) -> None:
    """Frees what the frames of an error hold, as an autograd graph."""
    seen: Optional[BaseException] = e
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__
