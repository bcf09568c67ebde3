"""What is left when something ends: no thread, no socket, and no waiting call."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import warnings
from contextlib import contextmanager
from typing import Iterator, Set
from unittest import mock

import muster_pg
from muster_pg import _session, _wire
from muster_pg._wire import Op
from test_session import Fake, Outcome
from test_store import ADDRESS, Case


def threads() -> Set[str]:
    """The threads with an owner: a resolver's thread has none."""
    return {t.name for t in threading.enumerate() if t.name in ("muster reader", "muster sender", "muster trace")}


def left() -> Set[str]:
    """Are threads that do not end, however slow the machine."""
    for t in threading.enumerate():
        if t.name in threads():
            t.join(20)
    return threads()


def files() -> int:
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


@contextmanager
def stopped(server: muster_pg.Server) -> Iterator[None]:
    """Stops a server, of which no thread runs any more, and continues it."""
    pid = server._process.pid
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Ends(Case):
    def setUp(self) -> None:  # without its own store
        self.assertEqual(left(), set())

    def test_close_leaves_no_thread_and_no_socket(self) -> None:
        before = files()
        for _ in range(3):
            with muster_pg.Store.connect(ADDRESS) as store:
                store.set(self.id(), bytes(4 << 20))
                waiting = Outcome(store.wait, "never")
                with tempfile.TemporaryDirectory() as traces, muster_pg.Group.join(0, 1, ADDRESS, name=self.id(), timeout=30, trace_dir=traces) as g:
                    g.send(bytes(1 << 20), 0)
                    g.channel("c").barrier()
            self.assertIsInstance(waiting(), muster_pg.Closed)
            self.assertEqual((left(), files()), (set(), before))

    def test_close_of_a_group_whose_store_hangs(self) -> None:
        with muster_pg.Server() as server, muster_pg.Store.connect(server.address, timeout=60, liveness_timeout=600) as store:
            g = muster_pg.Group.join(0, 1, store)
            verbs = [Outcome(g.recv, 0), Outcome(g.channel("c").recv, 0)]
            other = Outcome(store.wait, "key")
            g.channel("d").barrier()  # the store has the others too
            with stopped(server):
                g.close()
                for verb in verbs:
                    self.assertIsInstance(verb(), muster_pg.Closed)
            store.set("key", b"value")
            self.assertEqual(other(), [b"value"])

    def test_what_is_dropped_is_closed(self) -> None:
        before = files()
        for dropped in (
            [muster_pg.Store.connect(ADDRESS)], [muster_pg.Store.connect(ADDRESS).below("p")], [muster_pg.Group.join(0, 1, ADDRESS, name=self.id(), timeout=30)],
        ):  # fmt: skip
            gc.collect()
            for store in dropped:
                (store.store if isinstance(store, muster_pg.Group) else store).revision()
            del store
            with self.assertWarnsRegex(ResourceWarning, "unclosed <muster_pg.Store "):
                dropped.clear()
                gc.collect()
        self.assertEqual((left(), files()), (set(), before))

    def test_a_dropped_store_says_goodbye(self) -> None:
        fake = Fake()
        self.addCleanup(fake.close)
        for connected in (True, False):
            with self.subTest(connected=connected):
                got = Outcome(muster_pg.Store.connect, fake.addr, timeout=30, liveness_timeout=0.6)
                peer, _ = fake.welcome()
                dropped = [got()]
                del got
                if not connected:
                    peer.conn.close()
                    peer, _ = fake.accept()  # not a welcome
                with self.assertWarns(ResourceWarning):
                    dropped.clear()
                    gc.collect()
                if connected:
                    self.assertEqual(peer.frame()[0], Op.GOODBYE)
                peer.conn.close()
                self.assertEqual(left(), set())

    def test_a_failed_join_leaves_nothing(self) -> None:
        before = files()
        with tempfile.TemporaryDirectory() as traces, self.assertRaises(muster_pg.Timeout):
            muster_pg.Group.join(0, 2, ADDRESS, name=self.id(), timeout=1, trace_dir=traces)
        with self.assertRaises(muster_pg.Unavailable):
            muster_pg.Store.connect("127.0.0.1:1")
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            self.fails(muster_pg.Unavailable, "can't start new thread", muster_pg.Store.connect, ADDRESS)
        self.assertEqual((left(), files()), (set(), before))

    def test_close_with_a_peer_that_reads_nothing(self) -> None:
        before = files()
        fake = Fake()
        got = Outcome(muster_pg.Store.connect, fake.addr, timeout=30)
        fake.welcome()
        store = got()
        setting = Outcome(store.set, "k", bytes(16 << 20))
        while "muster sender" not in threads():
            time.sleep(0.01)
        with mock.patch.object(_session, "_GOODBYE", 0.05):
            store.close()
        self.assertIsInstance(setting(), muster_pg.Closed)
        fake.close()
        self.assertEqual((left(), files()), (set(), before))

    def python(self, code: str) -> str:
        args = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
        out = subprocess.run(args, env={**os.environ, "AT": ADDRESS}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        self.assertEqual(out.returncode, 0, out.stdout)
        return out.stdout.decode()

    def test_the_interpreter_ends_though_calls_wait(self) -> None:
        """Has daemons that wait without a timeout, in both kinds of calls, and large values under way."""
        self.python("""
            import math, os, threading, muster_pg
            s = muster_pg.Store.connect(os.environ["AT"])
            g = muster_pg.Group.join(0, 1, os.environ["AT"], name="ends")
            for f in (lambda: s.wait("never", timeout=math.inf), lambda: g.recv(0, timeout=math.inf), lambda: s.set("large", bytes(8 << 20))):
                threading.Thread(target=f, daemon=True).start()
            s.add("begun")
        """)

    def test_close_ends_the_calls_that_keep_the_interpreter(self) -> None:
        out = self.python("""
            import math, os, threading, muster_pg
            def wait():
                try:
                    s.wait("never", timeout=math.inf)
                except muster_pg.Closed:
                    print("closed")
            with muster_pg.Store.connect(os.environ["AT"]) as s:
                threading.Thread(target=wait).start()
                s.add("begun")
        """)
        self.assertEqual(out, "closed\n")

    def test_asyncio(self) -> None:
        """Calls block; in a thread they do not block the loop, and what bounds them is their own
        timeout.
        """
        self.python("""
            import asyncio, os, muster_pg
            async def main(s):
                waiting = asyncio.create_task(asyncio.to_thread(s.wait, "asyncio"))
                await asyncio.to_thread(s.set, "asyncio", b"v")
                assert await waiting == [b"v"]
            with muster_pg.Store.connect(os.environ["AT"]) as s:
                asyncio.run(main(s))
        """)

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_a_fork_touches_nothing(self) -> None:
        """Has locks held at the fork, as another thread could."""
        with muster_pg.Store.connect(ADDRESS) as store, muster_pg.Group.join(0, 1, ADDRESS, name=self.id(), timeout=30) as g, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a process with threads is forked
            channel = g.channel("c")
            channel.barrier()
            receiving = Outcome(channel.recv, 0)
            session = g._membership.store._session
            while not session._calls:
                time.sleep(0.001)
            with session._cond, store._session._cond:
                pid = os.fork()
                if pid == 0:
                    signal.alarm(20)  # whatever hangs ends here
                    os._exit(_child(store, g))
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            channel.send(1, 0)
            self.assertEqual(receiving(), 1)
            channel.close()
            self.assertEqual(store.add(self.id()), 1)
            g.barrier()

    def test_a_reader_that_fails_is_no_hang(self) -> None:
        """Whatever a reply does to the thread that reads it, the call ends, and the next one finds
        a connection.
        """
        fake = Fake()
        self.addCleanup(fake.close)
        got = Outcome(muster_pg.Store.connect, fake.addr, timeout=30)
        peer, _ = fake.welcome()
        store = got()
        with mock.patch.object(_wire, "parse_reply", side_effect=MemoryError("no room")):
            getting = Outcome(store.get, "k")
            op, _, call, _ = peer.frame()
            peer.say(op, call, flags=4, body=b"\0\0\0\0")
            self.assertIsInstance(getting(), muster_pg.Unavailable)
        peer, resumes = fake.welcome()
        self.assertEqual(resumes, (7, 3))
        asking = Outcome(store.revision)
        op, _, call, _ = peer.frame()
        self.assertEqual(op, Op.PING)
        peer.number(op, call, 0)
        self.assertEqual(asking(), 1)
        peer.conn.close()
        fake.close()
        store.close()


def _child(store: muster_pg.Store, g: muster_pg.Group) -> int:
    """Returns 0 if each verb is refused, and closing does nothing."""
    for verb in (lambda: store.get("k"), lambda: store.add("k"), g.barrier, lambda: g.send(1, 0), lambda: g.recv(0)):
        try:
            verb()
        except muster_pg.Closed as e:
            if "fork" not in str(e):
                return 1
        else:
            return 2
    g.channel("c").close()
    g.close()
    store.close()
    with muster_pg.Store.connect(ADDRESS) as own:
        own.revision()
    return 0


if __name__ == "__main__":
    unittest.main()
