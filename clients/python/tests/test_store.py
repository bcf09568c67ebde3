"""A store's verbs, and groups whose ranks are threads.

The store is the one at MUSTER_TEST_STORE, or is served by the command "muster" on PATH.
"""

from __future__ import annotations

import atexit
import math
import os
import pickle
import re
import signal
import socket
import threading
import time
import unittest
from typing import Any, Callable, List, Optional
from unittest import mock

import muster_pg


def serve() -> str:
    """Starts "muster serve" until the end of this process, and returns its address, or "" without
    one.
    """
    try:
        server = muster_pg.Server()
    except muster_pg.Unavailable:
        return ""
    atexit.register(server.close)
    return server.address.replace("muster://", "")


ADDRESS = os.environ.get("MUSTER_TEST_STORE") or serve()


@unittest.skipUnless(ADDRESS, "SKIPPED: no store: put muster on PATH, or set MUSTER_TEST_STORE")
class Case(unittest.TestCase):
    store: muster_pg.Store

    def setUp(self) -> None:
        top = muster_pg.Store.connect(ADDRESS, timeout=30)
        self.addCleanup(top.close)
        self.store = top.below(self.id() + "/")

    def fails(self, kind: Any, says: str, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.assertRaises(kind) as raised:
            f(*args, **kwargs)
        self.assertRegex(str(raised.exception), says)
        self.assertIsInstance(raised.exception, muster_pg.Error)
        return raised.exception

    def ranks(self, size: int, body: Callable[[muster_pg.Group], Any], **options: Any) -> List[Any]:
        """Runs body on each rank of a group."""
        out: List[Any] = [None] * size

        def run(rank: int) -> None:
            try:
                with muster_pg.Group.join(rank, size, ADDRESS, name=self.id(), timeout=30, **options) as g:
                    out[rank] = body(g)
            except BaseException as e:
                out[rank] = e

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for r in out:
            if isinstance(r, BaseException):
                raise r
        return out



class Keys(Case):
    def test_get_and_set(self) -> None:
        s = self.store
        e = self.fails(muster_pg.NotFound, r'^store: get "k": not found$', s.get, "k")
        self.assertEqual((e.op, e.key, e.code), ("get", "k", muster_pg.Code.NOT_FOUND))
        self.assertFalse(s.exists("k"))
        for value in (b"", b"v", bytes(range(256)) * 1000, bytearray(b"array"), memoryview(b"view")):
            s.set("k", value)
            self.assertEqual(s.get("k"), bytes(value))
        self.assertTrue(s.exists("k"))
        self.assertEqual(s.wait("k", "k"), [b"view", b"view"])
        self.assertEqual((s.delete("k", "nothing"), s.exists("k")), (1, False))
        s.set("15000", b"")
        self.assertEqual(s.delete(*(f"{i:08000}" for i in range(3000)), *map(str, range(20_001))), 1)

    def test_ttl(self) -> None:
        before = self.store.revision()  # which tests in other processes raise, too
        self.store.set("k", b"v", ttl=0.05)
        events = self.store.watch(after=before, timeout=10)
        seen = [next(events), next(events)]
        self.assertEqual([(e.key, e.value, e.deleted, e.expired) for e in seen], [("k", b"v", False, False), ("k", None, True, True)])
        self.assertFalse(self.store.exists("k"))
        self.fails(muster_pg.Invalid, r'^store: set "k": invalid request: ttl is 0: it has to be > 0 seconds$', self.store.set, "k", b"", ttl=0)

    def test_add(self) -> None:
        s = self.store
        self.assertEqual([s.add("n"), s.add("n", 41), s.add("n", -2), s.get("n")], [1, 42, 40, b"40"])
        s.set("text", b"x")
        self.fails(muster_pg.Invalid, '^store: add "text": invalid request: ', s.add, "text")
        self.fails(ValueError, "delta is 9223372036854775808, which is not from", s.add, "n", 1 << 63)

    def test_swap(self) -> None:
        s = self.store
        s.swap("k", None, b"a")
        self.assertEqual(self.fails(muster_pg.Conflict, "conflict", s.swap, "k", None, b"b").value, b"a")
        s.swap("k", b"a", b"")
        s.swap("k", b"", None)
        self.assertIsNone(self.fails(muster_pg.Conflict, "conflict", s.swap, "k", b"", None).value)

    def test_append(self) -> None:
        self.assertEqual([self.store.append("k", b"ab"), self.store.append("k", b"c"), self.store.get("k")], [2, 3, b"abc"])

    def test_wait(self) -> None:
        s = self.store
        s.set("there", b"")
        e = self.fails(muster_pg.Timeout, r'^store: wait "missing", "also": timed out', s.wait, "there", "missing", "also", timeout=0.05)
        self.assertIsInstance(e, TimeoutError)
        got: List[List[bytes]] = []
        t = threading.Thread(target=lambda: got.append(s.wait("a", "b", timeout=math.inf)))
        t.start()
        s.set("b", b"2")
        s.set("a", b"1")
        t.join()
        self.assertEqual(got, [[b"1", b"2"]])
        self.fails(muster_pg.Timeout, "timed out", s.get, "there", timeout=0)

    def test_list(self) -> None:
        s = self.store
        names = [f"k{i:04}" for i in range(1500)]
        for n in names:
            s.set(n, n.encode())
        s.set("other", b"", ttl=100)
        self.assertEqual([(e.key, e.value, e.ttl) for e in s.list("k")], [(n, n.encode(), None) for n in names])
        [other] = s.list("o")
        self.assertTrue(other.ttl is not None and 0 < other.ttl <= 100 and other.revision > 0)

    def test_watch(self) -> None:
        s = self.store
        first = s.revision()
        s.set("w/1", b"a")
        s.delete("w/1")
        events = s.watch("w/", first)
        self.assertEqual([(e.key, e.value, e.deleted) for e in (next(events), next(events))], [("w/1", b"a", False), ("w/1", None, True)])
        self.fails(muster_pg.Timeout, "timed out", next, s.watch("w/", timeout=0.05))

    def test_refused(self) -> None:
        s = self.store
        self.fails(muster_pg.TooLarge, "16777217 bytes of value, the limit is 16777216", s.set, "k", bytes((16 << 20) + 1))
        self.fails(muster_pg.TooLarge, "bytes of name, the limit is 8192", s.get, "k" * 8193)
        self.fails(muster_pg.TooLarge, "a key of", s.wait, "k" * 8193)
        self.assertEqual(s.add("n"), 1)  # the connection is as it was

    def test_the_largest_value(self) -> None:
        v = os.urandom(1 << 20) * 15
        self.store.set("k", v)
        self.assertEqual(self.store.get("k"), v)
        self.store.delete("k")

    def test_many_threads(self) -> None:
        def work() -> None:
            for _ in range(50):
                self.store.add("n")

        threads = [threading.Thread(target=work) for _ in range(16)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(self.store.get("n"), b"800")

    def test_closed(self) -> None:
        s = muster_pg.Store.connect(ADDRESS)
        raised: List[Optional[BaseException]] = []

        def wait() -> None:
            try:
                s.wait("never")
            except muster_pg.Closed as e:
                raised.append(e)

        t = threading.Thread(target=wait)
        t.start()
        s.add(self.id())
        s.close()
        s.close()
        t.join()
        self.assertEqual(len(raised), 1)
        self.fails(muster_pg.Closed, r'^store: get "k": closed$', s.get, "k")

    def test_a_fork_is_an_error(self) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                self.store.get("k")
            except muster_pg.Closed as e:
                os._exit(0 if "another process" in str(e) else 1)
            os._exit(2)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(self.store.add("n"), 1)


class Addresses(unittest.TestCase):
    def test_refused(self) -> None:
        for address, says in (
            ("host", "missing port in address"),
            ("127.0.0.1:1,host", "missing port in address"),
            ("127.0.0.1:1,", "missing port in address"),
            ("host:", 'port "" is not a number from 1 to 65535'),
            ("host:65536", 'port "65536" is not a number'),
            ("::1:70", "too many colons"),
            ("redis://host:1", "it is no URL of the form muster://host:port"),
            ("mem:", "it is no URL"),
            ("muster://user:word@host:1", 'dial "muster://host:1": invalid request: there are no users'),
            ("muster://host:1#f", "#fragment"),
            ("muster://host:1?x=1", 'unknown parameter "x"'),
            ("muster://host:1?ca=a&ca=b", "ca is there twice"),
            ("muster://host:1?ca=", "ca is empty"),
            ("muster://host:1?tls=yes", 'tls is "yes", which is neither'),
            ("muster://host:1?tls=false&ca=a", "tls=false, and parameters of TLS"),
            ("muster://host:1?server-name=n", "server-name is of TLS"),
            ("muster://host:1?ca=/nowhere/ca.pem", "store: tls"),
            ("muster://host:1?cert=a", "go together"),
            ("muster://host:1?secret-file=/nowhere/secret", "store: secret"),
        ):
            with self.subTest(address), self.assertRaises(muster_pg.Error) as raised:
                muster_pg.Store.connect(address, timeout=1)
            self.assertIn(says, str(raised.exception))
            self.assertIsInstance(raised.exception, muster_pg.Invalid)
        with self.assertRaisesRegex(muster_pg.Invalid, "15 bytes are too few, it needs 16"):
            muster_pg.Store.connect("127.0.0.1:1", secret=b"fifteen bytes..")


class Groups(Case):
    def test_channels(self) -> None:
        def body(g: muster_pg.Group) -> Any:
            a, b = g.channel("a"), g.channel("b")
            self.assertIs(g.channel("a"), a)
            order = [a, b] if g.rank else [b, a]  # no order holds among channels
            threads = [threading.Thread(target=c.barrier) for c in order]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            a.send({"on": "a"}, 1 - g.rank)
            g.send(None, 1 - g.rank)
            got = (g.recv(1 - g.rank), a.recv(1 - g.rank))
            g.shutdown()
            return got

        self.assertEqual(self.ranks(2, body), [(None, {"on": "a"})] * 2)

    def test_busy(self) -> None:
        with self.alone() as g:
            g._busy.acquire()
            self.fails(muster_pg.Busy, "barrier of group .* on rank 0: another verb of this group is in progress", g.barrier)
            g._busy.release()
            g.barrier()

    def alone(self) -> muster_pg.Group:
        return muster_pg.Group.join(0, 1, ADDRESS, name=self.id(), timeout=30)

    def test_a_group_of_one(self) -> None:
        with self.alone() as g:
            g.barrier()
            self.assertEqual(g.broadcast({"a": (1,)}), {"a": (1,)})
            self.assertEqual(g.all_gather((1, 2)), [[1, 2]])
            self.assertEqual(g.gather(1), [1])
            self.assertEqual(g.scatter(["x"]), "x")
            self.assertEqual(g.all_to_all([b"x"]), [b"x"])
            self.assertEqual(g.all_reduce([1.5, 2.5], "avg"), [1.5, 2.5])
            self.assertEqual(g.all_reduce([7], "max"), [7])
            g.send(b"raw", 0)
            self.assertEqual(g.recv(0), b"raw")
            self.assertEqual(g.expired(), 0)

    def test_refused(self) -> None:
        with self.alone() as g:
            self.fails(muster_pg.Invalid, "rank 0: invalid: root 1 of a group of 1", g.broadcast, 1, 1)
            self.fails(muster_pg.Invalid, "a set cannot be sent", g.all_gather, {1})
            self.fails(muster_pg.TooLarge, "an object of 16.0 MiB, the limit is 16 MiB: send it in slices, or ", g.all_gather, bytes(16 << 20))
            self.fails(muster_pg.Invalid, "no reduction median", g.all_reduce, [1], "median")
            self.fails(muster_pg.Invalid, "rank 0: invalid: number 1 is an int or a float, not str", g.all_reduce, [1, "x"])
            self.fails(muster_pg.Invalid, "rank 0: invalid: number 0 is an int or a float, not bool", g.all_reduce, [True])
            self.fails(muster_pg.Invalid, "rank 0: invalid: numbers is a list, not int", g.all_reduce, 1)
            self.fails(muster_pg.Invalid, "rank 0: invalid: number 0 is 9223372036854775808, which is not from", g.all_reduce, [1 << 63])
            self.fails(muster_pg.Invalid, "rank 0: invalid: objs is a list, not int", g.scatter, 1)
            self.fails(muster_pg.Invalid, "rank 0: invalid: objs is a list, not str", g.all_to_all, "x")
            self.fails(muster_pg.Invalid, "rank 0: invalid: data is bytes, not str", g.broadcast_bytes, "x")
            self.fails(muster_pg.Invalid, "rank 0: invalid: data is bytes, not NoneType", g.all_gather_bytes, None)
            self.fails(muster_pg.Invalid, "rank 0: invalid: UnicodeEncodeError: ", g.all_gather, "\ud800")
            self.fails(muster_pg.Invalid, "rank 1 of a group of 1", g.send, 1, 1)
            self.fails(muster_pg.Invalid, "send to 0 of group", g.send, {1}, 0)
            e = self.fails(muster_pg.Timeout, "the deadline of rank 0 had passed when it called", g.barrier, timeout=0)
            self.assertEqual(e.by, 0)
            g.barrier()
        self.fails(muster_pg.Closed, "closed: this rank has closed it", g.barrier)
        self.fails(muster_pg.Closed, "closed", g.recv, 0)

    def test_who_does_not_join(self) -> None:
        on = rf'^pgroup: create of group "{re.escape(self.id())}" on rank 1 of 3: timed out after [\d.]+s: missing ranks 0 and 2$'
        e = self.fails(muster_pg.Timeout, on, muster_pg.Group.join, 1, 3, ADDRESS, name=self.id(), timeout=0.5)
        self.assertEqual(e.missing, [0, 2])

    def test_no_store(self) -> None:
        """Rank 0 of a launcher's job says at once what to set: the other ranks end when the launcher sees that it
        has failed.
        """
        with socket.create_server(("127.0.0.1", 0)) as s:
            port = s.getsockname()[1]
        at = f"127.0.0.1:{port}"
        says = f'^pgroup: create of group "world" on rank 1 of 3: no process listens at {at} after 0.5s: start rank 0 or the store'
        e = self.fails(muster_pg.Timeout, says, muster_pg.Group.join, 1, 3, at, timeout=0.5)
        self.assertIsInstance(e, muster_pg.Unavailable)
        self.fails(muster_pg.Timeout, r'\(a Python rank 0 does not host the store: "muster serve" does\)', muster_pg.Group.join, 0, 3, at, timeout=0.5)
        env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "MUSTER_RUN": "r"}
        began = time.monotonic()
        with mock.patch.dict(os.environ, env):
            os.environ.pop("MUSTER_STORE", None)
            says = f"rank 0 finds no store at {at}, and Python ranks host none: set MUSTER_STORE"
            self.fails(muster_pg.Unavailable, says, muster_pg.Group.from_env)
        self.assertLess(time.monotonic() - began, 60, "not the 5 minutes of the timeout")

    def test_expired_messages(self) -> None:
        with muster_pg.Group.join(0, 1, self.store, name="g", expiry=0.01) as g:
            g.send("late", 0)
            threading.Event().wait(0.1)
            self.fails(muster_pg.Expired, "recv from 0 of group", g.recv, 0)
            g._membership.config.expiry = 60  # for the next one, however slow the machine
            g.send("next", 0)
            self.assertEqual((g.recv(0), g.expired()), ("next", 1))

    def test_configurations(self) -> None:
        for rank, size, more, says in (
            (0, 0, {}, "size is 0: is the environment of the launcher missing"),
            (2, 2, {}, "rank is 2, with a size of 2"),
            (True, 2, {}, "^pgroup: join: rank is an int, not bool$"),
            (0, 2.0, {}, "^pgroup: join: size is an int, not float$"),
            (0, 1 << 31, {}, "size is 2147483648"),
            (0, 1, {"name": b"n"}, "join: name is a str, not bytes"),
            (0, 1, {"name": "n" * 2049}, "name has 2049 bytes, the limit is 2048"),
            (0, 1, {"run": 1}, "join: run is a str, not int"),
            (0, 1, {"host": None}, "join: host is a str, not NoneType"),
            (0, 1, {"expiry": math.nan}, "join: expiry is nan"),
            (0, 1, {"timeout": math.nan}, "join: timeout is nan"),
            (0, 1, {"timeout": "1"}, "join: timeout is a number of seconds, not str"),
            (0, 1, {"liveness_timeout": math.inf}, "join: liveness_timeout is inf: it has to be > 0 seconds, and an end"),
            (0, 1, {"secret": "secret"}, "join: secret is bytes, not str"),
            (0, 1, {"tls": True}, "join: tls is a muster_pg.TLS, not bool"),
            (0, 1, {"store": 7070}, "join: store is an address or a muster_pg.Store, not int"),
            (0, 1, {"timeout": 0}, "timeout is 0"),
            (0, 1, {"store": ""}, "there is no store"),
        ):
            args: Any = {"store": ADDRESS, **more}
            self.fails(muster_pg.Invalid, says, muster_pg.Group.join, rank, size, **args)

    def test_an_interrupt_is_a_no_for_all(self) -> None:
        """Has what Ctrl-C does, where the verb runs in the main thread."""
        others: List[muster_pg.Cancelled] = []
        interrupted = threading.Event()

        def other() -> None:
            with muster_pg.Group.join(1, 2, ADDRESS, name=self.id(), timeout=30) as g:
                interrupted.wait()
                try:
                    g.barrier()
                except muster_pg.Cancelled as e:
                    others.append(e)
                g.barrier()
                g.shutdown()

        t = threading.Thread(target=other)
        t.start()
        with muster_pg.Group.join(0, 2, ADDRESS, name=self.id(), timeout=30) as g:
            before = signal.signal(signal.SIGALRM, signal.default_int_handler)
            self.addCleanup(signal.signal, signal.SIGALRM, before)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with self.assertRaises(KeyboardInterrupt):
                g.barrier()
            interrupted.set()
            g.barrier()
            g.shutdown()
        t.join()
        self.assertRegex(str(others), r"barrier #1 of group .* on rank 1 of 2: cancelled by rank 0")

    def test_a_rank_that_is_held(self) -> None:
        with self.alone():
            self.fails(muster_pg.Conflict, "create of group .* on rank 0 of 1: ", self.alone)

    def test_errors_can_be_pickled(self) -> None:
        with self.alone() as g:
            rank = self.fails(muster_pg.Timeout, "deadline", g.barrier, timeout=0)
        store = self.fails(muster_pg.NotFound, "not found", self.store.get, "k")
        for e in (rank, store):
            again = pickle.loads(pickle.dumps(e))
            self.assertEqual((type(again), str(again), again.code), (type(e), str(e), e.code))


if __name__ == "__main__":
    unittest.main()
