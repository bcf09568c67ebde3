"""One collective verb: one sequence number, and one vote."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Tuple

from . import _arguments, _arrays, _objects, _wire
from ._arguments import Value
from ._errors import Cancelled, Error, Invalid, Kinds, Mismatch, ProtocolError, RankError, StoreError, TooLarge, clip, kind_of, make, quote
from ._calls import GRACE
from ._span import Span
from ._wire import WANT_NOTHING, Code, Contribution, Op, Request, Failure

if TYPE_CHECKING:
    from ._group import Group

SHUTDOWN = "\0shutdown"  # the channel where shutdown meets
INT64, FLOAT64 = 2, 6  # kinds of what is folded


class Verb:
    """One collective verb of one rank: it takes one sequence number and sends one vote in any case.

    A rank that cannot take part votes no, so that no rank waits for it.
    """

    def __init__(
        self,
        g: Group,
        verb: str,
        timeout: Optional[float],
        *,
        root: int = -1,
        kind: str = "",
        want: int = WANT_NOTHING,
        root_only: bool = False,
    ) -> None:
        self.g, self.membership = g, g._membership
        self.until = self.membership.until(verb, timeout)
        root = _arguments.whole(self.membership.bad(verb), "root", root)
        self.c = Contribution(verb=verb, root=root, type=kind, want=want, root_only=root_only, channel=g._channel)
        self.payload = b""
        self.cause: Optional[str] = None  # why this rank votes no

    def __enter__(self) -> "Verb":
        self.g._begin(self.c.verb)
        if not self.g._busy.acquire(blocking=False):
            raise self.g._busy_error(self.c.verb)
        self.g._seq += 1
        self.c.generation, self.c.rank, self.c.seq = self.membership.generation, self.membership.rank, self.g._seq
        self.span = Span(self.membership.trace, self.c.verb, self.membership, self.c.channel)
        self.span.seq = self.g._seq
        return self

    def __exit__(self, kind: object, e: Optional[BaseException], at: object) -> None:
        try:
            self.span.__exit__(kind, e, at)
        finally:
            self.g._busy.release()

    def refuse(self, code: Code, cause: str) -> None:
        """Makes the vote no. The first reason counts."""
        if self.cause is None:
            self.cause = cause
            self.c.no, self.c.reason = code, clip(cause, 512)

    def check_root(self) -> None:
        """Refuses a root that is no rank."""
        if not 0 <= self.c.root < self.membership.size:
            self.refuse(Code.INVALID, f"root {self.c.root} of a group of {self.membership.size}: ranks are 0 to {self.membership.size - 1}")
            self.c.root, self.c.root_only, self.c.want = -1, False, WANT_NOTHING

    def encode(self, pack: Callable[[Any], bytes], obj: Any) -> None:
        """Makes obj what this rank brings, or its vote no."""
        try:
            self.payload = pack(obj)
            check_size(len(self.payload))
        except TooLarge as e:
            self.refuse(Code.TOO_LARGE, str(e))
        except Invalid as e:
            self.refuse(Code.INVALID, str(e))
        except struct.error as e:
            self.refuse(Code.INVALID, f"numbers: {e}")
        except Exception as e:  # an object may raise any error when it is encoded
            self.refuse(Code.INVALID, f"msgpack: {e}")

    def numbers(self, ns: Any) -> Tuple[List[Any], int, str]:
        """Returns what is to be reduced, its kind, and its form as module struct has it."""
        try:
            out = [_arrays.scalar(n) for n in _arguments.several(_plain, "numbers", ns)]
            wrong = next((i for i, n in enumerate(out) if isinstance(n, bool) or not isinstance(n, (int, float))), None)
            if wrong is not None:
                raise _arguments.of_type(_plain, f"number {wrong}", "an int or a float", out[wrong])
        except Invalid as e:
            self.refuse(Code.INVALID, str(e))
            self.c.want = WANT_NOTHING
            return [], FLOAT64, "d"
        return (out, INT64, "q") if all(isinstance(n, int) for n in out) else (out, FLOAT64, "d")

    def encode_parts(self, objs: Optional[Sequence[Any]]) -> None:
        """Makes one object for each rank what this rank brings."""
        try:
            objs = _arguments.several(_plain, "objs", [] if objs is None else _arrays.parts(objs))
        except Invalid as e:
            self.refuse(Code.INVALID, str(e))
            return
        if len(objs) != self.membership.size:
            self.refuse(Code.INVALID, f"{len(objs)} objects for a group of {self.membership.size}")
            return
        self.encode(lambda vs: _wire.encode_parts([_objects.pack(v) for v in vs]), objs)

    def typed(self, obj: Any, kind: str, receives: bool = False) -> None:
        """Has the store compare the dtype and shape of an array with those of other ranks."""
        if kind or not _arrays.library(obj):
            return
        try:
            self.c.type = str(_arrays.of(obj))
            if receives and not _arrays.writable(obj):
                raise make(Invalid, f"an array {self.c.type} that is read-only cannot receive root's")
        except Error as e:
            self.refuse(Code.INVALID, str(e))
            self.c.want = WANT_NOTHING

    def received(self, obj: Any, got: Any) -> Any:
        """Returns what another rank has sent, in the array that this rank has passed for it."""
        if not isinstance(got, _arrays.Array) or not _arrays.library(obj):
            return got
        mine = _arrays.of(obj)
        if mine is None or str(mine) != str(got):  # a Go rank does not name its shape
            at = f"pgroup: {self.c.verb} #{self.c.seq} of group {quote(self.membership.name)} on rank {self.membership.rank}"
            raise make(Mismatch, f"{at}: rank {self.c.root} has {got}, rank {self.membership.rank} has {mine}")
        return _arrays.fill(obj, got)

    def cast(self) -> List[bytes]:
        """Votes, and returns what the decided record brings."""
        if self.cause is None and self.until <= time.monotonic():
            self.refuse(Code.TIMEOUT, "the deadline had passed")
        until = self.until
        if self.c.no:
            self.payload, until = b"", time.monotonic() + GRACE
        self.span.waits()
        got, last, error = self._vote(until)
        if error is not None and error.failure is None and isinstance(error, Cancelled) and self.cause is None and not self.g._is_closed():
            # The task was cancelled, perhaps before the vote was sent. If it was, a vote of no changes nothing.
            self.refuse(Code.CANCELLED, "the task was cancelled")
            self.payload = b""
            got, last, error = self._vote(time.monotonic() + GRACE)
        self.span.answered(self.payload, got, last)
        if self.cause is not None:
            raise self._refused(error)
        if error is not None:
            raise self.g._fault(self.c.verb, self.c.seq, error)
        return got

    def _vote(self, until: float) -> Tuple[List[bytes], int, Optional[StoreError]]:
        """Returns the wanted part of the decided record and the rank that came last, or an error."""
        try:
            return (*self.g._calls._collect(Request(Op.COLLECT, value=self.payload, group=self.c), until), None)
        except StoreError as e:
            return [], -1, e

    def _refused(self, error: Optional[StoreError]) -> RankError:
        """Is the error of a verb that this rank did not take part in: its own reason, unless the
        verb had failed before.
        """
        v = Failure(Code(self.c.no), by=self.membership.rank, reason=self.c.reason)
        if error is not None and error.failure is not None and error.failure.by != self.membership.rank:
            v = error.failure
        return self.membership.error(self.c.verb, v, self.c.channel, self.c.seq, kind_of(Code(self.c.no)))

    def decode(self, unpack: Callable[[bytes], Any], got: List[bytes], n: int) -> List[Any]:
        """Makes objects of n payloads."""
        at = f"pgroup: {self.c.verb} #{self.c.seq} of group {quote(self.membership.name)} on rank {self.membership.rank}"
        if len(got) != n:
            raise make(ProtocolError, f"{at}: the store answered with {len(got)} payloads, not {n}: not a muster store")
        out = []
        for rank, b in enumerate(got):
            try:
                out.append(unpack(b))
            except Exception as e:
                whose = rank if n == self.membership.size else self.c.root
                raise make(Invalid, f"{at}: the object of rank {whose}: msgpack: {e}") from None
        return out


def _plain(why: str, also: Kinds) -> Error:
    """Formats an error for the reason of a vote of no; the failure adds the verb in front."""
    return make((*also, Invalid)[0], why)


def data_of(v: Value) -> bytes:
    """Returns the bytes of what a verb of bytes passes."""
    return _arguments.value(_plain, "data", v)


def check_size(n: int) -> None:
    """Refuses an object that no store takes."""
    if n > _wire.MAX_VALUE:
        raise make(TooLarge, f"an object of {n / (1 << 20):.1f} MiB, the limit is {_wire.MAX_VALUE >> 20} MiB")
