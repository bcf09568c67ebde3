"""What a session says on the wire, to a store that is played here: what Go's store does is tested
with Go's store.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import unittest
import warnings
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple
from unittest import mock

import muster_pg
from muster_pg import _wire
from muster_pg._wire import Code, Op

_HEADER = struct.Struct("<IBBHQ")


class Peer:
    """The store's end of one connection."""

    def __init__(self, conn: socket.socket) -> None:
        self.conn = conn
        conn.settimeout(10)

    def take(self, n: int) -> bytes:
        b = b""
        while len(b) < n:
            got = self.conn.recv(n - len(b))
            if not got:
                raise EOFError
            b += got
        return b

    def frame(self) -> Tuple[Op, int, int, bytes]:
        """Returns the next request: operation, flags, id, body."""
        length, op, flags, _, call = _HEADER.unpack(self.take(16))
        return Op(op), flags, call, self.take(length)

    def numbered(self) -> Tuple[Op, int, int, int]:
        """Returns the next request, which is numbered: operation, id, number, acknowledged."""
        op, flags, call, body = self.frame()
        assert flags & 8, op
        number, acked = struct.unpack_from("<QQ", body)
        return op, call, number, acked

    def forms(self, call: int, generation: int, members: List[bytes], *, n: int = 0, nums: Sequence[int] = ()) -> None:
        """Answers a join: a group of these members, on one node unless nums say something else."""
        nums = nums or (len(members), -1, 1, 7, 0, len(members), 1)
        body = struct.pack("<Qq", generation, n)
        if members:
            body += _wire.encode_parts(members)
        self.say(Op.JOIN, call, flags=1 | 8 * bool(members) | 32, body=body + struct.pack(f"<I{len(nums)}q", len(nums), *nums))

    def say(self, op: Op, call: int = 0, *, flags: int = 0, code: Code = Code.OK, body: bytes = b"") -> None:
        self.conn.sendall(_HEADER.pack(len(body), op, flags, code, call) + body)

    def number(self, op: Op, call: int, n: int) -> None:
        self.say(op, call, flags=1, body=struct.pack("<Qq", 1, n))

    def values(self, call: int, *values: bytes) -> None:
        self.say(Op.WAIT, call, flags=8, body=_wire.encode_parts(values))


class Fake:
    """A store that is played."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(10)
        self.addr = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self._conns: List[socket.socket] = []

    def close(self) -> None:
        self.listener.close()
        for conn in self._conns:
            conn.close()

    def connection(self) -> Peer:
        conn, _ = self.listener.accept()
        self._conns.append(conn)
        return Peer(conn)

    def accept(self) -> Tuple[Peer, Tuple[int, int]]:
        """Returns a connection whose hello is not answered yet, and the session and incarnation
        that it resumes, or zeros.
        """
        p = self.connection()
        assert p.take(12) == _wire.PREFACE
        op, flags, _, body = p.frame()
        assert op == Op.HELLO
        return p, struct.unpack_from("<QQ", body, len(body) - 16) if flags & 32 else (0, 0)

    def welcome(self, session: int = 7, incarnation: int = 3, durable: int = 0) -> Tuple[Peer, Tuple[int, int]]:
        p, resumes = self.accept()
        nums = struct.pack("<Iqq", 2, durable, 500_000_000)
        p.say(Op.HELLO, flags=1 | 4 | 32, body=struct.pack("<Qq", incarnation, session) + b"\x03\0\0\0tok" + nums)
        return p, resumes


class Outcome:
    """A call in a thread of its own."""

    def __init__(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.value: Any = None

        def run() -> None:
            try:
                self.value = f(*args, **kwargs)
            except Exception as e:
                self.value = e

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def __call__(self) -> Any:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.value


class Sessions(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = Fake()
        self.addCleanup(self.fake.close)

    def fresh(self) -> None:
        self.fake.close()
        self.fake = Fake()
        self.addCleanup(self.fake.close)

    @contextlib.contextmanager
    def connected(self, liveness_timeout: Optional[float] = None, **welcome: int) -> Iterator[Tuple[muster_pg.Store, Peer]]:
        got = Outcome(muster_pg.Store.connect, self.fake.addr, timeout=10, liveness_timeout=liveness_timeout)
        peer, resumes = self.fake.welcome(**welcome)
        self.assertEqual(resumes, (0, 0))
        store: muster_pg.Store = got()
        try:
            yield store, peer
        finally:
            self.fake.close()
            store.close()

    def test_probes_are_answered(self) -> None:
        with self.connected() as (_, peer):
            peer.say(Op.PROBE)
            self.assertEqual(peer.frame(), (Op.PROBE, 0, 0, b""))

    def test_goodbye(self) -> None:
        with self.connected() as (store, peer):
            closing = Outcome(store.close)
            self.assertEqual(peer.frame()[0], Op.GOODBYE)
            peer.conn.close()
            self.assertIsNone(closing())

    def test_numbers_are_dense_and_acknowledged(self) -> None:
        with self.connected() as (store, peer):
            for n in range(1, 4):
                got = Outcome(store.add, "k")
                op, call, number, acked = peer.numbered()
                self.assertEqual((op, number, acked), (Op.ADD, n, n - 1))
                peer.number(op, call, 10 * n)
                self.assertEqual(got(), 10 * n)

    def test_what_has_no_answer_is_repeated(self) -> None:
        with self.connected() as (store, peer):
            adding = Outcome(store.add, "k", 5)
            add = peer.numbered()
            waiting = Outcome(store.wait, "w")
            wait = peer.frame()
            peer.conn.close()
            peer, resumes = self.fake.welcome()
            self.assertEqual(resumes, (7, 3))
            self.assertEqual(peer.numbered(), add)  # under its number
            self.assertEqual(peer.frame(), wait)  # under its id
            peer.values(wait[2], b"v")
            peer.number(*add[:2], 5)
            self.assertEqual((adding(), waiting()), (5, [b"v"]))

    def test_a_request_is_sent_again_while_the_store_has_no_room_for_its_answer(self) -> None:
        with self.connected() as (store, peer):
            adding = Outcome(store.add, "k", 5)
            add = peer.numbered()
            waiting = Outcome(store.wait, "w")
            wait = peer.frame()
            for _ in range(3):
                peer.say(Op.ADD, add[1], code=Code.AGAIN)
                self.assertEqual(peer.numbered(), add)  # under its number
            peer.number(*add[:2], 5)
            self.assertEqual(adding(), 5)
            peer.say(Op.WAIT, wait[2], code=Code.AGAIN)
            self.assertEqual(peer.frame(), wait)  # under its id
            peer.values(wait[2], b"v")
            self.assertEqual(waiting(), [b"v"])
            given_up = Outcome(store.wait, "w", timeout=0.05)
            wait = peer.frame()
            peer.say(Op.WAIT, wait[2], code=Code.AGAIN)
            while peer.frame()[0] != Op.CANCEL:
                pass
            peer.say(Op.WAIT, wait[2], code=Code.TIMEOUT, flags=0)
            self.assertIsInstance(given_up(), muster_pg.Timeout)

    def test_what_was_given_up_does_not_take_effect_later(self) -> None:
        with self.connected() as (store, peer):
            late = Outcome(store.add, "k", timeout=0.01)
            _, call, number, _ = peer.numbered()
            e = late()
            self.assertIsInstance(e, muster_pg.Unknown)
            self.assertEqual(str(e), 'store: add "k": outcome unknown: timed out')
            waiting = Outcome(store.wait, "w", timeout=0.01)
            wait = peer.frame()
            self.assertEqual(peer.frame(), (Op.CANCEL, 4, wait[2], struct.pack("<HI", Code.TIMEOUT, 0)))
            self.assertIsInstance(waiting(), muster_pg.Timeout)
            peer.conn.close()
            peer, _ = self.fake.welcome()
            self.assertEqual(peer.numbered(), (Op.SKIP, call, number, 0))
            self.assertEqual(peer.frame(), (Op.CANCEL, 4, wait[2], struct.pack("<HI", Code.TIMEOUT, 0)))
            peer.say(Op.SKIP, call)
            peer.say(Op.PROBE)
            self.assertEqual(peer.frame()[0], Op.PROBE)  # it has the answer
            more = Outcome(store.add, "k")
            op, call, number, acked = peer.numbered()
            self.assertEqual((op, number, acked), (Op.ADD, 2, 1))
            peer.number(op, call, 1)
            self.assertEqual(more(), 1)

    def test_a_new_session(self) -> None:
        lost, forgotten = "the session was not resumed in time", "the store was restarted without its data"
        for incarnation, says in ((3, lost), (4, forgotten)):
            with self.subTest(says):
                self.fresh()
                with self.connected() as (store, peer):
                    adding = Outcome(store.add, "k")
                    peer.numbered()
                    waiting = Outcome(store.wait, "w")
                    wait = peer.frame()
                    following = Outcome(lambda: list(store.watch("p", 5)))
                    watch = peer.frame()
                    peer.conn.close()
                    peer, _ = self.fake.welcome(session=8, incarnation=incarnation)
                    self.assertEqual(peer.frame(), wait)  # it changes nothing: it is asked again
                    if incarnation == 3:
                        self.assertEqual(peer.frame(), watch)
                        peer.say(Op.WATCH, watch[2], code=Code.COMPACTED)
                    self.assertIsInstance(following(), muster_pg.Compacted)
                    peer.values(wait[2], b"v")
                    self.assertEqual(waiting(), [b"v"])
                    e = adding()
                    self.assertIsInstance(e, muster_pg.Unknown)
                    self.assertEqual(isinstance(e, muster_pg.SessionLost), incarnation == 3)
                    self.assertIn(says, str(e))
                    more = Outcome(store.add, "k")
                    op, call, number, acked = peer.numbered()
                    self.assertEqual((number, acked), (1, 0))  # numbers begin anew
                    peer.number(op, call, 1)
                    self.assertEqual(more(), 1)

    def test_a_durable_store_is_missed_by_a_client_that_calls_nothing(self) -> None:
        got = Outcome(muster_pg.Store.connect, self.fake.addr, liveness_timeout=0.6)
        peer, _ = self.fake.welcome(durable=1)
        store = got()
        op, _, _, _ = peer.frame()
        self.assertEqual(op, Op.PING)
        _, resumes = self.fake.welcome(durable=1)  # for the same session
        self.assertEqual(resumes, (7, 3))
        self.fake.close()
        store.close()

    def test_a_silent_store_is_asked_and_given_up(self) -> None:
        with self.connected(liveness_timeout=1.5) as (store, peer):
            waiting = Outcome(store.wait, "w")
            wait = peer.frame()
            self.assertEqual(peer.frame(), (Op.PING, 0, 0, b""))
            peer, resumes = self.fake.welcome()
            self.assertEqual(resumes, (7, 3))
            self.assertEqual(peer.frame(), wait)
            peer.values(wait[2], b"v")
            self.assertEqual(waiting(), [b"v"])

    def test_a_long_request_keeps_its_connection(self) -> None:
        with self.connected(liveness_timeout=0.6) as (store, peer):
            peer.conn.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            size = 16 << 20
            setting = Outcome(store.set, "k", bytes(size))
            peer.conn.settimeout(5)
            left, pause = size, threading.Event()
            while left > 0:
                got = len(peer.conn.recv(min(left, 64 << 10)))
                self.assertGreater(got, 0, "the client has given up a store that reads")
                left -= got
                pause.wait(0.005)
            peer.conn.close()
            del setting  # its answer is of no interest

    def test_a_frame_that_the_store_cannot_read(self) -> None:
        with self.connected() as (store, peer):
            adding = Outcome(store.add, "k")
            _, call, _, _ = peer.numbered()
            peer.say(Op.GOODBYE, call, code=Code.INVALID)
            self.assertIsInstance(adding(), muster_pg.Invalid)
            peer.conn.close()
            peer, resumes = self.fake.welcome()
            self.assertEqual(resumes, (7, 3))
            self.assertEqual(peer.frame()[0], Op.SKIP)  # the number is used, and the request is not sent again

    def test_a_store_that_ends(self) -> None:
        why = b"no space left on the store's disk"
        for code, body, says in ((Code.LEFT, b"", "it has shut down"), (Code.UNAVAILABLE, struct.pack("<I", len(why)) + why, why.decode())):
            with self.subTest(code), self.connected(durable=int(code == Code.UNAVAILABLE)) as (store, peer):
                waiting = Outcome(store.wait, "w")
                peer.frame()
                peer.say(Op.GOODBYE, flags=2 if body else 0, code=code, body=body)
                e = waiting()
                self.assertEqual((e.code, str(e)), (code, f'store: wait "w": store unavailable: {self.fake.addr}: {says}'))
                self.assertIsInstance(e, muster_pg.Unavailable)
                peer.conn.close()
                self.fake.listener.close()  # a durable store may come back, and why it has ended is said until then
                later = Outcome(store.get, "k", timeout=0.1)()
                self.assertIn(says, str(later))
            self.fresh()

    def test_ways_are_tried_in_turn(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as s:
            dead = "127.0.0.1:%d" % s.getsockname()[1]
        other = Fake()
        self.addCleanup(other.close)
        got = Outcome(muster_pg.Store.connect, f"{dead},{self.fake.addr},{other.addr}", timeout=10)
        peer, _ = self.fake.welcome()
        store: muster_pg.Store = got()
        adding = Outcome(store.add, "k", 5)
        add = peer.numbered()
        self.fake.close()  # refused, and then the next way
        peer, resumes = other.welcome()
        self.assertEqual((resumes, peer.numbered()), ((7, 3), add))
        peer.number(*add[:2], 5)
        self.assertEqual(adding(), 5)
        other.close()
        store.close()

    def test_no_way_leads_there(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
            ways = ",".join("127.0.0.1:%d" % s.getsockname()[1] for s in (a, b))
        with self.assertRaisesRegex(muster_pg.Unavailable, f'^store: dial "{ways}": store unavailable: connection refused$'):
            muster_pg.Store.connect(ways, timeout=10)

    def test_a_relay_says_why(self) -> None:
        """Code UNAVAILABLE: a store may be there soon; LOST: no process listens there; DENIED: that does not
        help to wait for.
        """
        for code, waits in ((Code.UNAVAILABLE, True), (Code.LOST, False), (Code.DENIED, False)):
            with self.subTest(code), self.connected() as (store, peer):
                getting = Outcome(store.get, "k")
                peer.frame()
                peer.conn.close()
                peer, _ = self.fake.accept()
                detail = b"the relay cannot reach the store"
                peer.say(Op.HELLO, flags=2, code=code, body=struct.pack("<I", len(detail)) + detail)
                if waits:
                    self.fake.welcome()
                    store.close()
                e = getting()
                self.assertEqual("the relay cannot reach the store" in str(e), not waits, e)
                self.assertIsInstance(e, muster_pg.Closed if waits else muster_pg.Denied if code == Code.DENIED else muster_pg.Unavailable)
            self.fresh()

    def test_a_durable_store_is_waited_for(self) -> None:
        with self.connected(durable=1) as (store, peer):
            waiting = Outcome(store.wait, "w")
            wait = peer.frame()
            peer.say(Op.GOODBYE, code=Code.LEFT)
            peer.conn.close()
            host, _, port = self.fake.addr.rpartition(":")
            self.fake.listener.close()  # refused for a while
            self.assertIsInstance(Outcome(store.add, "k", timeout=0.2)(), muster_pg.Timeout)
            self.fake.listener = socket.create_server((host, int(port)))
            self.fake.listener.settimeout(10)
            peer, _ = self.fake.welcome()
            frame = peer.frame()
            if frame[0] == Op.SKIP:  # the add had been sent just before the end
                frame = peer.frame()
            self.assertEqual(frame, wait)
            peer.values(wait[2], b"v")
            self.assertEqual(waiting(), [b"v"])

    def test_a_reply_that_is_none(self) -> None:
        for body in (b"\1", b""):
            with self.subTest(body=body):
                self.fresh()
                with self.connected() as (store, peer):
                    getting, waiting = Outcome(store.get, "k"), Outcome(store.wait, "w")
                    calls = [peer.frame()[2] for _ in range(2)]
                    peer.say(Op.GET, calls[0], flags=1, body=body)
                    for got in (getting, waiting):
                        self.assertIsInstance(got(), muster_pg.Unavailable)
                        self.assertIn("truncated frame", str(got()))

    def test_other_servers(self) -> None:
        for says in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 mail.example.org ESMTP\r\n", _HEADER.pack(0, Op.PING, 0, 0, 0)):
            got = Outcome(muster_pg.Store.connect, self.fake.addr, timeout=10, wait=True)
            self.fake.connection().conn.sendall(says)
            self.assertIsInstance(got(), muster_pg.ProtocolError)
            self.assertIn("not a muster store: ", str(got()))

    def test_a_store_that_refuses(self) -> None:
        got = Outcome(muster_pg.Store.connect, self.fake.addr, timeout=10)
        peer, _ = self.fake.accept()
        peer.say(Op.HELLO, code=Code.FULL, flags=2, body=b"\x04\0\0\0room")
        self.assertIsInstance(got(), muster_pg.Full)
        self.assertEqual(str(got()), f'store: dial "{self.fake.addr}": store unavailable: store full: room')

    def test_a_false_store_learns_nothing_of_a_secret(self) -> None:
        got = Outcome(muster_pg.Store.connect, self.fake.addr, timeout=10, secret=b"x" * 16)
        peer, _ = self.fake.accept()
        peer.say(Op.PROOF, flags=4, body=b"\x20\0\0\0" + b"n" * 32)
        op, _, _, body = peer.frame()
        self.assertEqual((op, len(body)), (Op.PROOF, 4 + 32))
        peer.say(Op.HELLO, flags=1 | 8, body=struct.pack("<Qq", 1, 1) + _wire.encode_parts([body[4:]]))  # its own proof
        self.assertIsInstance(got(), muster_pg.Denied)
        self.assertIn("the store did not prove that it knows the secret", str(got()))

    def test_a_store_that_answers_byte_by_byte_keeps_no_call(self) -> None:
        got = Outcome(muster_pg.Store.connect, self.fake.addr, timeout=0.5)
        p, _ = self.fake.accept()
        with self.assertRaises(OSError):  # the client has left
            for _ in range(200):
                p.conn.sendall(b"\0" if _ else _HEADER.pack(30000, Op.HELLO, 0, 0, 0))
                threading.Event().wait(0.05)
        self.assertIsInstance(got(), muster_pg.Unavailable)

    def test_a_signal_in_the_middle_of_a_request(self) -> None:
        with self.connected() as (store, peer):
            pipe = store._session._line.pipe  # type: ignore[union-attr]
            self.addCleanup(pipe._out.close)
            with mock.patch.object(pipe, "_out") as out, self.assertRaises(KeyboardInterrupt):
                out.send.side_effect = KeyboardInterrupt
                store.set("cut", b"short")
            again, resumes = self.fake.welcome()
            self.assertEqual(resumes, (7, 3))
            op, _, number, _ = again.numbered()
            self.assertEqual((op, number), (Op.SKIP, 1))  # it must no longer take effect
            got = Outcome(store.set, "next", b"1")
            op, call, number, _ = again.numbered()
            self.assertEqual((op, number), (Op.SET, 2))
            again.say(Op.SET, call)
            self.assertIsNone(got())

    def test_an_answer_that_lacks_something(self) -> None:
        one = b"\x01\0\0\0"
        for verb, flags, body in (
            ("wait", 0, b""), ("wait", 8, one + bytes(4)), ("list", 16, one + one + b"a"), ("watch", 16 | 8, one + one + b"a" + one + bytes(4)),
        ):  # fmt: skip
            self.fresh()
            with self.subTest(verb=verb, flags=flags), self.connected() as (store, peer):
                asks = {"wait": lambda: store.wait("a", "b"), "list": lambda: list(store.list()), "watch": lambda: list(store.watch())}
                got = Outcome(asks[verb])
                op, _, call, _ = peer.frame()
                peer.say(op, call, flags=flags, body=body)
                self.assertIsInstance(got(), muster_pg.Unavailable)
                self.assertIn("without all that was asked for", str(got()))

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_the_end_of_a_process_is_seen_though_its_child_lives(self) -> None:
        with self.connected() as (store, peer), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a process with threads is forked
            here, there = socket.socketpair()
            child = os.fork()
            if child == 0:
                here.close()
                there.recv(1)  # until the parent says so, or is gone
                os._exit(0)
            self.addCleanup(os.waitpid, child, 0)
            self.addCleanup(here.close)
            there.close()
            pipe = store._session._line.pipe  # type: ignore[union-attr]
            pipe._sock.close()  # as the system does for a process that is killed
            pipe._out.close()
            self.assertEqual(peer.conn.recv(1), b"")

    def test_a_peer_that_does_not_read_delays_no_call_beyond_a_deadline(self) -> None:
        with self.connected() as (store, peer):
            large: List[Outcome] = [Outcome(store.set, "k", bytes(8 << 20), timeout=0.3) for _ in range(4)]
            for got in large:
                self.assertIsInstance(got(), muster_pg.Unknown)
            peer.say(Op.PROBE)  # the reader still answers, when the peer reads
            for n in range(1, 5):
                self.assertEqual(peer.numbered()[2], n)
            self.assertEqual(peer.frame()[0], Op.PROBE)


if __name__ == "__main__":
    unittest.main()
