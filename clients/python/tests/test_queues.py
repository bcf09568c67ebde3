"""Queues and leases."""

from __future__ import annotations

import threading
import unittest
from typing import List

import muster_pg
from muster_pg._wire import Op, Request
from test_session import Outcome
from test_store import ADDRESS, Case


class Queues(Case):
    def test_values_come_in_their_order(self) -> None:
        s = self.store
        s.set("q", b"a key of the same name")
        self.assertEqual(s.queue_len("q"), 0)
        for value in (b"a", bytearray(b"b"), b"", memoryview(b"c")):
            s.queue_push("q", value)
        self.assertEqual(s.queue_len("q"), 4)
        self.assertEqual([s.queue_pop("q") for _ in range(4)], [b"a", b"b", b"", b"c"])
        self.assertEqual((s.queue_len("q"), s.get("q")), (0, b"a key of the same name"))

    def test_pop_waits(self) -> None:
        self.fails(muster_pg.NotFound, r'^store: pop "q": not found$', self.store.queue_pop, "q", block=False)
        self.fails(muster_pg.Timeout, r'^store: pop "q": timed out', self.store.queue_pop, "q", timeout=0.1)
        popping = Outcome(self.store.queue_pop, "q", timeout=20)
        self.store.queue_push("q", b"v")
        self.assertEqual(popping(), b"v")

    def test_each_value_goes_to_one_client(self) -> None:
        got: List[bytes] = []

        def pops() -> None:
            while True:
                value = self.store.queue_pop("q", timeout=20)
                if value == b"end":
                    return
                got.append(value)

        consumers = [Outcome(pops) for _ in range(4)]
        values = [b"%d" % n for n in range(200)]
        for value in values + [b"end"] * 4:
            self.store.queue_push("q", value)
        self.assertEqual([c() for c in consumers], [None] * 4)
        self.assertEqual(sorted(got), sorted(values))

    def test_what_is_no_queue(self) -> None:
        self.store.set("q\0queue", b"short")
        self.fails(muster_pg.Invalid, "queue length.*was not written by push: delete that key", self.store.queue_len, "q")
        self.fails(muster_pg.Invalid, 'push "q"', self.store.queue_push, "q", b"v")


class Times(Case):
    def test_long_ones(self) -> None:
        """Are as good as none: no clock overflows."""
        for long in (1e300, 10**400, 1e18, 1e9):
            with self.subTest(type(long)), muster_pg.Group.join(0, 1, self.store, name="g", timeout=long, expiry=long) as g:
                self.store.set("k", b"v", ttl=long, timeout=long)
                self.assertEqual(self.store.wait("k", timeout=long), [b"v"])
                self.store.swap("k", b"v", b"w", ttl=long)
                with self.store.lease(long, timeout=long) as lease:
                    ended = Outcome(lease.wait, long)
                self.assertTrue(ended())
                g.barrier(timeout=long)
                g.send(1, 0, timeout=long)
                self.assertEqual(g.recv(0, timeout=long), 1)
        muster_pg.Store.connect(ADDRESS, timeout=1e300, liveness_timeout=1e300).close()


class Leases(Case):
    def gone(self, key: str) -> None:
        """Waits until there is no such key."""
        for event in self.store.watch(key, after=self.since, timeout=20):
            if event.deleted and event.key == key:
                return

    def setUp(self) -> None:
        super().setUp()
        self.since = self.store.revision()

    def test_entries_go_with_their_lease(self) -> None:
        with self.store.lease(30) as lease:
            self.store.set("k", b"v", lease=lease)
            self.store.set("kept", b"v", lease=lease)
            self.store.set("kept", b"v")  # no longer the lease's
            self.assertIsNone(lease.error)
            with self.store.lease(30) as later:
                self.assertGreater(later.id, lease.id)
        self.assertEqual((self.store.exists("k"), self.store.exists("kept")), (False, True))
        self.assertIsInstance(lease.error, muster_pg.Closed)
        self.assertTrue(lease.wait(0))
        lease.close()  # twice
        self.fails(muster_pg.NotFound, 'set "k"', self.store.set, "k", b"v", lease=lease)

    def test_it_is_kept_alive(self) -> None:
        lease = self.store.lease(2)
        self.addCleanup(lease.close)
        self.store.set("k", b"v", lease=lease)
        self.assertFalse(lease.wait(2.5))
        self.assertTrue(self.store.exists("k"))

    def test_it_ends_with_the_session(self) -> None:
        other = muster_pg.Store.connect(ADDRESS, timeout=30)
        lease = other.lease(3600)
        other.below(self.id() + "/").set("k", b"v", lease=lease)
        self.fails(muster_pg.Invalid, "the lease is of another Store", self.store.set, "k", b"v", lease=lease)
        other.close()
        self.gone("k")
        self.assertTrue(lease.wait(2000))
        self.assertIsInstance(lease.error, muster_pg.Closed)

    def test_one_that_the_store_has_ended(self) -> None:
        lease = self.store.lease(1)
        self.store._request(Request(Op.REVOKE, lease=lease.id), self.store._deadline("revoke", 20))
        self.assertTrue(lease.wait(20))
        self.assertIsInstance(lease.error, muster_pg.NotFound)

    def test_arguments(self) -> None:
        for ttl in (0, -1, float("inf"), "1"):
            with self.assertRaises(muster_pg.Invalid):
                self.store.lease(ttl)  # type: ignore[arg-type]
        with self.assertRaisesRegex(muster_pg.InvalidType, "lease is a muster_pg.Lease, not int"):
            self.store.set("k", b"v", lease=1)  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
