"""The processes of one worker of an elastic job, which begin and end together."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from typing import Any, Callable, List, Optional

from ._errors import Error, Failed, Timeout, kinds_of, make, quote
from ._group import Group
from ._roster import Keys
from ._store import Store


class Unit:
    """One process of a worker that may be several: a group of them in the store, apart from the
    views. Process 0 registers the worker, and the others follow its registration.

    When one of the processes fails, or leaves by itself, the others cannot go on: error is set, and
    lost is called, by a thread that the unit owns until close. The main thread uses the rest.
    """

    def __init__(self, store: Store, job: str, id: str, rank: int, size: int, timeout: float, lost: Callable[[], None]) -> None:
        """Waits until all processes of the worker have come."""
        self.rank, self.size = rank, size
        self.error: Optional[Error] = None
        self._job, self._id, self._lost, self._leaves = job, id, lost, False
        self._group: Optional[Group] = None
        if size > 1:
            self._group = Group.join(rank, size, store.below(Keys(job).groups), name=f"{job} worker {id}", timeout=timeout)
            self._channel = self._group.channel("lost")
            self._watcher = threading.Thread(target=self._watch, name="muster unit", daemon=True)
            self._watcher.start()

    @property
    def store(self) -> Optional[Store]:
        """The store, below a prefix of this unit's own; None for a worker of one process."""
        return self._group.store if self._group is not None else None

    def _watch(self) -> None:
        """Waits for a message that no process sends: that ends with the group."""
        try:
            self._channel.recv((self.rank + 1) % self.size, timeout=math.inf)
        except Error as e:
            if not self._leaves:
                self.error = self._failed(e)
                self._lost()

    def _failed(self, e: Error) -> Error:
        says = f"muster_pg.torch: elastic job {quote(self._job)}: worker {quote(self._id)} ends, because one of its {self.size} processes has ended, or has lost the store: {e}"
        return make((*kinds_of(e), Failed)[0], says)

    def registered(self, registration: Optional[str], timeout: float) -> str:
        """Returns what process 0 gives, the registration of its member, on all processes."""
        if self._group is None:
            return registration or ""
        try:
            of0: str = self._group.channel("registration").broadcast(registration, timeout=timeout)
            return of0
        except Timeout:
            raise
        except Error as e:
            raise self._failed(e) from None

    def all_gather(self, obj: Any, timeout: float) -> List[Any]:
        return self._group.all_gather(obj, timeout=timeout) if self._group is not None else [obj]

    def leave(self, timeout: float) -> None:
        """Waits until all processes of the unit leave, so that none takes it for a failure."""
        if self._group is not None:
            self._leaves = True
            self._group.channel("leave").barrier(timeout=timeout)

    def close(self, cause: str = "closed") -> None:
        """Ends the unit. Without leave, error of the other processes quotes cause."""
        if self._group is None:
            return
        if not self._leaves:
            self._leaves = True
            with suppress(Error):
                self._group.abort(cause)
        self._group.close()
        self._channel._calls._end("closed")  # the store, which ends them too, may be away
        self._watcher.join()
