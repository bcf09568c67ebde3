"""One collective verb: one sequence number, and one vote."""

from __future__ import annotations

import time
import traceback
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Tuple

from . import _arguments, _arrays, _objects, _wire, _world
from ._arguments import Value
from ._errors import Cancelled, Error, Failed, Invalid, InvalidType, Kinds, Mismatch, ProtocolError, RankError, StoreError, Timeout, TooLarge, clip, kind_of, make, quote
from ._calls import GRACE
from ._span import Span
from ._wire import WANT_NOTHING, Code, Contribution, Op, Request, Failure

if TYPE_CHECKING:
    from ._group import Group

SHUTDOWN = "\0shutdown"  # the channel where shutdown meets
BYTES = "[]byte"  # the type of what passes as it is
INT64, FLOAT64 = 2, 6  # kinds of what is folded
_NO_ROOT: Any = object()


class Verb:
    """One collective verb of one rank: it takes one sequence number and sends one vote in any case.

    Whatever is raised in the with statement before this rank has voted makes its vote no, so that no
    rank waits for it: all ranks get the text, and this one a RankError with the exception as its
    cause. One that is no Exception, such as KeyboardInterrupt, is raised when the vote is cast.
    """

    def __init__(
        self,
        g: Group,
        verb: str,
        timeout: Optional[float],
        *,
        root: Any = _NO_ROOT,
        kind: str = "",
        want: int = WANT_NOTHING,
        root_only: bool = False,
        stall: Optional[float] = None,
    ) -> None:
        self.g, self.membership = g, g._membership
        self.c = Contribution(verb=verb, root=-1, type=kind, want=want, root_only=root_only, channel=g._channel)
        self.payload = b""
        self._timeout, self._root, self._stall = timeout, root, stall
        self._voted = False

    def __enter__(self) -> "Verb":
        self.g._begin(self.c.verb)
        self.span = Span(self.membership.trace, self.c.verb, self.membership, self.c.channel)
        if not self.g._busy.acquire(blocking=False):
            raise self.g._busy_error(self.c.verb)
        try:
            self.g._seq += 1
            self.c.generation, self.c.rank, self.c.seq = self.membership.generation, self.membership.rank, self.g._seq
            self.span.seq = self.g._seq
            self.until = self.membership.until(plain, self._timeout)
            self.c.stall = int(1e9 * (self.membership.config.stall if self._stall is None else _arguments.stall(plain, self._stall)))
            if self._root is not _NO_ROOT:
                self.c.root = self._check_root()
        except BaseException as e:
            self.__exit__(type(e), e, e.__traceback__)
            raise
        return self

    def __exit__(self, _: object, e: Optional[BaseException], at: object) -> None:
        try:
            if e is not None and self.c.seq and not self._voted:
                refused = self._refuse(e)
                if isinstance(e, Exception):
                    e, cause = refused, e
                    raise refused from cause
        finally:
            try:
                self.span.__exit__(None, e, at)
            finally:
                self.g._busy.release()

    def _check_root(self) -> int:
        root = _arguments.whole(plain, "root", self._root)
        if not 0 <= root < self.membership.size:
            raise make(Invalid, f"root {root} of a group of {self.membership.size}: ranks are 0 to {self.membership.size - 1}")
        return root

    def named(self, name: str) -> None:
        """Has the store compare a name of the verb with that of other ranks."""
        n = len(_wire.text(_arguments.text(plain, "name", name)))
        if n > _wire.MAX_KEY:
            raise make(TooLarge, f"a name of {n} bytes, the limit is {_wire.MAX_KEY}")
        self.c.label = name

    def pack(self, obj: Any) -> None:
        """Makes obj what this rank brings."""
        self.brings(_objects.pack(obj))

    def brings(self, payload: bytes) -> None:
        """Makes bytes what this rank brings."""
        check_size(len(payload))
        self.payload = payload

    def numbers(self, ns: Any) -> Tuple[List[Any], int, str]:
        """Returns what is to be reduced, its kind, and its form as module struct has it."""
        out = [_arrays.scalar(n) for n in _arguments.several(plain, "numbers", ns)]
        for i, n in enumerate(out):
            if isinstance(n, bool) or not isinstance(n, (int, float)):
                raise _arguments.of_type(plain, f"number {i}", "an int or a float", n)
            if isinstance(n, int):
                _arguments.between(plain, f"number {i}", n, *_arguments.INT64)
        return (out, INT64, "q") if all(isinstance(n, int) for n in out) else (out, FLOAT64, "d")

    def pack_parts(self, objs: Optional[Sequence[Any]]) -> None:
        """Makes one object for each rank what this rank brings."""
        objs = _arguments.several(plain, "objs", [] if objs is None else _arrays.parts(objs))
        if len(objs) != self.membership.size:
            raise make(Invalid, f"{len(objs)} objects for a group of {self.membership.size}")
        self.brings(_wire.encode_parts([_objects.pack(v) for v in objs]))

    def typed(self, obj: Any, receives: bool = False) -> None:
        """Has the store compare the dtype and shape of an array with those of other ranks."""
        if not _arrays.library(obj):
            return
        self.c.type = str(_arrays.of(obj))
        if receives and not _arrays.writable(obj):
            raise make(Invalid, f"an array {self.c.type} that is read-only cannot receive root's")

    def received(self, obj: Any, got: Any) -> Any:
        """Returns what another rank has sent, in the array that this rank has passed for it."""
        if not isinstance(got, _arrays.Array) or not _arrays.library(obj):
            return got
        mine = _arrays.of(obj)
        if mine is None or str(mine) != str(got):  # a Go rank does not name its shape
            raise make(Mismatch, f"{self._at()}: rank {self.c.root} has {got}, rank {self.membership.rank} has {mine}")
        return _arrays.fill(obj, got)

    def _at(self) -> str:
        return f"pgroup: {self.c.verb} #{self.c.seq} of group {quote(self.membership.name)} on rank {self.membership.rank}"

    def cast(self) -> List[bytes]:
        """Votes, and returns what the decided record brings."""
        if self.until <= time.monotonic():
            raise make(Timeout, "the deadline had passed")
        got, last, error = self._vote(self.until)
        if isinstance(error, (Cancelled, TooLarge)) and error.failure is None and not self.g._is_closed():
            # Perhaps before the vote was sent. If it was, a vote of no changes nothing.
            raise make(Cancelled, "the task was cancelled") if isinstance(error, Cancelled) else error
        self._voted = True
        self.span.answered(self.payload, got, last)
        if error is not None:
            raise self.g._fault(self.c.verb, self.c.seq, error)
        return got

    def _vote(self, until: float) -> Tuple[List[bytes], int, Optional[StoreError]]:
        """Returns the wanted part of the decided record and the rank that came last, or an error."""
        self.span.waits()
        waiting = [p for p in (self.membership.progress, _world._alone) if p is not None]
        for p in waiting:
            p.waits(1)
        try:
            return (*self.g._calls._collect(Request(Op.COLLECT, value=self.payload, group=self.c), until), None)
        except StoreError as e:
            return [], -1, e
        finally:
            for p in waiting:
                p.waits(-1)

    def _refuse(self, e: BaseException) -> RankError:
        """Votes no because of e, and returns the error of the verb: the failure of all ranks, or that
        reason if the store has given none.
        """
        c, self.payload = self.c, b""
        c.no, c.reason, c.want = _code(e), clip(words(e), 512), WANT_NOTHING
        if c.root < 0:
            c.root_only = False
        _, _, error = self._vote(time.monotonic() + GRACE)
        v = Failure(Code(c.no), by=self.membership.rank, reason=c.reason)
        if error is not None and error.failure is not None:
            v = error.failure
        also = (InvalidType,) if isinstance(e, InvalidType) else kind_of(Code(c.no))
        return self.membership.error(c.verb, v, self.g._shown(), c.seq, also)

    def decode(self, unpack: Callable[[bytes], Any], got: List[bytes], n: int) -> List[Any]:
        """Makes objects of n payloads."""
        if len(got) != n:
            raise make(ProtocolError, f"{self._at()}: the store answered with {len(got)} payloads, not {n}: not a muster store")
        out = []
        for rank, b in enumerate(got):
            try:
                out.append(unpack(b))
            except Exception as e:
                whose = rank if n == self.membership.size else self.c.root
                raise make(Invalid, f"{self._at()}: the object of rank {whose}: {words(e)}") from None
        return out


def _code(e: BaseException) -> Code:
    """Returns the code of a vote of no."""
    if not isinstance(e, Exception):
        return Code.CANCELLED
    if isinstance(e, OSError) and not isinstance(e, Error):
        return Code.FAILED
    return e.code if isinstance(e, (TooLarge, Timeout, Cancelled, Failed)) else Code.INVALID


def words(e: BaseException) -> str:
    """Returns the text of an error of this package, and the class too of any other one."""
    says = traceback.format_exception_only(type(e), e)[0].strip()  # even if its __str__ raises
    return says.partition(": ")[2] if isinstance(e, Error) else says


def plain(why: str, also: Kinds) -> Error:
    """Formats an error for the reason of a vote of no; the failure adds the verb in front."""
    return make((*also, Invalid)[0], why)


def data_of(v: Value) -> bytes:
    """Returns the bytes of what a verb of bytes passes."""
    return _arguments.value(plain, "data", v)


def check_size(n: int) -> None:
    """Refuses an object that no store takes."""
    if n > _wire.MAX_VALUE:
        size = f"an object of {n / (1 << 20):.1f} MiB, the limit is {_wire.MAX_VALUE >> 20} MiB"
        raise make(TooLarge, f"{size}: send it in slices, or tensors with package gather or collective of Go")
