"""A call of a session: its request, the answer that it waits for, and the number under which it is
carried out once.
"""

from __future__ import annotations

import threading
import time
from contextvars import ContextVar
from typing import Callable, Dict, List, Optional, Tuple

from . import _wire
from ._dial import Line
from ._errors import Kinds, Unknown, words_of
from ._wire import Code, Op, Reply, Request

RANKED = frozenset({Op.LEAVE, Op.FOLLOW, Op.COLLECT, Op.SEND, Op.RECV, Op.EXPIRED, Op.SEND_READY, Op.CLOSE_CHANNEL, Op.ACK, Op.PROGRESS})

_HAS_LISTS = frozenset({Op.WAIT, Op.LIST, Op.WATCH})


class NoAnswer(Exception):
    """A call has no answer from the store: why, and what the error is that its caller gets."""

    def __init__(self, code: Code, what: str = "", detail: str = "", addr: str = "", also: Kinds = ()) -> None:
        super().__init__(detail)
        self.code, self.what, self.detail, self.addr, self.also = code, what or words_of(code), detail, addr, also

    def unknown(self) -> "NoAnswer":
        """Is the same of a call that may have taken effect."""
        return NoAnswer(self.code, "outcome unknown: " + self.what, self.detail, self.addr, (*self.also, Unknown))


class Scope:
    """Calls that Session.end ends together: those of one use of a channel, or of a task."""

    ended = False  # the session's lock protects it


class Task(Scope):
    """The calls of one verb, which another thread may cancel: they are made in a context whose task
    this is.
    """

    def __init__(self) -> None:
        self._end: Optional[Callable[[Scope, str], None]] = None  # of the session of the last call

    def made_by(self, end: Callable[[Scope, str], None]) -> None:
        """Notes the session of a call, before that looks whether the task has ended."""
        self._end = end

    def cancel(self) -> None:
        """Cancels the calls, here and at the store: it may wait for their answers for a moment."""
        self.ended = True
        if self._end is not None:
            self._end(self, "the task was cancelled")


task: ContextVar[Optional[Task]] = ContextVar("task", default=None)
_NEVER_CANCELLED = frozenset({Op.LEAVE, Op.CLOSE_CHANNEL, Op.REVOKE})  # the end of something, which a cancelled verb may need too; so is a vote of no


class Call:
    """A request that waits for its answer."""

    def __init__(self, req: Request, scope: Optional[Scope] = None) -> None:
        self.op = req.op
        self.scopes: Tuple[Scope, ...] = () if scope is None else (scope,)
        self.task = task.get()
        if self.task is not None and req.op not in _NEVER_CANCELLED and not req.group.no:
            self.scopes += (self.task,)
        self.numbered = req.op in _wire.NUMBERED
        self.ranked = req.op in RANKED or req.op == Op.JOIN and req.group.generation != 0
        self.generation, self.rank = req.group.generation, req.group.rank
        self.leaves = req.op == Op.LEAVE and req.group.no == Code.OK
        self.stalls = req.group.stall > 0
        self.lease = req.lease
        self.after = req.after
        self._keys = len(req.keys)
        if self.numbered:
            req.number = 1  # its place: the number is given when it is sent
        self.frame = _wire.encode(req)
        self.id = 0
        self.number = 0
        self.line: Optional[Line] = None  # that it was sent on last
        self.reply = Reply()
        self.error: Optional[NoAnswer] = None
        self.ended = False
        self._done = threading.Lock()
        self._done.acquire()

    @property
    def cancelled(self) -> bool:
        """Whether it is refused, or was cancelled, with one of its scopes."""
        for scope in self.scopes:
            if scope.ended:
                return True
        return False

    def answer(self, rep: Reply) -> Optional[_wire.Malformed]:
        """Notes the answer, and returns the error of one that has less than the call asks for."""
        if self.op in _HAS_LISTS and rep.code == Code.OK:
            keys, values, nums = len(rep.keys or ()), len(rep.values or ()), len(rep.nums or ())
            if values != self._keys if self.op == Op.WAIT else values != keys or nums != 2 * keys:
                return _wire.Malformed("an answer without all that was asked for")
        self.reply = rep
        return None

    def end(self, error: Optional[NoAnswer] = None) -> None:
        """Ends it. The first outcome counts."""
        if not self.ended:
            self.error = error
            self.ended = True
            self._done.release()

    def wait(self, until: float) -> bool:
        """Reports whether it has ended by then."""
        return self._done.acquire(timeout=min(max(until - time.monotonic(), 0), threading.TIMEOUT_MAX))

    def outcome(self, e: NoAnswer) -> NoAnswer:
        """Returns the error for it after e: Unknown too, if it is a change that was sent."""
        return e.unknown() if self.numbered and self.line is not None and e.code != Code.CLOSED else e


class _Numbered:
    """A number that has no answer yet, or that those before it wait for."""

    def __init__(self, call: Call) -> None:
        self.id = call.id
        self.call: Optional[Call] = call  # None if it was given up
        self.answered = False


class Numbers:
    """The numbers of requests that change something: 1, 2, 3 … in the order in which they are sent."""

    def __init__(self, held: int = 0) -> None:
        self.acked = 0  # the answers to all up to this one have come
        self.open: List[_Numbered] = []  # from acked+1 on
        self.held = held  # requests that have a number, or will get one
        self._gone: Dict[int, int] = {}  # numbers of calls that were given up, by id

    def next(self, call: Call) -> int:
        self.open.append(_Numbered(call))
        return self.acked + len(self.open)

    def abandon(self, call: Call) -> None:
        """Abandons call: no thread waits for it.

        If it was sent, its number stays open until it is answered.
        """
        if call.number:
            self.open[call.number - self.acked - 1].call = None
            self._gone[call.id] = call.number
        elif call.numbered:
            self.held -= 1

    def answered(self, call_id: int, call: Optional[Call]) -> None:
        number = call.number if call is not None else self._gone.pop(call_id, 0)
        if number == 0:
            return
        self.open[number - self.acked - 1].answered = True
        n = 0
        while n < len(self.open) and self.open[n].answered:
            n += 1
        del self.open[:n]
        self.acked += n
        self.held -= n
