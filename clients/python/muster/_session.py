"""A session with a store: calls that many threads share, and one connection at a time.

A thread of the session's own reads for all, so that it answers the store's probes whatever the callers do. When the
connection breaks, it dials again, takes the session up, and repeats what has no answer: what changes something under its
number, so that it takes effect once, the rest under its id.
"""

from __future__ import annotations

import math
import os
import random
import socket
import threading
import time
from typing import Dict, List, Optional, Set

from . import _dial, _wire
from ._connect import Attempt
from ._dial import Dialer, Line, Told
from ._errors import (
    Compacted,
    Denied,
    Error,
    Invalid,
    Kinds,
    ProtocolError,
    SessionLost,
    Unavailable,
    Unknown,
    kind_of,
    words_of,
)
from ._wire import Code, Op, Reply, Request

GRACE = 0.25  # seconds that a verb waits past its deadline for the store's own word
_DECIDES = frozenset({Op.JOIN, Op.COLLECT, Op.RECV})
_RANKED = frozenset({Op.LEAVE, Op.FOLLOW, Op.COLLECT, Op.SEND, Op.RECV, Op.EXPIRE, Op.ROOM})
_MOST_NUMBERED = 1000  # open at a time: the store keeps its answers for so many
_FIRST_PAUSE, _MOST_PAUSE = 0.005, 0.25
_MEND = 5.0  # seconds for which a store that keeps nothing is looked for: its sessions are lost by then
_GOODBYE = 1.0  # seconds that close waits for the store to have heard it
_ASK_AFTER, _ASK_EVERY, _MOST_SILENCE = 2, 5, 15  # seconds


class NoAnswer(Exception):
    """A call has no answer from the store: why, and what the error is that its caller gets."""

    def __init__(self, code: Code, what: str = "", detail: str = "", addr: str = "", also: Kinds = ()) -> None:
        super().__init__(detail)
        self.code, self.what, self.detail, self.addr, self.also = code, what or words_of(code), detail, addr, also

    def unknown(self) -> "NoAnswer":
        """Is the same of a call that may have taken effect."""
        return NoAnswer(self.code, "outcome unknown: " + self.what, self.detail, self.addr, (*self.also, Unknown))


class Call:
    """A request that waits for its answer."""

    def __init__(self, req: Request) -> None:
        self.op = req.op
        self.numbered = req.op in _wire.NUMBERED
        self.ranked = req.op in _RANKED or req.op == Op.JOIN and req.group.generation != 0
        self.generation = req.group.generation
        self.lease = req.lease
        self.rev = req.rev
        self._keys = len(req.keys)
        if self.numbered:
            req.number = 1  # its place: the number is given when it is sent
        self.frame = _wire.encode(req)
        self.id = 0
        self.number = 0
        self.line: Optional[Line] = None  # that it was sent on last
        self.reply = Reply()
        self.error: Optional[NoAnswer] = None
        self._done = threading.Lock()
        self._done.acquire()

    def answer(self, rep: Reply) -> None:
        """Notes the answer. One that has less than the call asks for is none."""
        keys, values, nums = len(rep.keys or ()), len(rep.values or ()), len(rep.nums or ())
        if self.op in (Op.WAIT, Op.TAKE):
            fits = values == self._keys
        else:
            fits = self.op not in (Op.LIST, Op.CHANGES) or values == keys and nums == 2 * keys
        if rep.code == Code.OK and not fits:
            raise _wire.Malformed("an answer without all that was asked for")
        self.reply = rep

    def end(self, error: Optional[NoAnswer] = None) -> None:
        self.error = error
        self._done.release()

    def wait(self, until: float) -> bool:
        """Reports whether it has ended by then."""
        return self._done.acquire(timeout=min(max(until - time.monotonic(), 0), threading.TIMEOUT_MAX))

    def outcome(self, e: NoAnswer) -> NoAnswer:
        """Is what e means for it: if it changes something and was sent, nobody knows."""
        return e.unknown() if self.numbered and self.line is not None and e.code != Code.CLOSED else e


class _Numbered:
    """A number that has no answer yet, or that those before it wait for."""

    def __init__(self, call: Call) -> None:
        self.id = call.id
        self.call: Optional[Call] = call  # None if it was given up
        self.answered = False


class _Numbers:
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
        """Notes that nobody waits for call. If it was sent, its number stays open until it is answered."""
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


class _Goodbye(Exception):
    """The store has shut down."""


class Session:
    """One session. Its threads are daemons: a process that ends without close is lost to the store, as it should be."""

    def __init__(self, dialer: Dialer, line: Line) -> None:
        self._dialer = dialer  # of the thread
        self.target = dialer.target
        self._pid = os.getpid()
        self._attempt = Attempt()  # to take the session up again
        self._cond = threading.Condition(threading.Lock())  # its lock protects the fields below
        self._line: Optional[Line] = line
        self._calls: Dict[int, Call] = {}
        self._cancelled: Set[int] = set()  # calls that the store was told to give up
        self._last = 0
        self._numbers = _Numbers()
        self._closed = False
        self._wanted = False  # somebody waits for a connection
        self._silent = 0  # seconds since something was heard, while calls wait
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
        self._relayed = _dial.relayed(w)  # that nobody is there says nothing of the store
        self._joined: Set[int] = set()
        self._leases: Set[int] = set()

    def do(self, call: Call, until: float) -> Reply:
        """Returns the store's answer, or raises NoAnswer. A call that waits is given a little more than until, for the store's word."""
        self._check_process()
        try:
            self._register(call, until)
            if call.wait(until) or call.op in _wire.WAITS and call.wait(time.monotonic() + GRACE):
                return _result(call)
        except BaseException:  # a signal: nobody waits for it any more
            self._give_up(call)
            raise
        sent = self._give_up(call)
        if sent is None:  # the answer came just now
            call.wait(math.inf)
            return _result(call)
        raise self._late(call, sent)

    def _check_process(self) -> None:
        """Refuses a fork of the process, before it touches a lock: a thread that the fork does not have may have held it."""
        if os.getpid() != self._pid:
            raise NoAnswer(Code.CLOSED, detail="it was opened in another process, of which this is a fork")

    def _register(self, call: Call, until: float) -> None:
        """Gives a call its id, and sends it if there is a connection."""
        with self._cond:
            if call.numbered and not self._cond.wait_for(self._room, min(max(until - time.monotonic(), 0), threading.TIMEOUT_MAX)):
                raise self._late(call, False)
            if self._closed:
                raise NoAnswer(Code.CLOSED)
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

    def _room(self) -> bool:
        if self._closed or self._numbers.held < _MOST_NUMBERED:
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

    def _give_up(self, call: Call) -> Optional[bool]:
        """Gives a call up, and returns whether it had been sent; None if it is answered."""
        with self._cond:
            if self._calls.pop(call.id, None) is None:
                return None
            if call.op in _wire.WAITS:
                self._cancelled.add(call.id)
                if self._line is not None:
                    self._line.pipe.send(_wire.encode(Request(Op.CANCEL, id=call.id)))
            self._numbers.abandon(call)
            return call.line is not None

    def _late(self, call: Call, sent: bool) -> NoAnswer:
        """Is the error of a call whose deadline has passed: it says what is known of the store."""
        what = words_of(Code.TIMEOUT)
        e = NoAnswer(Code.TIMEOUT, what)
        if self._since:
            since = time.monotonic() - self._since
            e = NoAnswer(Code.TIMEOUT, what, f"there is no connection since {since:.3g}s: {self._why.detail}", self.target.addr)
        elif self._silent:
            e = NoAnswer(Code.TIMEOUT, what, f"it has been silent for {self._silent} s", self.target.addr)
        return e.unknown() if sent and call.numbered else e

    def close(self) -> None:
        """Says goodbye, and waits shortly until the store has heard it. Calls in progress end at once. It may be called twice."""
        if os.getpid() != self._pid:
            return
        with self._cond:
            first, self._closed = not self._closed, True
            self._end_all(NoAnswer(Code.CLOSED))
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
            except Exception as e:  # whatever ends the connection is told to those who wait for it
                line.pipe.close()
                self._broke(e)
            line = self._mend()

    def _read_on(self, line: Line) -> None:
        """Reads until the connection ends, and raises why."""
        while True:
            try:
                h, body = line.read(1.0)
            except socket.timeout:
                if not self._tick(line):
                    raise socket.timeout("it was silent for too long") from None
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
        with self._cond:
            call = self._calls.pop(h.id, None)
            self._cancelled.discard(h.id)
            held = self._numbers.held
            self._numbers.answered(h.id, call)
            if self._numbers.held < held:
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
        """Is a second in which nothing came: the store is asked, and given up in the end."""
        with self._cond:
            if not self._calls:
                self._silent = 0
                return True
            self._silent += 1
            if self._silent >= _MOST_SILENCE:
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
            self._why = self._broken(error)
            self._wanted = True  # also if nobody calls: the session is to be kept
            if isinstance(error, _wire.Malformed) or isinstance(error, _Goodbye) and not self._durable:
                self._end_all(self._why)
                self._wanted = False  # the next call tries

    def _end_all(self, e: NoAnswer) -> None:
        """Ends all calls with e. Called with the lock."""
        for call in self._calls.values():
            self._numbers.abandon(call)
            call.end(call.outcome(e))
        self._calls.clear()
        self._cond.notify_all()

    def _mend(self) -> Optional[Line]:
        """Dials until there is a connection, and returns it; None when the session is closed."""
        while True:
            with self._cond:
                self._cond.wait_for(lambda: self._wanted or self._closed)
            began, pause = time.monotonic(), 0.0
            while not self._pause(pause):
                try:
                    line = self._dialer.dial(math.inf, self._resume(), self._attempt)
                except Exception as e:  # whatever ends the dialing ends the calls that wait for it
                    if self._hopeless(e, time.monotonic() - began):
                        self._fail(e)
                        break
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
        """Reports whether the store need not be looked for any more: one that keeps nothing, and is not there, took everything with it."""
        if isinstance(e, (Denied, ProtocolError, Invalid)) or isinstance(e, Told) and e.code == Code.DENIED:
            return True
        if self._durable:
            return False
        if isinstance(e, (EOFError, socket.timeout)):
            return tried > _MEND
        return not _dial.nobody_there(e) or _dial.refused(e) and not self._dialer.elsewhere(e, self._relayed) or tried > _MEND

    def _fail(self, e: Exception) -> None:
        """Ends the calls that wait for a connection. The next one tries again."""
        with self._cond:
            self._wanted = False
            why = self._why
            if isinstance(e, Told) and not _dial.nobody_there(e):
                why = NoAnswer(e.code, words_of(e.code), e.detail, why.addr)
            elif isinstance(e, Error):
                why = NoAnswer(e.code, words_of(e.code), str(e), why.addr, kind_of(e.code))
            elif isinstance(e, Told) or not _dial.refused(e):
                then = e.detail or words_of(e.code) if isinstance(e, Told) else _dial.words(e)
                why = NoAnswer(why.code, why.what, f"{why.detail}; then: {then}", why.addr, why.also)
            self._end_all(why)

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
        """Is a new session, because the store does not know the old one: what was under way in its name is over. Called with the lock."""
        restarted = w.rev != self._incarnation
        what, addr = words_of(Code.UNAVAILABLE), self.target.addr
        why = NoAnswer(Code.UNAVAILABLE, what, "it has been restarted, and has forgotten everything", addr, (Unavailable,))
        if not restarted:
            what += ": this session is lost"
            why = NoAnswer(Code.UNAVAILABLE, what, "the session was not taken up again in time", addr, (Unavailable, SessionLost))
        for call in list(self._calls.values()):
            if call.op == Op.CHANGES and call.rev and restarted:
                end = NoAnswer(Code.COMPACTED, "", "it has been restarted, and its revisions begin anew", addr, (Compacted,))
            elif call.line is not None and (call.numbered or call.op in (Op.JOIN, Op.KEEP)) or call.ranked or call.lease:
                end = call.outcome(why)
            else:
                continue
            del self._calls[call.id]
            call.end(end)
        self._numbers = _Numbers(sum(call.numbered for call in self._calls.values()))
        self._cancelled.clear()
        self._welcome(w)
        self._lost = why
        self._cond.notify_all()

    def _repeat(self, line: Line) -> None:
        """Sends what has no answer: numbered requests in their order, then the others. Called with the lock."""
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
        for call_id in self._cancelled:
            line.pipe.send(_wire.encode(Request(Op.CANCEL, id=call_id)))
        self._cancelled &= self._calls.keys()  # it may never have arrived: then there is no answer to wait for


def _result(call: Call) -> Reply:
    if call.error is not None:
        raise call.error
    return call.reply
