"""A session with a store: calls that many threads share, and one connection at a time.

A thread of the session's own reads for all, so that it answers the store's probes regardless of the
callers; a caller may read its own answer meanwhile (see Turn). When the connection breaks, the
thread dials again, takes the session up, and repeats what has no answer: what changes something
under its number, so that it takes effect once, the rest under its id.
"""

from __future__ import annotations

import math
import os
import random
import socket
import threading
import time
from typing import Optional

from . import _dial, _wire
from ._call import NoAnswer, Numbers
from ._calls import INTERRUPTED, Calls, Failed, Goodbye
from ._connect import Attempt
from ._dial import Dialer, Line, Refusal
from ._errors import Busy, Compacted, Denied, Error, Invalid, ProtocolError, SessionLost, Unavailable, kind_of, make, words_of
from ._wire import Code, Op, Reply, Request

_FIRST_PAUSE, _MOST_PAUSE = 0.005, 0.25
_MEND = 5.0  # seconds for which a store that keeps nothing is looked for: its sessions are lost by then
_GOODBYE = 1.0  # seconds that close waits for the store to receive it
_STAY = 0.1  # seconds for which the session's thread reads on, when callers overlap
_ASK_AFTER, _ASK_EVERY = 2, 5  # ticks; one is a tenth of the liveness timeout, or a second


class Session(Calls):
    """One session.

    Its threads are daemons: a process that ends without close is lost to the store, as it should
    be.
    """

    def __init__(self, dialer: Dialer, line: Line) -> None:
        super().__init__(dialer.target, line)
        self._dialer = dialer  # of the thread
        self._attempt = Attempt()  # to take the session up again
        self._dropped = False  # no Store is left that could close it
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
        self._joined, self._leases = set(), set()

    def close(self) -> None:
        """Says goodbye, and waits shortly until the store has received it.

        Calls in progress end at once. It may be called twice. A signal handler that has interrupted a
        call of its thread may get Busy.
        """
        if os.getpid() != self._pid:
            return
        if self._interrupted():
            raise make(Busy, "store: close: " + INTERRUPTED)
        with self._cond:
            first, self._closed = not self._closed, True
            self._end_calls(list(self._calls.values()), NoAnswer(Code.CLOSED))
            line = self._line
            self._cond.notify_all()
        self._turn.give_back(need=True)
        for ended in list(self.at_close):
            ended()
        if line is None:
            self._attempt.end()
        elif first:
            line.pipe.send(_wire.encode(Request(Op.GOODBYE)))
        self._thread.join(_GOODBYE)
        if self._thread.is_alive() and line is not None:
            line.pipe.kill()
            self._thread.join(_GOODBYE)

    def drop(self) -> bool:
        """Has the session's thread close it within a second, and reports whether it was open.

        It takes no lock: a collection of garbage may run it anywhere.
        """
        dropped = os.getpid() == self._pid and not self._over()
        self._dropped = self._dropped or dropped
        return dropped

    def _over(self) -> bool:
        return self._closed or self._dropped

    # What the thread does.

    def _run(self, first: Line) -> None:
        line: Optional[Line] = first
        self._turn.begin()
        while line is not None:
            try:
                self._read_on(line)
            except Exception as e:  # any error ends the waiting calls
                line.pipe.close()
                self._broke(e)
            line = self._reconnect()

    def _read_on(self, line: Line) -> None:
        """Reads until the connection ends, and raises why."""
        stay = 0.0
        while True:
            if line.error is not None:
                raise line.error
            if self._dropped and not self._closed:
                self._closed = True
                line.pipe.send(_wire.encode(Request(Op.GOODBYE)))
            try:
                h, body = line.read(self._tick_time)
            except socket.timeout:
                if self._closed or not self._tick(line):
                    raise socket.timeout("it was silent for too long") from None
                if self._silent % _ASK_EVERY == _ASK_AFTER and self._dialer.replaced(line, time.monotonic() + 1, self._attempt):
                    raise socket.timeout("another process leads the store") from None
            else:
                self._received(line, h, body)
                if not self._calls and time.monotonic() > stay:
                    self._turn.lend()
                    if len(self._calls) > 1:
                        stay = time.monotonic() + _STAY

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

    def _broke(self, error: Exception) -> None:
        with self._cond:
            self._line, self._since, self._silent = None, time.monotonic(), 0
            self._fruitless += 1
            self._why = self._broken(error)
            self._wanted = True  # also without calls: the session is kept
            if isinstance(error, (_wire.Malformed, Failed)) or isinstance(error, Goodbye) and not self._durable:
                self._end_calls(list(self._calls.values()), self._why)
                self._wanted = False  # the next call tries

    def _reconnect(self) -> Optional[Line]:
        """Dials until there is a connection, and returns it; None when the session is closed.

        Between two pauses it tries every address once: of several replicas, one serves.
        """
        while True:
            with self._cond:
                while not self._cond.wait_for(lambda: self._wanted or self._over(), self._tick_time):
                    pass
            began, pause = time.monotonic(), 0.0
            if self._fruitless > 1:  # one connection after the other has ended without an answer
                pause = min(_FIRST_PAUSE * 2 ** min(self._fruitless - 2, 10), _MOST_PAUSE)
            tries = 0
            while not self._pause(0.0 if tries % len(self._dialer.ways) else pause):
                tries += 1
                try:
                    line = self._dialer.dial(math.inf, self._resume(), self._attempt)
                except Exception as e:  # any error ends the calls that wait for the dial
                    if self._is_permanent(e, time.monotonic() - began):
                        self._fail(e)
                        break
                    if tries % len(self._dialer.ways) == 0:
                        pause = min(max(2 * pause, _FIRST_PAUSE), _MOST_PAUSE) * random.uniform(1, 1.5)
                    continue
                return self._adopt(line)
            if self._over():
                return None

    def _pause(self, seconds: float) -> bool:
        """Waits, and reports whether the session is closed."""
        with self._cond:
            return self._cond.wait_for(self._over, seconds)

    def _resume(self) -> Request:
        return Request(Op.HELLO, resume=self._id, incarnation=self._incarnation, value=self._token)

    def _is_permanent(self, e: Exception, tried: float) -> bool:
        """Reports whether the store need no longer be looked for: one that keeps nothing, and is
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
            if self._over():
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
            if call.op == Op.WATCH and call.after and restarted:
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
