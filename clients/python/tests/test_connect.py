"""How a name becomes a connection."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from typing import Any, Callable, List, Tuple
from unittest import mock

import muster_pg
from muster_pg import _connect
from test_session import Fake, Outcome

_look_up = _connect._look_up


def dead(case: unittest.TestCase) -> Tuple[int, Any]:
    """Returns an address that answers nothing: new connections do not fit its backlog."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    case.addCleanup(listener.close)
    for _ in range(3):
        s = socket.socket()
        case.addCleanup(s.close)
        s.setblocking(False)
        s.connect_ex(listener.getsockname())
    return socket.AF_INET, listener.getsockname()


def refusing() -> Tuple[int, Any]:
    """Returns an address where no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        return socket.AF_INET, s.getsockname()


# FORKS has a child that is forked while a connection is being made, and is killed when it is there.
FORKS = """
import os, signal, sys
import muster_pg
from muster_pg import _connect
outcome = _connect._outcome
def forks(sock):
    if os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    return outcome(sock)
_connect._outcome = forks
store = muster_pg.Store.connect(sys.argv[1], timeout=30)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Connecting(unittest.TestCase):
    def named(self, look_up: Callable[[], List[Tuple[int, Any]]]) -> None:
        """Gives the name "node0" addresses."""

        def fake(host: str, port: int, flags: int) -> List[Tuple[int, Any]]:
            return look_up() if host == "node0" and not flags else _look_up(host, port, flags)

        patch = mock.patch.object(_connect, "_look_up", fake)
        patch.start()
        self.addCleanup(patch.stop)

    def fails(self, **more: Any) -> str:
        with self.assertRaises(muster_pg.Unavailable) as raised:
            muster_pg.Store.connect("node0:7070", **more)
        return str(raised.exception)

    def test_dead_addresses_share_one_deadline(self) -> None:
        addresses = [dead(self) for _ in range(60)]
        self.named(lambda: addresses)
        began = time.monotonic()
        says = self.fails(timeout=1)
        self.assertLess(time.monotonic() - began, 30)  # half of what each of them for itself would take
        for _, (host, port) in addresses[:2]:
            self.assertIn(f"{host}:{port}: timed out", says)

    def test_a_dead_address_does_not_hide_one_that_answers(self) -> None:
        fake = Fake()
        self.addCleanup(fake.close)
        self.named(lambda: [dead(self), refusing(), (socket.AF_INET, fake.listener.getsockname()), dead(self)])
        got = Outcome(muster_pg.Store.connect, "node0:7070", timeout=30)
        fake.welcome()
        store = got()
        fake.close()
        store.close()

    def test_each_address_is_named(self) -> None:
        (family, a), (_, b) = refusing(), refusing()
        self.named(lambda: [(family, a), (family, b)])
        want = f'store: dial "node0:7070": store unavailable: 127.0.0.1:{a[1]}: connection refused; 127.0.0.1:{b[1]}: connection refused'
        self.assertEqual(self.fails(timeout=30), want)

    def test_a_resolver_that_hangs(self) -> None:
        release = threading.Event()
        self.addCleanup(release.set)
        self.named(lambda: [] if release.wait(60) else [])
        self.assertIn('no name server has said in time where "node0" is', self.fails(timeout=0.05))
        release.set()

    def test_a_name_without_an_address(self) -> None:
        def unknown() -> List[Tuple[int, Any]]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        self.named(unknown)
        self.assertIn("name or service not known", self.fails(timeout=30))

    def test_a_name_that_is_none(self) -> None:
        with self.assertRaisesRegex(muster_pg.Unavailable, "(?i)label"):
            muster_pg.Store.connect("a..b:7070", timeout=30)

    def test_a_connection_that_ends_at_once(self) -> None:
        with socket.socket() as ended:  # it no longer has a peer
            e = _connect._outcome(ended)
        self.assertIsInstance(e, ConnectionResetError)

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_a_child_that_is_forked_meanwhile_does_not_keep_the_connection(self) -> None:
        fake = Fake()
        self.addCleanup(fake.close)
        args = [sys.executable, "-W", "ignore", "-c", FORKS, fake.addr]
        with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
            peer, _ = fake.welcome()
            self.assertEqual(peer.conn.recv(1), b"")  # the parent is gone, and the child is not
            out, _ = parent.communicate()  # ends both
        self.assertEqual((out, parent.returncode), (b"", -signal.SIGKILL))

    def test_close_ends_the_dialing(self) -> None:
        fake = Fake()
        self.addCleanup(fake.close)
        self.named(lambda: [(socket.AF_INET, fake.listener.getsockname())])
        got = Outcome(muster_pg.Store.connect, "node0:7070", timeout=30)
        peer, _ = fake.welcome()
        store = got()
        thread = store._session._thread
        peer.conn.close()
        fake.connection()  # it dials again, and receives nothing
        store.close()
        self.assertFalse(thread.is_alive())


if __name__ == "__main__":
    unittest.main()
