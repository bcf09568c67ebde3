"""Calls of many threads, and their answers, on the connection that a session has at the time."""

from __future__ import annotations

import math
import os
import random
import socket
import threading
import time
from typing import Callable, Dict, List, Optional, Sequence, Set

from . import _dial, _stacks, _wire
from ._call import Call, NoAnswer, Numbers, Scope
from ._dial import Line, Target
from ._errors import Busy, Error, Unavailable, kind_of, words_of
from ._turn import Turn
from ._wire import Code, Op, Reply, Request

GRACE = 0.5  # seconds that a verb waits past its deadline for the store's own word
_MOST_NUMBERED = 1000  # open at a time: the store keeps its answers for so many
_MAX_BACKOFF = 0.1  # seconds until a request is sent again that the store could not queue
_DIRECT = 0.02  # seconds for which a caller reads its own answer, before the session's thread does


def _wait_grace(call: Call) -> bool:
    """Waits for GRACE of the time in which this process runs: while it is stopped, on a busy host, at most
    a tenth of it passes, and an answer that has arrived is read first.
    """
    return any(call.wait(time.monotonic() + GRACE / 10) for _ in range(10))


INTERRUPTED = "a signal handler has interrupted a call of this thread, and cannot call the store: let the handler set a flag"


class Goodbye(Exception):
    """The store has shut down."""


class Failed(Exception):
    """The store has failed, and says why."""


class Calls:
    """The open calls of a session. The session's thread makes its connections, and ends them."""

    def __init__(self, target: Target, line: Line) -> None:
        self.target = target
        self._pid = os.getpid()
        self._turn = Turn()  # of reading
        self._lock = threading.RLock()  # protects the fields below; it is not entered twice: see _check_caller
        self._cond = threading.Condition(self._lock)
        self._interrupted: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        self._line: Optional[Line] = line
        self._calls: Dict[int, Call] = {}
        self._cancelled: Dict[int, Request] = {}  # the cancels of calls that the store was asked to give up
        self._last = 0
        self._numbers = Numbers()
        self._closed = False
        self.at_close: Set[Callable[[], None]] = set()  # called by close; a set's own calls are atomic
        self._wanted = False  # a call waits for a connection
        self._tick_time = min(target.silence / 10, 1.0)
        self._fruitless = 0  # connections in a row that have ended without an answer; of the thread that reads
        self._silent = 0  # ticks since something came, while calls wait
        self._since = 0.0  # when the connection ended; 0 while there is one
        self._why = NoAnswer(Code.UNAVAILABLE)  # it did
        self.failed = ""  # why the store has failed, in its words
        self._lost: Optional[NoAnswer] = None  # why the first session is not this one
        self._joined: Set[int] = set()  # generations in which this session has a member
        self._leases: Set[int] = set()

    def do(self, call: Call, until: float) -> Reply:
        """Returns the store's answer, or raises NoAnswer.

        A call that waits is given a little more than until, for the store's word.
        """
        self._check_caller()
        if call.task is not None:
            call.task.made_by(self.end)
        try:
            self._register(call, until)
            if call.line is not None:
                self._read_answer(call, call.line, until)
            if call.wait(until) or call.op in _wire.WAITS and _wait_grace(call):
                return _result(call)
        except BaseException:  # a signal: the caller no longer waits
            self._turn.give_back(need=True)
            self._give_up(call)
            raise
        sent = self._give_up(call, Code.TIMEOUT)
        if sent is None:  # the answer came just now
            call.wait(math.inf)
            return _result(call)
        if call.leaves:
            self._end_rank(call.generation, call.rank)
        raise self._late(call, sent)

    def _check_caller(self) -> None:
        """Refuses a fork of the process, before it touches a lock: a thread that the fork does not
        have may have held it. Refuses a signal handler that has interrupted its own thread while
        that holds the lock: what the lock protects is half done.
        """
        if os.getpid() != self._pid:
            raise NoAnswer(Code.CLOSED, detail="it was opened in another process, of which this is a fork")
        if self._interrupted():
            raise NoAnswer(Code.WOULD_BLOCK, INTERRUPTED, also=(Busy,))

    def _read_answer(self, call: Call, line: Line, until: float) -> None:
        """Reads in the caller's thread for a moment, unless another thread does.

        A signal that ends it ends the connection: part of a frame may be lost.
        """
        turn = self._turn
        if turn.mine():  # this is a signal's handler, in the middle of a read: another connection has whole frames
            line.error = OSError("a signal interrupted a read")
            line.pipe.kill()
            turn.give_back(need=True)
        elif until - time.monotonic() < 2 * _DIRECT or not turn.take():
            turn.give_back(need=True)  # even if another caller reads, which may just have ended
        else:
            began = 0.0
            try:
                while line is self._line and not call.ended:
                    began = time.monotonic()
                    h, body = line.read(_DIRECT)
                    self._received(line, h, body)
            except BaseException as e:
                if _quiet(e, began):
                    return
                ours = isinstance(e, Exception) and _of_connection(e)
                line.error = e if isinstance(e, Exception) and ours else OSError("a signal interrupted a read")
                line.pipe.kill()
                if not ours:
                    raise
            finally:
                turn.give_back(need=bool(self._calls) or line.error is not None)

    def _register(self, call: Call, until: float) -> None:
        """Gives a call its id, and sends it if there is a connection."""
        with self._lock:
            if call.numbered and not self._room(call) and not self._cond.wait_for(lambda: self._room(call), min(max(until - time.monotonic(), 0), threading.TIMEOUT_MAX)):
                raise self._late(call, False)
            if self._closed:
                raise NoAnswer(Code.CLOSED)
            if call.cancelled:
                raise NoAnswer(Code.CANCELLED)
            self._refuse(call)
            self._last += 1
            call.id = self._last
            self._calls[call.id] = call
            if call.numbered:
                self._numbers.held += 1
            if self._line is None:
                self._wanted = True
                self._cond.notify_all()
            else:
                self._transmit(call, self._line)

    def _room(self, call: Call) -> bool:
        if self._closed or call.cancelled or self._numbers.held < _MOST_NUMBERED:
            return True
        self._wanted = self._line is None
        return False

    def _refuse(self, call: Call) -> None:
        """Refuses what is in the name of a rank, or a lease, of a session that is lost."""
        if self._lost is None:
            return
        if call.ranked and call.generation not in self._joined:
            raise NoAnswer(Code.UNAVAILABLE, self._lost.what, "the session in which this rank joined is lost", also=self._lost.also)
        if call.lease and call.lease not in self._leases:
            raise NoAnswer(Code.NOT_FOUND, detail="the session of its lease is lost")

    def _transmit(self, call: Call, line: Line) -> None:
        """Sends a call. Called with the lock, which keeps numbers in their order."""
        try:
            if call.numbered and call.number == 0:
                call.number = self._numbers.next(call)
            call.line = line
            _wire.address(call.frame, call.id, call.number, self._numbers.acked)
            line.pipe.send(call.frame)
        except BaseException:  # a signal: without its number, those behind it would wait
            line.pipe.kill()
            raise

    def _give_up(self, call: Call, code: Code = Code.CANCELLED) -> Optional[bool]:
        """Gives a call up, and returns whether it had been sent; None if it is answered."""
        with self._cond:
            if self._calls.pop(call.id, None) is None:
                return None
            self._cancel(call, code)
            self._numbers.abandon(call)
            return call.line is not None

    def _cancel(self, call: Call, code: Code, why: str = "") -> None:
        """Asks the store to give up a call that waits there, since its deadline has passed
        (TIMEOUT) or it is CANCELLED. Called with the lock.
        """
        if call.op in _wire.WAITS and call.id not in self._cancelled:
            req = self._cancelled[call.id] = Request(Op.CANCEL, id=call.id, group=_wire.Contribution(no=code, reason=why))
            if self._line is not None:
                self._line.pipe.send(_wire.encode(req))

    def end(self, scope: Scope, why: str) -> None:
        """Ends the calls of scope, and refuses later ones: when it returns, the store gets no
        further request of scope. Calls that wait at the store are cancelled; each call has GRACE to
        get its answer. why is the reason that other ranks get.
        """
        self._check_caller()
        with self._cond:
            scope.ended = True
            for call in self._of(scope):
                self._cancel(call, Code.CANCELLED, why)
            self._cond.notify_all()  # calls that wait for a number
            self._cond.wait_for(lambda: not self._of(scope), GRACE)
            self._end_calls(self._of(scope), NoAnswer(Code.CANCELLED))

    def _end_rank(self, generation: int, rank: int) -> None:
        """Ends the calls of a rank which has left, as the store does when it learns of that."""
        with self._cond:
            self._end_calls([call for call in self._calls.values() if (call.generation, call.rank) == (generation, rank)], NoAnswer(Code.CANCELLED))

    def _of(self, scope: Scope) -> List[Call]:
        return [call for call in self._calls.values() if scope in call.scopes]

    def _late(self, call: Call, sent: bool) -> NoAnswer:
        """Is the error of a call whose deadline has passed: it says what is known of the store."""
        what = words_of(Code.TIMEOUT)
        e = NoAnswer(Code.TIMEOUT, what)
        if self._since:
            since = time.monotonic() - self._since
            e = NoAnswer(Code.TIMEOUT, what, f"not connected for {since:.3g}s: {self._why.detail}", self.target.addr)
        elif self._silent:
            e = NoAnswer(Code.TIMEOUT, what, f"nothing received from the store for {self._silent * self._tick_time:.3g}s", self.target.addr)
        return e.unknown() if sent and call.numbered else e

    def _received(self, line: Line, h: _wire.Header, body: bytes) -> None:
        self._silent = 0
        if h.id == 0:
            if h.op == Op.GOODBYE:
                raise Failed(_wire.parse_reply(h, body).detail) if h.code == Code.UNAVAILABLE else Goodbye("it has shut down")
            if h.op == Op.PROBE:
                line.pipe.send(_wire.encode(Request(Op.PROBE)))
            if h.op == Op.STACKS:
                line.pipe.send(_wire.encode(Request(Op.STACKS, value=_stacks.text())))
            return
        self._fruitless = 0
        if h.op == Op.GOODBYE:
            self._refused(h, body)
            return
        if h.code == Code.AGAIN and h.id in self._calls:
            timer = threading.Timer(random.uniform(0.01, _MAX_BACKOFF), self._send_again, (h.id, line))
            timer.daemon = True
            timer.start()
            return
        reply, error = Reply(), None
        try:
            reply = _wire.parse_reply(h, body)
        except Exception as e:
            error = e
        with self._lock:  # a signal may end it at any place: what has been done is not done again when the session is resumed
            call = self._calls.get(h.id)
            if call is not None:
                error = error or call.answer(reply)
                if error is None and h.code == Code.OK:
                    self._note(call)
                call.end(self._broken(error) if error is not None else None)
            held = self._numbers.held
            self._numbers.answered(h.id, call)
            if call is not None:
                del self._calls[h.id]  # otherwise it is a cancel's answer, or that of a call that was given up
            if self._cancelled:
                self._cancelled.pop(h.id, None)
            if held == _MOST_NUMBERED or call is not None and call.cancelled:
                self._cond.notify_all()
        if error is not None:
            raise error

    def _send_again(self, call_id: int, line: Line) -> None:
        """Sends a call again that the store could not queue, unless it was cancelled or
        its connection has ended.
        """
        with self._cond:
            call = self._calls.get(call_id)
            if call is None or self._line is not line:
                return
            self._transmit(call, line)
            if call_id in self._cancelled:
                line.pipe.send(_wire.encode(self._cancelled[call_id]))

    def _refused(self, h: _wire.Header, body: bytes) -> None:
        """Ends the call whose frame the store cannot read: to send it again would bring that again.

        Its number is skipped when the session is resumed.
        """
        reply = _wire.parse_reply(h, body)
        with self._cond:
            call = self._calls.pop(h.id, None)
            self._cancelled.pop(h.id, None)
            if call is not None:
                self._numbers.abandon(call)
        if call is not None:
            code, why = reply.code, "the store refuses the request: " + reply.detail
            if call.stalls and "unknown flags" in reply.detail:
                code, why = Code.UNSUPPORTED, "the store is too old for stalls: update it, or do without stall (MUSTER_STALL)"
            call.end(NoAnswer(code, words_of(code), why, self.target.addr, kind_of(code)))

    def _note(self, call: Call) -> None:
        """Notes that a rank has joined in this session, or that a lease is its. Called with the
        lock.
        """
        if call.op == Op.JOIN:
            self._joined.add(call.reply.rev)
        elif call.op == Op.GRANT:
            self._leases.add(call.reply.n)
        elif call.op == Op.REVOKE:
            self._leases.discard(call.lease)

    def _broken(self, e: Exception) -> NoAnswer:
        """Is why a connection has ended."""
        if isinstance(e, Failed):
            self.failed = str(e)
        code = Code.LEFT if isinstance(e, Goodbye) else Code.UNAVAILABLE
        detail = "it closed the connection" if isinstance(e, EOFError) else _dial.words(e)
        return NoAnswer(code, words_of(Code.UNAVAILABLE), detail, self.target.addr, (Unavailable,))

    def _end_calls(self, calls: Sequence[Call], e: NoAnswer) -> None:
        """Ends calls with e. Called with the lock."""
        for call in calls:
            del self._calls[call.id]
            self._numbers.abandon(call)
            call.end(call.outcome(e))
        self._cond.notify_all()


def _quiet(e: BaseException, began: float) -> bool:
    """Reports whether e says that nothing came, and is not the exception of a signal's handler."""
    return isinstance(e, socket.timeout) and e.args == ("timed out",) and time.monotonic() - began >= 0.9 * _DIRECT


def _of_connection(e: BaseException) -> bool:
    """Reports whether e is how a connection ends, which the session's thread reports."""
    return isinstance(e, (EOFError, Goodbye, Failed, _wire.Malformed, Error)) or isinstance(e, OSError) and e.errno is not None


def _result(call: Call) -> Reply:
    if call.error is not None:
        raise call.error
    return call.reply
