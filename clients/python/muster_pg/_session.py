"""A session with a store: calls that many threads share, and one connection at a time.

A thread of the session's own reads for all, so that it answers the store's probes regardless of the
callers. When the connection breaks, it dials again, takes the session up, and repeats what has no
answer: what changes something under its number, so that it takes effect once, the rest under its
id.
"""

from __future__ import annotations

import math
import os
import random
import socket
import threading
import time
from typing import Dict, List, Optional, Sequence, Set

from . import _dial, _wire
from ._call import Call, NoAnswer, Numbers, Scope
from ._connect import Attempt
from ._dial import Dialer, Line, Refusal
from ._errors import (
    Compacted,
    Denied,
    Error,
    Invalid,
    ProtocolError,
    SessionLost,
    Unavailable,
    kind_of,
    words_of,
)
from ._wire import Code, Op, Reply, Request

GRACE = 0.25  # seconds that a verb waits past its deadline for the store's own word
_DECIDES = frozenset({Op.JOIN, Op.COLLECT, Op.RECV})
_MOST_NUMBERED = 1000  # open at a time: the store keeps its answers for so many
_FIRST_PAUSE, _MOST_PAUSE = 0.005, 0.25
_MEND = 5.0  # seconds for which a store that keeps nothing is looked for: its sessions are lost by then
_MAX_BACKOFF = 0.1  # seconds until a request is sent again that the store could not queue
_GOODBYE = 1.0  # seconds that close waits for the store to receive it
_ASK_AFTER, _ASK_EVERY = 2, 5  # ticks; one is a tenth of the liveness timeout, or a second


class _Goodbye(Exception):
    """The store has shut down."""


class Session:
    """One session.

    Its threads are daemons: a process that ends without close is lost to the store, as it should
    be.
    """

    def __init__(self, dialer: Dialer, line: Line) -> None:
        self._dialer = dialer  # of the thread
        self.target = dialer.target
        self._pid = os.getpid()
        self._attempt = Attempt()  # to take the session up again
        self._cond = threading.Condition(threading.Lock())  # its lock protects the fields below
        self._line: Optional[Line] = line
        self._calls: Dict[int, Call] = {}
        self._cancelled: Dict[int, Request] = {}  # the cancels of calls that the store was asked to give up
        self._last = 0
        self._numbers = Numbers()
        self._closed = False
        self._wanted = False  # a call waits for a connection
        self._tick_time = min(self.target.silence / 10, 1.0)
        self._fruitless = 0  # connections in a row that have ended without an answer; of the thread
        self._silent = 0  # ticks since something came, while calls wait
        self._since = 0.0  # when the connection ended; 0 while there is one
        self._why = NoAnswer(Code.UNAVAILABLE)  # it did
        self._lost: Optional[NoAnswer] = None  # why the first session is not this one
        self._welcome(line.welcome)
        self._thread = threading.Thread(target=self._run, args=(line,), name="muster reader", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # there is no room for a thread
            line.pipe.close()
            raise

    def _welcome(self, w: Reply) -> None:
        self._id, self._incarnation, self._token = w.n, w.rev, w.value
        self._durable = bool(w.nums) and w.nums is not None and w.nums[0] != 0
        self._relayed = _dial.relayed(w)  # then a refused connection does not mean that the store is gone
        self._joined: Set[int] = set()
        self._leases: Set[int] = set()

    def do(self, call: Call, until: float) -> Reply:
        """Returns the store's answer, or raises NoAnswer.

        A call that waits is given a little more than until, for the store's word.
        """
        self._check_process()
        try:
            self._register(call, until)
            if call.wait(until) or call.op in _wire.WAITS and call.wait(time.monotonic() + GRACE):
                return _result(call)
        except BaseException:  # a signal: the caller does not wait any more
            self._give_up(call)
            raise
        sent = self._give_up(call, Code.TIMEOUT)
        if sent is None:  # the answer came just now
            call.wait(math.inf)
            return _result(call)
        raise self._late(call, sent)

    def _check_process(self) -> None:
        """Refuses a fork of the process, before it touches a lock: a thread that the fork does not
        have may have held it.
        """
        if os.getpid() != self._pid:
            raise NoAnswer(Code.CLOSED, detail="it was opened in another process, of which this is a fork")

    def _register(self, call: Call, until: float) -> None:
        """Gives a call its id, and sends it if there is a connection."""
        with self._cond:
            if call.numbered and not self._cond.wait_for(lambda: self._room(call), min(max(until - time.monotonic(), 0), threading.TIMEOUT_MAX)):
                raise self._late(call, False)
            if self._closed:
                raise NoAnswer(Code.CLOSED)
            if call.scope is not None and call.scope.ended:
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
        if self._closed or call.scope is not None and call.scope.ended or self._numbers.held < _MOST_NUMBERED:
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
        self._check_process()
        with self._cond:
            scope.ended = True
            for call in self._of(scope):
                self._cancel(call, Code.CANCELLED, why)
            self._cond.notify_all()  # calls that wait for a number
            self._cond.wait_for(lambda: not self._of(scope), GRACE)
            self._end_calls(self._of(scope), NoAnswer(Code.CANCELLED))

    def _of(self, scope: Scope) -> List[Call]:
        return [call for call in self._calls.values() if call.scope is scope]

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

    def close(self) -> None:
        """Says goodbye, and waits shortly until the store has received it.

        Calls in progress end at once. It may be called twice.
        """
        if os.getpid() != self._pid:
            return
        with self._cond:
            first, self._closed = not self._closed, True
            self._end_calls(list(self._calls.values()), NoAnswer(Code.CLOSED))
            line = self._line
            self._cond.notify_all()
        if line is None:
            self._attempt.end()
        elif first:
            line.pipe.send(_wire.encode(Request(Op.GOODBYE)))
        self._thread.join(_GOODBYE)
        if self._thread.is_alive() and line is not None:
            line.pipe.kill()
            self._thread.join(_GOODBYE)

    # What the thread does.

    def _run(self, first: Line) -> None:
        line: Optional[Line] = first
        while line is not None:
            try:
                self._read_on(line)
            except Exception as e:  # any error ends the waiting calls
                line.pipe.close()
                self._broke(e)
            line = self._reconnect()

    def _read_on(self, line: Line) -> None:
        """Reads until the connection ends, and raises why."""
        while True:
            try:
                h, body = line.read(self._tick_time)
            except socket.timeout:
                if not self._tick(line):
                    raise socket.timeout("it was silent for too long") from None
                if self._silent % _ASK_EVERY == _ASK_AFTER and self._dialer.replaced(line, time.monotonic() + 1, self._attempt):
                    raise socket.timeout("another process leads the store") from None
            else:
                self._received(line, h, body)

    def _received(self, line: Line, h: _wire.Header, body: bytes) -> None:
        self._silent = 0
        if h.id == 0:
            if h.op == Op.GOODBYE:
                raise _Goodbye("it has shut down")
            if h.op == Op.PROBE:
                line.pipe.send(_wire.encode(Request(Op.PROBE)))
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
        with self._cond:
            call = self._calls.pop(h.id, None)
            self._cancelled.pop(h.id, None)
            held = self._numbers.held
            self._numbers.answered(h.id, call)
            if self._numbers.held < held or call is not None and call.scope is not None and call.scope.ended:
                self._cond.notify_all()
        if call is None:
            return  # a cancel's answer, or that of a call that was given up
        try:
            call.answer(_wire.parse_reply(h, body))
        except Exception as e:
            call.end(self._broken(e))
            raise
        if h.code == Code.OK:
            self._note(call)
        call.end()

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
            call.end(NoAnswer(reply.code, words_of(reply.code), "the store refuses the request: " + reply.detail, self.target.addr, kind_of(reply.code)))

    def _note(self, call: Call) -> None:
        """Notes that a rank has joined in this session, or that a lease is its."""
        with self._cond:
            if call.op == Op.JOIN:
                self._joined.add(call.reply.rev)
            elif call.op == Op.GRANT:
                self._leases.add(call.reply.n)
            elif call.op == Op.REVOKE:
                self._leases.discard(call.lease)

    def _tick(self, line: Line) -> bool:
        """Is a tick in which nothing came: the store is asked, and given up in the end."""
        with self._cond:
            if not self._calls and not self._durable:  # a durable one may go on elsewhere, and is lost if this session does not come in time
                self._silent = 0
                return True
            if line.pipe.progress():
                self._silent = 0
                return True
            self._silent += 1
            limit = self.target.silence * (0.75 if self._durable else 1)  # the store ends the session after all of it: there must be time to resume
            if self._silent * self._tick_time >= limit:
                return False
            if self._silent % _ASK_EVERY == _ASK_AFTER:
                line.pipe.send(_wire.encode(Request(Op.PING)))
            return True

    def _broken(self, e: Exception) -> NoAnswer:
        """Is why a connection has ended."""
        code = Code.LEFT if isinstance(e, _Goodbye) else Code.UNAVAILABLE
        detail = "it closed the connection" if isinstance(e, EOFError) else _dial.words(e)
        return NoAnswer(code, words_of(Code.UNAVAILABLE), detail, self.target.addr, (Unavailable,))

    def _broke(self, error: Exception) -> None:
        with self._cond:
            self._line, self._since, self._silent = None, time.monotonic(), 0
            self._fruitless += 1
            self._why = self._broken(error)
            self._wanted = True  # also without calls: the session is kept
            if isinstance(error, _wire.Malformed) or isinstance(error, _Goodbye) and not self._durable:
                self._end_calls(list(self._calls.values()), self._why)
                self._wanted = False  # the next call tries

    def _end_calls(self, calls: Sequence[Call], e: NoAnswer) -> None:
        """Ends calls with e. Called with the lock."""
        for call in calls:
            del self._calls[call.id]
            self._numbers.abandon(call)
            call.end(call.outcome(e))
        self._cond.notify_all()

    def _reconnect(self) -> Optional[Line]:
        """Dials until there is a connection, and returns it; None when the session is closed.

        Between two pauses it tries every address once: of several replicas, one serves.
        """
        while True:
            with self._cond:
                self._cond.wait_for(lambda: self._wanted or self._closed)
            began, pause = time.monotonic(), 0.0
            if self._fruitless > 1:  # one connection after the other has ended without an answer
                pause = min(_FIRST_PAUSE * 2 ** min(self._fruitless - 2, 10), _MOST_PAUSE)
            tries = 0
            while not self._pause(0.0 if tries % len(self._dialer.ways) else pause):
                tries += 1
                try:
                    line = self._dialer.dial(math.inf, self._resume(), self._attempt)
                except Exception as e:  # any error ends the calls that wait for the dial
                    if self._hopeless(e, time.monotonic() - began):
                        self._fail(e)
                        break
                    if tries % len(self._dialer.ways) == 0:
                        pause = min(max(2 * pause, _FIRST_PAUSE), _MOST_PAUSE) * random.uniform(1, 1.5)
                    continue
                return self._adopt(line)
            if self._closed:
                return None

    def _pause(self, seconds: float) -> bool:
        """Waits, and reports whether the session is closed."""
        with self._cond:
            return self._cond.wait_for(lambda: self._closed, seconds)

    def _resume(self) -> Request:
        return Request(Op.HELLO, resume=self._id, rev=self._incarnation, value=self._token)

    def _hopeless(self, e: Exception, tried: float) -> bool:
        """Reports whether the store need not be looked for any more: one that keeps nothing, and is
        not there, took everything with it.
        """
        if isinstance(e, (Denied, ProtocolError, Invalid)) or isinstance(e, Refusal) and e.code == Code.DENIED:
            return True
        if self._durable:
            return False
        if isinstance(e, (EOFError, socket.timeout)):
            return tried > _MEND
        return not _dial.not_served(e) or _dial.refused(e) and not self._dialer.elsewhere(e, self._relayed) or tried > _MEND

    def _fail(self, e: Exception) -> None:
        """Ends the calls that wait for a connection. The next one tries again."""
        with self._cond:
            self._wanted = False
            why = self._why
            if isinstance(e, Refusal) and not _dial.not_served(e):
                why = NoAnswer(e.code, words_of(e.code), e.detail, why.addr)
            elif isinstance(e, Error):
                why = NoAnswer(e.code, words_of(e.code), str(e), why.addr, kind_of(e.code))
            elif isinstance(e, Refusal) or not _dial.refused(e):
                then = e.detail or words_of(e.code) if isinstance(e, Refusal) else _dial.words(e)
                why = NoAnswer(why.code, why.what, f"{why.detail}; then: {then}", why.addr, why.also)
            self._end_calls(list(self._calls.values()), why)

    def _adopt(self, line: Line) -> Optional[Line]:
        """Makes line the connection, and repeats what has no answer."""
        with self._cond:
            if self._closed:
                line.pipe.close()
                return None
            w = line.welcome
            if (w.n, w.rev) != (self._id, self._incarnation):
                self._begin_anew(w)
            self._relayed = _dial.relayed(w)
            self._line, self._since, self._wanted = line, 0.0, False
            self._repeat(line)
            return line

    def _begin_anew(self, w: Reply) -> None:
        """Is a new session, because the store does not know the old one: what was under way in its
        name is over. Called with the lock.
        """
        restarted = w.rev != self._incarnation
        what, addr = words_of(Code.UNAVAILABLE), self.target.addr
        why = NoAnswer(Code.UNAVAILABLE, what, "the store was restarted without its data", addr, (Unavailable,))
        if not restarted:
            what += ": this session is lost"
            why = NoAnswer(Code.UNAVAILABLE, what, "the session was not resumed in time", addr, (Unavailable, SessionLost))
        for call in list(self._calls.values()):
            if call.op == Op.WATCH and call.rev and restarted:
                end = NoAnswer(Code.COMPACTED, "", "the store was restarted, and its revisions start again", addr, (Compacted,))
            elif call.line is not None and (call.numbered or call.op in (Op.JOIN, Op.KEEP_ALIVE)) or call.ranked or call.lease:
                end = call.outcome(why)
            else:
                continue
            del self._calls[call.id]
            call.end(end)
        self._numbers = Numbers(sum(call.numbered for call in self._calls.values()))
        self._cancelled.clear()
        self._welcome(w)
        self._lost = why
        self._cond.notify_all()

    def _repeat(self, line: Line) -> None:
        """Sends what has no answer: numbered requests in their order, then the others.

        Called with the lock.
        """
        acked = self._numbers.acked
        for number, n in enumerate(self._numbers.open, acked + 1):
            if n.call is not None and not n.answered:
                self._transmit(n.call, line)
            elif not n.answered:  # given up: it is not to take effect now, if it has not
                line.pipe.send(_wire.encode(Request(Op.SKIP, id=n.id, number=number, acked=acked)))
        for call_id in sorted(self._calls):
            call = self._calls[call_id]
            if call.line is not line:
                self._transmit(call, line)
        for cancel in self._cancelled.values():
            line.pipe.send(_wire.encode(cancel))
        # A call that was given up may never have arrived: then there is no answer to wait for.
        self._cancelled = {call_id: cancel for call_id, cancel in self._cancelled.items() if call_id in self._calls}


def _result(call: Call) -> Reply:
    if call.error is not None:
        raise call.error
    return call.reply
