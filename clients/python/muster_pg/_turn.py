"""Which thread reads what the store sends."""

from __future__ import annotations

import threading

_IDLE = 0.01  # seconds without a call after which the session's thread reads again


class Turn:
    """The right to read a session's connection, which one thread has at a time.

    An answer that passes from one thread to another costs more than all the rest of a short call.
    So the session's thread lends the turn while no call is open, and a caller takes it to read its
    own answer. The session's thread has it back when a caller needs that (its answer is late, or
    another call is still open), and when no caller has read for a moment.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # held by the thread that reads
        self._needed = threading.Lock()  # released: the session's thread is to read. A signal may leave an Event locked
        self._needed.acquire()
        self._reads = 0  # how often callers have taken it
        self.mine = self._lock._is_owned  # type: ignore[attr-defined]  # this thread has it
        self.begin = self._lock.acquire

    def take(self) -> bool:
        """Takes the turn for a caller, unless another thread has it."""
        if self._lock.acquire(False):
            self._reads += 1
            return True
        return False

    def give_back(self, need: bool) -> None:
        """Ends the turn of a caller, if it has it. The session's thread reads on if there is need."""
        if self.mine():
            self._lock.release()
        if need:
            try:
                self._needed.release()
            except RuntimeError:
                pass  # it was released already

    def lend(self) -> None:
        """Lends the session's turn to callers, until it is needed or none has read for a moment."""
        self._needed.acquire(False)
        self._lock.release()
        reads = -1
        while reads != self._reads:
            reads = self._reads
            if self._needed.acquire(timeout=_IDLE):
                break
        self._lock.acquire()
