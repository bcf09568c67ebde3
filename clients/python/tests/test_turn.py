"""Callers that read their own answers, between the reads of the session's thread."""

from __future__ import annotations

import socket
import threading
import unittest
from typing import Any, Callable, List
from unittest import mock

import muster_pg
from muster_pg import _dial, _pipe, _wire
from muster_pg._wire import Op
from test_session import Fake, Outcome
from test_store import Case


class Turns(Case):
    def reads(self) -> int:
        return self.store._session._turn._reads

    def in_a_callers_read(self, then: Callable[[Any], None]) -> Any:
        """Has receive call then, once, with what a caller of this thread has received."""
        receive, here, seen = _pipe.Pipe.receive, threading.current_thread(), list[bytes]()

        def received(pipe: _pipe.Pipe, *args: Any) -> bytes:
            b = receive(pipe, *args)
            if threading.current_thread() is here and not seen:
                seen.append(b)
                then(pipe)
            return b

        return mock.patch.object(_pipe.Pipe, "receive", received)

    def settle(self) -> None:
        """Returns when a caller has read its own answer."""
        reads = self.reads()
        while self.reads() == reads:
            self.store.exists("k")

    def test_callers_read_their_own_answers(self) -> None:
        readers: List[threading.Thread] = []
        read = _dial.Line.read

        def noted(line: _dial.Line, *args: Any) -> Any:
            readers.append(threading.current_thread())
            return read(line, *args)

        with mock.patch.object(_dial.Line, "read", noted):
            while threading.current_thread() not in readers:
                self.store.set("k", b"v")
        self.assertEqual(self.store.get("k"), b"v")

    def test_a_call_that_waits_is_read_by_the_session(self) -> None:
        self.settle()
        waiting = Outcome(self.store.wait, "later", timeout=20)
        while not self.store._session._calls:
            pass
        self.store.set("later", b"v")
        self.assertEqual(waiting(), [b"v"])

    def test_many_threads(self) -> None:
        def adds() -> None:
            for _ in range(200):
                self.store.add("n")

        self.settle()
        threads = [Outcome(adds) for _ in range(8)]
        self.assertEqual([t() for t in threads], [None] * 8)
        self.assertEqual(self.store.add("n", 0), 1600)

    def test_a_signal_in_the_middle_of_an_answer(self) -> None:
        """The answer is lost with the signal, and the call is given up; the next ones go on. What
        the handler raises comes to the caller, even if it could be of the connection.
        """
        for kind in (KeyboardInterrupt, RuntimeError, TimeoutError, OSError):
            self.settle()

            def interrupt(_: _pipe.Pipe) -> None:
                raise kind("timed out")

            with self.in_a_callers_read(interrupt):
                with self.assertRaises(kind):
                    while True:
                        self.store.add("n")
            reached = self.store.add("n", 0)
            self.assertEqual(self.store.add("n"), reached + 1)

    def test_a_signals_handler_that_makes_a_call(self) -> None:
        for n in range(1, 4):
            self.settle()
            added = n - 1

            def handler(_: _pipe.Pipe) -> None:
                self.store.set("from a handler", b"%d" % n, timeout=20)

            with self.in_a_callers_read(handler):
                while self.store.add("n", 0) == added and not self.store.exists("from a handler"):
                    pass
                self.assertEqual(self.store.add("n", timeout=20), n)
            self.assertEqual(self.store.wait("from a handler", timeout=20), [b"%d" % n])
            self.store.delete("from a handler")

    def test_a_signals_handler_while_its_thread_has_the_lock(self) -> None:
        """Its call is Busy, and the interrupted one goes on."""
        encode, raised = _wire.address, list[BaseException]()

        def interrupt(*args: Any) -> None:
            if not raised:
                try:
                    raised.append(RuntimeError("no error"))
                    self.store.set("from a handler", b"")
                except BaseException as e:
                    raised[0] = e
            encode(*args)

        with mock.patch.object(_wire, "address", interrupt):
            self.assertEqual(self.store.add("n", timeout=20), 1)
        self.assertIsInstance(raised[0], muster_pg.Busy)
        self.assertRegex(str(raised[0]), r'^store: set "from a handler": .*signal handler')
        self.assertFalse(self.store.exists("from a handler"))


class Connections(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = Fake()
        self.addCleanup(self.fake.close)

    def test_a_signals_handler_in_the_middle_of_a_send(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as conn:
            peer, _ = listener.accept()
            with peer:
                pipe = _pipe.Pipe(conn)
                send = pipe._send

                def interrupted(data: bytes) -> None:
                    send(data[:3])
                    with mock.patch.object(pipe, "_send", send):
                        pipe.send(b"from a handler")
                    send(data[3:])

                with mock.patch.object(pipe, "_send", interrupted):
                    pipe.send(b"a frame")
                self.assertEqual([peer.recv(100), peer.recv(100)], [b"a f", b""])
                pipe.close()

    def test_a_connection_that_ends_while_a_caller_reads(self) -> None:
        connecting = Outcome(muster_pg.Store.connect, self.fake.addr, timeout=10)
        peer, _ = self.fake.welcome()
        store: muster_pg.Store = connecting()
        self.addCleanup(store.close)
        for n in range(1, 4):
            before, expected = store._session._turn._reads, 0
            while store._session._turn._reads == before:  # then the next caller may be the one that reads
                adding, expected = Outcome(store.add, "k", 1), expected + 1
                op, call, number, _ = peer.numbered()
                peer.number(op, call, expected)
                self.assertEqual(adding(), expected)
            adding = Outcome(store.add, "k", 1)
            add = peer.numbered()
            peer.conn.close()
            peer, resumes = self.fake.welcome()
            self.assertEqual(resumes, (7, 3))
            self.assertEqual(peer.numbered(), add)
            peer.number(*add[:2], n)
            self.assertEqual(adding(), n)
            peer.say(Op.PROBE)  # answered though no caller reads
            self.assertEqual(peer.frame()[0], Op.PROBE)


if __name__ == "__main__":
    unittest.main()
