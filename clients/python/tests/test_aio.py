"""The verbs as coroutines, and what their cancellation does at the store."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import unittest
from typing import Any, Awaitable, Callable, List, cast
from unittest import mock

import muster_pg
from muster_pg import _call, _verb, aio
from muster_pg._wire import Code, Op
from test_session import Fake, Outcome
from test_store import ADDRESS, Case


class Verbs(Case):
    async def connect(self) -> aio.Store:
        return (await aio.Store.connect(ADDRESS, timeout=30)).below(self.id() + "/")

    async def in_a_loop(self, size: int, body: Callable[[aio.Group], Awaitable[Any]]) -> List[Any]:
        async def run(rank: int) -> Any:
            async with await aio.Group.join(rank, size, ADDRESS, name=self.id(), timeout=30) as g:
                return await body(g)

        return await asyncio.gather(*map(run, range(size)))

    def test_every_verb_is_there(self) -> None:
        for kind, its in ((muster_pg.Store, aio.Store), (muster_pg.Group, aio.Group)):
            for name in vars(kind):
                if not name.startswith("_"):
                    self.assertTrue(getattr(its, name).__doc__, f"{kind.__name__}.{name}")

    def test_store(self) -> None:
        async def body() -> None:
            async with await aio.Store.connect(ADDRESS, timeout=30) as top:
                self.assertEqual(top.address, ADDRESS)
                s = top.below(self.id() + "/")
                waits = [asyncio.create_task(s.wait("k", timeout=20)) for _ in range(50)]
                await s.set("k", b"v", ttl=100)
                self.assertEqual(await asyncio.gather(*waits), [[b"v"]] * 50)
                after = await s.revision()
                self.assertEqual([await s.get("k"), await s.exists("k"), await s.add("n", 2), await s.append("log", b"ab")], [b"v", True, 2, 2])
                await s.swap("leader", None, b"0")
                self.assertEqual([e.key async for e in s.list()], ["k", "leader", "log", "n"])
                async for event in s.watch(after=after, timeout=20):
                    if event.key == "leader":
                        break
                await s.queue_push("q", b"1")
                self.assertEqual([await s.queue_len("q"), await s.queue_pop("q"), await s.delete("k", "n")], [1, b"1", 2])
                lease = await s.lease(30)
                await s.set("leased", b"v", lease=lease)
                await asyncio.to_thread(lease.close)
                self.assertFalse(await s.exists("leased"))
                with self.assertRaisesRegex(muster_pg.NotFound, 'get "k"'):
                    await s.get("k")

        asyncio.run(body())

    def test_group(self) -> None:
        async def body(g: aio.Group) -> Any:
            await g.barrier()
            out = [
                await g.broadcast(g.rank, 1), await g.all_gather(g.rank), await g.gather(g.rank), await g.scatter(["a", "b"]),
                await g.all_to_all([g.rank, g.rank + 10]), await g.all_reduce([g.rank + 1]), await g.broadcast_bytes(b"x"), await g.all_gather_bytes(b"y"),
            ]  # fmt: skip
            _, got = await asyncio.gather(g.channel("side").send(g.rank, 1 - g.rank), g.channel("side").recv(1 - g.rank))
            await g.store.set("k", b"v")
            facts = [g.rank, g.size, g.local_rank, len(g.members), g.name == self.id(), g.generation > 0, await g.expired()]
            await g.shutdown()
            return out, got, facts

        for rank, (out, got, facts) in enumerate(asyncio.run(self.in_a_loop(2, body))):
            self.assertEqual(out, [1, [0, 1], [0, 1] if rank == 0 else None, "ab"[rank], [10 * rank, 10 * rank + 1], [3], b"x", [b"y", b"y"]])
            self.assertEqual((got, facts), (1 - rank, [rank, 2, rank, 2, True, True, 0]))

    def test_a_cancelled_verb_is_a_no_for_all(self) -> None:
        self.assertEqual(asyncio.run(self.in_a_loop(3, self.cancelled)), [0, 0, 0])

    async def cancelled(self, g: aio.Group) -> int:
        """Rank 0 is cancelled in a barrier that rank 2 joins late."""
        by = 0
        if g.rank == 0:
            waiting = asyncio.create_task(g.barrier())
            await g.recv(1)
            while not self.votes(g):
                await asyncio.sleep(0.001)
            waiting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            await g.send("cancelled", 2)
        else:
            if g.rank == 1:
                await g.send("I am here", 0)
            else:
                await g.recv(0)
            with self.assertRaises(muster_pg.Cancelled) as raised:
                await g.barrier()
            error: Any = raised.exception
            by = error.by
        await g.barrier()  # the group goes on
        await g.shutdown()
        return by

    def votes(self, g: aio.Group) -> bool:
        """Whether a verb of g has been sent: one that is cancelled before has not been called."""
        calls = g._sync.store._session._calls
        return any(c.op == Op.COLLECT and c.line is not None for c in list(calls.values()))

    def test_a_verb_that_is_cancelled_before_its_thread_begins(self) -> None:
        """It takes its number, and is a no for all: the rank's next verb is not taken for it."""
        pool = concurrent.futures.ThreadPoolExecutor(16)
        self.addCleanup(pool.shutdown)
        queued: List[Callable[[], Any]] = []

        cancelled = threading.Event()

        class Held:
            def submit(self, f: Callable[[], Any]) -> "concurrent.futures.Future[Any]":
                """Holds the first call until the second one, which is that of the cancel, runs."""
                queued.append(f)
                return concurrent.futures.Future() if len(queued) == 1 else pool.submit(lambda: (pool.submit(queued[0]), f()) if len(queued) == 2 else f())

        async def body(g: aio.Group) -> Any:
            if g.rank == 1:
                await asyncio.to_thread(cancelled.wait, 20)
            if g.rank == 0:
                with mock.patch.object(aio, "_pool", Held):
                    barrier = asyncio.create_task(g.barrier())
                    while not queued:
                        await asyncio.sleep(0)
                    barrier.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await barrier
                cancelled.set()
            else:
                with self.assertRaises(muster_pg.Cancelled) as raised:
                    await g.barrier()
                self.assertEqual(cast(Any, raised.exception).by, 0)
            return await g.all_gather(g.rank)

        self.assertEqual(asyncio.run(self.in_a_loop(2, body)), [[0, 1]] * 2)

    def test_a_verb_that_is_cancelled_before_its_vote(self) -> None:
        cast_vote = _verb.Verb.cast
        cancelled = threading.Event()

        async def body(g: aio.Group) -> Any:
            if g.rank == 0:
                reached = threading.Event()

                def cast_late(v: _verb.Verb) -> List[bytes]:
                    if v.membership.rank == 0 and v.c.seq == 1:
                        reached.set()
                        task = _call.task.get()
                        while task is not None and not task.ended:
                            cancelled.wait(0.001)
                    return cast_vote(v)

                with mock.patch.object(_verb.Verb, "cast", cast_late):
                    barrier = asyncio.create_task(g.barrier())
                    await asyncio.to_thread(reached.wait, 20)
                    barrier.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await barrier
            else:
                with self.assertRaises(muster_pg.Cancelled):
                    await g.barrier()
            return await g.all_gather(g.rank)

        self.assertEqual(asyncio.run(self.in_a_loop(2, body)), [[0, 1]] * 2)

    def test_a_cancelled_join(self) -> None:
        async def body() -> None:
            joining = asyncio.create_task(aio.Group.join(0, 2, ADDRESS, name=self.id(), timeout=30))
            done, _ = await asyncio.wait([joining], timeout=0.3)
            self.assertFalse(done)
            joining.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await joining

            async def both(g: aio.Group) -> int:
                await g.shutdown()
                return g.rank

            self.assertEqual(await self.in_a_loop(2, both), [0, 1])  # the rank is free

        asyncio.run(body())


class Cancellation(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = Fake()
        self.addCleanup(self.fake.close)

    def test_the_store_gets_the_cancel(self) -> None:
        connecting = Outcome(muster_pg.Store.connect, self.fake.addr, timeout=10)
        peer, _ = self.fake.welcome()
        store = connecting()
        self.addCleanup(store.close)

        async def body() -> None:
            s = aio.Store(store)
            waiting = asyncio.create_task(s.wait("k"))
            op, _, call, _ = await asyncio.to_thread(peer.frame)
            waiting.cancel()
            cancel = await asyncio.to_thread(peer.frame)
            self.assertEqual((op, cancel[0], cancel[2]), (Op.WAIT, Op.CANCEL, call))
            peer.say(Op.WAIT, call, code=Code.CANCELLED)
            with self.assertRaises(asyncio.CancelledError):
                await waiting
            getting = asyncio.create_task(s.get("k"))  # the store answers others as before
            op, _, call, _ = await asyncio.to_thread(peer.frame)
            peer.say(op, call, flags=4, body=b"\1\0\0\0v")
            self.assertEqual(await getting, b"v")
            getting = asyncio.create_task(s.get("k"))
            await asyncio.to_thread(peer.frame)
            getting.cancel()
            with self.assertRaises(asyncio.CancelledError):  # though it is not answered
                await getting

        asyncio.run(body())
        self.assertEqual(store._session._calls, {})

    def test_a_connection_that_is_made_too_late_is_closed(self) -> None:
        async def body() -> None:
            connecting = asyncio.create_task(aio.Store.connect(self.fake.addr, timeout=20))
            peer, _ = await asyncio.to_thread(self.fake.accept)
            connecting.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await connecting
            peer.say(Op.HELLO, flags=1 | 4, body=bytes(7) + b"\1" + bytes(7) + b"\1" + b"\x03\0\0\0tok")
            op, _, _, _ = await asyncio.to_thread(peer.frame)
            self.assertEqual(op, Op.GOODBYE)
            peer.conn.close()

        asyncio.run(body())


if __name__ == "__main__":
    unittest.main()
