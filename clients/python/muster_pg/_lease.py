"""Entries that go with the process that has set them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Optional

from ._errors import Closed, Denied, Error, NotFound, StoreError, Unavailable, make
from ._wire import Op, Request

if TYPE_CHECKING:
    from ._store import Store

_LIVENESS = 10.0  # seconds; a store that is only slow to answer may have been stopped, and has the lease still


class Lease:
    """A set of entries (Store.set with lease) that are deleted when it ends.

    A thread "muster lease" keeps it alive until close. A lease ends when close is called, here or of its store,
    when the session with the store ends, or when the store has received nothing of this process
    for ttl seconds. A lease that has ended is never renewed. It can be used in a with statement.

    A process that was stopped may consider a lease alive that has ended. An operation under a lease
    is safe only if it carries id as a fencing token: the resource must refuse an id lower than one
    that it has seen.
    """

    def __init__(self, store: Store, id: int, ttl: float) -> None:
        """Not called by users: see Store.lease."""
        self._store, self._id, self._ttl = store, id, ttl
        self._lock = threading.Lock()  # protects the change of _error
        self._error: Optional[Error] = None
        self._ended = threading.Event()
        store._session.at_close.add(self._closed)
        threading.Thread(target=self._keep_alive, name="muster lease", daemon=True).start()

    @property
    def id(self) -> int:
        """The lease's number, unique in the store and higher than those of earlier leases: a
        fencing token.
        """
        return self._id

    @property
    def error(self) -> Optional[Error]:
        """Why the lease has ended, as far as this process knows: Closed after close. None: it has
        not.
        """
        return self._error

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until the lease has ended, or for timeout seconds, and reports whether it has."""
        if timeout is not None:
            timeout = min(self._store._deadline("lease", timeout) - time.monotonic(), threading.TIMEOUT_MAX)
        return self._ended.wait(timeout)

    def close(self, *, timeout: Optional[float] = None) -> None:
        """Ends the lease. Its entries are deleted when it returns. It may be called twice."""
        self._closed()
        try:
            self._store._request(Request(Op.REVOKE, lease=self._id), self._store._deadline("revoke", timeout))
        except NotFound:
            pass

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<muster_pg.Lease {self._id} of {self._ttl:g} s{', ended' if self._error else ''}>"

    def _closed(self) -> None:
        self._end(make(Closed, "store: lease: closed"))

    def _end(self, error: Error) -> None:
        with self._lock:
            self._error = self._error or error
        self._ended.set()
        self._store._session.at_close.discard(self._closed)

    def _keep_alive(self) -> None:
        each = max(self._ttl / 3, 0.001)
        last = time.monotonic()
        while not self._ended.wait(each):
            try:
                self._store._request(Request(Op.KEEP_ALIVE, lease=self._id), time.monotonic() + each)
                last = time.monotonic()
            except StoreError as e:
                limit = self._ttl if isinstance(e, Unavailable) else max(self._ttl, _LIVENESS)
                if isinstance(e, (NotFound, Closed, Denied)) or time.monotonic() - last >= limit:
                    self._end(e)
