"""Wrong input: each is an error at once, of the client's own kind, that names the verb and the
argument, and nothing is sent. test_refused.py has the collective verbs, which vote no.
"""

from __future__ import annotations

import math
import socket
import threading
import unittest
from decimal import Decimal
from fractions import Fraction
from typing import Any, Tuple

import muster_pg
from muster_pg import _wire
from muster_pg._wire import Op
from test_session import Fake, Outcome, Peer

BAD_TIMES: Tuple[Any, ...] = (-1, -0.5, math.nan, -math.inf, -(10**400), "1", b"1", True, Decimal(1), [], 1j)
BAD_TEXTS: Tuple[Any, ...] = (b"k", 1, None, ["k"], ("k", "l"), "\ud800")
BAD_BYTES: Tuple[Any, ...] = ("text", 1, None, [1, 2], True)
BAD_INTS: Tuple[Any, ...] = (1.0, "1", None, True, math.nan, 1j, Fraction(1))


class Wrong(unittest.TestCase):
    """Has a store, and a group of two, on a store that is played."""

    fake: Fake
    peer: Peer
    store: muster_pg.Store

    def setUp(self) -> None:
        self.fake = Fake()
        self.addCleanup(self.fake.close)
        got = Outcome(muster_pg.Store.connect, self.fake.addr, timeout=30)
        self.peer, _ = self.fake.welcome()
        self.store = got()
        self.addCleanup(self.store.close)
        self.addCleanup(self.peer.conn.close)

    def refused(self, says: str, f: Any, *args: Any, **kwargs: Any) -> None:
        with self.subTest(says, args=args, kwargs=kwargs), self.assertRaises(muster_pg.Invalid) as raised:
            f(*args, **kwargs)
        e = raised.exception
        self.assertIsInstance(e, ValueError)
        self.assertIn(says, str(e))
        self.assertEqual(isinstance(e, TypeError), isinstance(e, muster_pg.InvalidType))
        if isinstance(e, TypeError):
            self.assertRegex(str(e), " is .*, not ")

    def nothing_was_sent(self) -> None:
        got = Outcome(self.store.revision)
        op, flags, call, body = self.peer.frame()
        self.assertEqual((op, flags, body), (Op.PING, 0, b""))
        self.peer.number(op, call, 0)
        got()

    def test_keys(self) -> None:
        s = self.store
        for bad in BAD_TEXTS:
            self.refused("store: get: invalid request: key is " if not isinstance(bad, str) else "store: get", s.get, bad)
            for says, f, args in (
                ("exists", s.exists, ()), ("set", s.set, (b"v",)), ("add", s.add, ()), ("swap", s.swap, (b"a", b"b")),
                ("append", s.append, (b"v",)),
            ):  # fmt: skip
                self.refused(f"store: {says}", f, bad, *args)
            self.refused("store: wait: invalid request: key 1 is ", s.wait, "k", bad)
            self.refused("store: delete: invalid request: key 1 is ", s.delete, "k", bad)
            self.refused("store: below: invalid request: prefix is ", s.below, bad)
            self.refused("prefix is ", s.list, bad)
            self.refused("prefix is ", s.watch, bad)
        self.nothing_was_sent()

    def test_times(self) -> None:
        s = self.store
        for bad in BAD_TIMES:
            for f, args in (
                (s.get, ("k",)), (s.exists, ("k",)), (s.wait, ("k",)), (s.set, ("k", b"v")), (s.add, ("k",)), (s.swap, ("k", None, None)),
                (s.append, ("k", b"v")), (s.delete, ("k",)), (s.revision, ()), (s.list, ()), (s.watch, ()),
            ):  # fmt: skip
                self.refused("timeout is ", f, *args, timeout=bad)
            self.refused("store: within: invalid request: timeout is ", s.within, bad)
            self.refused('store: set "k": invalid request: ttl is ', s.set, "k", b"v", ttl=bad)
        self.refused('store: set "k": invalid request: ttl is 0: it has to be > 0 seconds', s.set, "k", b"v", ttl=0.0)
        self.nothing_was_sent()

    def test_values(self) -> None:
        s = self.store
        for bad in BAD_BYTES:
            self.refused('store: set "k": invalid request: value is bytes, not ', s.set, "k", bad)
            self.refused('store: append "k": invalid request: value is bytes, not ', s.append, "k", bad)
            if bad is not None:
                self.refused('store: swap "k": invalid request: old is bytes, not ', s.swap, "k", bad, b"")
                self.refused('store: swap "k": invalid request: new is bytes, not ', s.swap, "k", b"", bad)
        self.nothing_was_sent()

    def test_numbers(self) -> None:
        s = self.store
        for bad in (*BAD_INTS, 1 << 63, -(1 << 63) - 1):
            self.refused('store: add "k": invalid request: delta is ', s.add, "k", bad)
        for bad in (*BAD_INTS, -1, 1 << 64):
            self.refused("store: watch", s.watch, "", bad)
        self.nothing_was_sent()

    def test_connect(self) -> None:
        connect = muster_pg.Store.connect
        for bad in (*BAD_TEXTS[:-1], "", "host"):
            self.refused("store: dial", connect, bad)
        for bad in BAD_TIMES:
            self.refused('store: dial "127.0.0.1:1": invalid request: timeout is ', connect, "127.0.0.1:1", timeout=bad)
            self.refused('store: dial "127.0.0.1:1": invalid request: liveness_timeout is ', connect, "127.0.0.1:1", liveness_timeout=bad)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            addr = "127.0.0.1:%d" % silent.getsockname()[1]
        with self.assertRaises(muster_pg.Unavailable):
            connect(addr, timeout=10**400)  # without a deadline
        for silence in (0, math.inf):
            self.refused("liveness_timeout is ", connect, "127.0.0.1:1", liveness_timeout=silence)
        for bad in ("sixteen characters", bytearray(32), 1):
            self.refused("secret is bytes, not ", connect, "127.0.0.1:1", secret=bad)
        self.refused("tls is a muster_pg.TLS, not bool", connect, "127.0.0.1:1", tls=True)

    def test_files(self) -> None:
        for bad in (1, True, b"secret", None):
            self.refused("store: secret: invalid request: file is the path of a file, not ", muster_pg.read_secret, bad)
            if bad is not None:
                self.refused("store: tls: invalid request: ca is the path of a file, not ", muster_pg.TLS, bad)
                self.refused("store: tls: invalid request: key is the path of a file, not ", muster_pg.TLS, "ca", "cert", bad)
        self.refused("store: tls: invalid request: server_name is a str, not int", muster_pg.TLS, server_name=1)
        self.refused("go together", muster_pg.TLS, cert="cert.pem")

    def joined(self) -> muster_pg.Group:
        got = Outcome(muster_pg.Group.join, 0, 2, self.store)
        op, _, call, body = self.peer.frame()
        self.assertEqual(op, Op.JOIN)
        member = bytes(13) + b"\0"
        self.peer.forms(call, 1, [member, member])
        g: muster_pg.Group = got()
        return g

    def test_groups(self) -> None:
        g = self.joined()
        at = ' of group "world" on rank 0: '
        for bad in BAD_TIMES:
            for f, args in ((g.send, (1, 1)), (g.recv, (1,)), (g.expired, ()), (g.shrink, ())):
                self.refused(at + "timeout is ", f, *args, timeout=bad)
        for bad in BAD_INTS:
            self.refused(at + "dst is an int, not ", g.send, 1, bad)
            self.refused(at + "src is an int, not ", g.recv, bad)
        for bad in (-1, 2):
            self.refused("of a group of 2", g.send, 1, bad)
            self.refused("of a group of 2", g.recv, bad)
        self.refused("dst is a number of 16610 bits", g.send, 1, 10**5000)
        for bad in BAD_TEXTS:
            self.refused("pgroup: channel" + at + "name is ", g.channel, bad)
        self.assertEqual(g._seq, 0)  # no verb has begun
        self.nothing_was_sent()
        threading.Thread(target=g.close).start()
        op, _, call, _ = self.peer.frame()
        self.assertEqual(op, Op.LEAVE)
        self.peer.say(op, call)


if __name__ == "__main__":
    unittest.main()
