"""The client for asyncio: the verbs of muster_pg.Store and Group as coroutines.

    from muster_pg import aio

    async with await aio.Group.from_env() as group:
        config = await group.broadcast({"layers": 12} if group.rank == 0 else None)
        async with asyncio.timeout(10):
            await group.barrier()

Arguments, results and errors are those of the same verbs of muster_pg. A call waits in a thread
"muster aio", which the next call uses again. When the task that awaits a verb is cancelled, the
verb is cancelled at the store: a collective verb is then a no for all ranks. A change may have
taken effect, as with an error that is Unknown: a value that queue_pop has removed is lost.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Coroutine, Dict, Iterator, List, Optional, TypeVar

from . import _call, _group, _store
from ._call import Task
from ._calls import GRACE
from ._lease import Lease
from ._member import Member
from ._phase import Phase
from ._store import Entry, Event

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

R = TypeVar("R")
S = TypeVar("S")
_MOST_THREADS = 8_000  # calls at a time: a store lets 8,192 of one session wait
_pools: Dict[int, concurrent.futures.ThreadPoolExecutor] = {}  # by process: a fork has no threads


def _pool() -> concurrent.futures.ThreadPoolExecutor:
    pid = os.getpid()
    if pid not in _pools:
        _pools.setdefault(pid, concurrent.futures.ThreadPoolExecutor(_MOST_THREADS, "muster aio"))
    return _pools[pid]


async def _run(f: Callable[[], R], undo: Callable[[R], object] = lambda _: None) -> R:
    """Returns f(), which runs in a thread, and cancels its calls if the awaiting task is cancelled.

    f runs in any case, so that a collective verb takes its number: a cancel before it begins has its
    calls refused, and the verb votes no. undo gets what f returns all the same.
    """
    task, begun = Task(), threading.Event()
    future: "concurrent.futures.Future[R]" = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # from now on wrap_future cannot cancel it

    def work() -> None:
        begun.set()
        token = _call.task.set(task)
        try:
            future.set_result(f())
        except BaseException as e:  # any error is the awaiting task's
            future.set_exception(e)
        finally:
            _call.task.reset(token)

    _pool().submit(work)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        future.add_done_callback(lambda done: _undo(done, undo))

        def end() -> None:
            task.cancel()
            begun.wait()
            concurrent.futures.wait([future], 2 * GRACE)

        await asyncio.wrap_future(_pool().submit(end))  # the next verb may follow when this one has ended
        raise


def _undo(done: "concurrent.futures.Future[R]", undo: Callable[[R], object]) -> None:
    if done.exception() is None:
        undo(done.result())


def _verb(f: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Returns a verb as a coroutine function."""

    @functools.wraps(f)
    async def verb(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await _run(functools.partial(f, self._sync, *args, **kwargs))

    return verb


async def _each(items: Iterator[R]) -> AsyncIterator[R]:
    """Gives the items of an iterator whose next may wait."""
    end = object()
    while True:
        item: Any = await _run(lambda: next(items, end))
        if item is end:
            return
        yield item


class Store:
    """A muster_pg.Store whose verbs are coroutines. Use it with async with, or close it."""

    def __init__(self, store: _store.Store) -> None:
        """Makes one of a muster_pg.Store, which remains usable."""
        self._sync = store

    @classmethod
    async def connect(cls, address: str, **options: Any) -> Store:
        """Is muster_pg.Store.connect, with its options."""
        return cls(await _run(functools.partial(_store.Store.connect, address, **options), _store.Store.close))

    @property
    def address(self) -> str:
        """Where the store is, as host:port."""
        return self._sync.address

    def below(self, prefix: str) -> Store:
        """Returns the part of the store below prefix. Its close does nothing."""
        return Store(self._sync.below(prefix))

    def within(self, timeout: float) -> Store:
        """Sets the timeout of calls without their own, and returns the store."""
        self._sync.within(timeout)
        return self

    get = _verb(_store.Store.get)
    exists = _verb(_store.Store.exists)
    wait = _verb(_store.Store.wait)
    set = _verb(_store.Store.set)
    add = _verb(_store.Store.add)
    swap = _verb(_store.Store.swap)
    append = _verb(_store.Store.append)
    delete = _verb(_store.Store.delete)
    revision = _verb(_store.Store.revision)
    queue_push = _verb(_store.Store.queue_push)
    queue_pop = _verb(_store.Store.queue_pop)
    queue_len = _verb(_store.Store.queue_len)
    close = _verb(_store.Store.close)

    async def lease(self, ttl: float, *, timeout: Optional[float] = None) -> Lease:
        """Is muster_pg.Store.lease. The lease's close and wait block: await them with to_thread."""
        return await _run(lambda: self._sync.lease(ttl, timeout=timeout), Lease.close)

    def list(self, prefix: str = "", *, timeout: Optional[float] = None) -> AsyncIterator[Entry]:
        """Is muster_pg.Store.list, for async for."""
        return _each(self._sync.list(prefix, timeout=timeout))

    def watch(self, prefix: str = "", after: int = 0, *, timeout: Optional[float] = None) -> AsyncIterator[Event]:
        """Is muster_pg.Store.watch, for async for."""
        return _each(self._sync.watch(prefix, after, timeout=timeout))

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Group:
    """A muster_pg.Group whose verbs are coroutines. Use it with async with, or close it."""

    def __init__(self, group: _group.Group) -> None:
        """Makes one of a muster_pg.Group, which remains usable."""
        self._sync = group

    @classmethod
    async def join(cls, rank: int, size: int, store: str, **options: Any) -> Group:
        """Is muster_pg.Group.join, with its options."""
        return cls(await _run(functools.partial(_group.Group.join, rank, size, store, **options), _group.Group.close))

    @classmethod
    async def from_env(cls) -> Group:
        """Is muster_pg.Group.from_env."""
        return cls(await _run(_group.Group.from_env, _group.Group.close))

    @property
    def rank(self) -> int:
        """This process's rank: 0 ≤ rank < size."""
        return self._sync.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._sync.size

    @property
    def name(self) -> str:
        """The group's name."""
        return self._sync.name

    @property
    def generation(self) -> int:
        """The number of this group on its store."""
        return self._sync.generation

    @property
    def members(self) -> List[Member]:
        """The ranks, in their order."""
        return self._sync.members

    @property
    def local_rank(self) -> int:
        """The number of lower ranks on this rank's node."""
        return self._sync.local_rank

    @property
    def store(self) -> Store:
        """The store that the group meets on, below a prefix that is this generation's alone."""
        return Store(self._sync.store)

    def channel(self, name: str) -> Group:
        """Returns a handle of this group with its own verbs and streams."""
        return Group(self._sync.channel(name))

    def phase(self, name: str, total: int = 0, *, stall: float = 0.0, on_stall: str = "log") -> Phase:
        """Is muster_pg.Group.phase: use it with with."""
        return self._sync.phase(name, total, stall=stall, on_stall=on_stall)

    barrier = _verb(_group.Group.barrier)
    broadcast = _verb(_group.Group.broadcast)
    broadcast_bytes = _verb(_group.Group.broadcast_bytes)
    all_gather = _verb(_group.Group.all_gather)
    all_gather_bytes = _verb(_group.Group.all_gather_bytes)
    gather = _verb(_group.Group.gather)
    scatter = _verb(_group.Group.scatter)
    all_to_all = _verb(_group.Group.all_to_all)
    export = _verb(_group.Group.export)
    send = _verb(_group.Group.send)
    recv = _verb(_group.Group.recv)
    expired = _verb(_group.Group.expired)
    abort = _verb(_group.Group.abort)
    shutdown = _verb(_group.Group.shutdown)
    close = _verb(_group.Group.close)

    async def all_reduce(self, numbers: Any, op: str = "sum", *, timeout: Optional[float] = None) -> Any:
        """Is muster_pg.Group.all_reduce."""
        return await _run(lambda: self._sync.all_reduce(numbers, op, timeout=timeout))

    async def shrink(self, *, timeout: Optional[float] = None) -> Group:
        """Is muster_pg.Group.shrink."""
        return Group(await _run(lambda: self._sync.shrink(timeout=timeout), _group.Group.close))

    async def __aenter__(self) -> Group:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
