"""One operation of a rank, as the trace has it."""

from __future__ import annotations

import time
from typing import List, NamedTuple, Optional, Protocol

from ._errors import RankError

now = time.perf_counter_ns  # monotonic


class Joining(NamedTuple):
    """A rank that is in no group yet."""

    name: str
    rank: int
    size: int
    generation: int = 0
    id: int = 0


class Rank(Protocol):
    """A Joining rank, or a membership in a group."""

    @property
    def name(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def id(self) -> int: ...


class Sink(Protocol):
    """Receives ended operations: a trace."""

    def record(self, s: Span) -> None: ...


class Span:
    """Begins now, and reports its end to the trace. Without a trace no clock is read."""

    seq = 0
    last = -1  # the rank that arrived last, for which the others waited
    given = 0  # bytes that this rank gave; if it only got some, those
    error = ""
    _voted = 0  # the begin of its wait; 0: it does not wait
    _answered = 0  # when its result came; 0: at its end

    def __init__(self, trace: Optional[Sink], verb: str, member: Rank, channel: str = "") -> None:
        self.trace = trace
        if trace is not None:
            self.verb, self.member, self.channel = verb, member, channel
            self.start = self.end = now()

    def waits(self) -> None:
        """Says that it waits for others from now on."""
        if self.trace is not None:
            self._voted = now()

    def answered(self, given: bytes, got: List[bytes], last: int) -> None:
        """Says that it waits no more."""
        if self.trace is not None:
            self._answered, self.last = now(), last
            self.given = len(given) or sum(map(len, got))

    def receives(self, src: int, seq: int) -> None:
        """Says that it waits for message seq from src: numbers are those of that stream."""
        if self.trace is not None:
            self.channel += f" from {src}"
            self.seq, self.last = seq, src
            self.waits()

    def __enter__(self) -> Span:
        return self

    def __exit__(self, _: object, e: Optional[BaseException], __: object) -> None:
        if self.trace is None:
            return
        self.end = now()
        if e is not None:
            self.error = str(e) or type(e).__name__
            if self.last < 0:
                self.last = _culprit(e)
        self.trace.record(self)

    @property
    def waited(self) -> int:
        """Nanoseconds for which it waited for others. The last rank has not waited."""
        if not self._voted or self.last == self.member.rank:
            return 0
        return (self._answered or self.end) - self._voted


def _culprit(e: BaseException) -> int:
    """Is the one rank that an error names; -1 if it names none, or more."""
    if not isinstance(e, RankError):
        return -1
    return next((ranks[0] for ranks in (e.lost, e.left, e.missing) if len(ranks) == 1), e.by)
