"""Servers of this process, by the command of MUSTER_BINARY or on PATH."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from unittest import mock

import muster_pg
from muster_pg import _server


def found() -> bool:
    try:
        return bool(_server.find(None))
    except muster_pg.Unavailable:
        return False


@unittest.skipUnless(found(), "SKIPPED: no command muster: put it on PATH, or set MUSTER_BINARY")
class Servers(unittest.TestCase):
    def test_it_serves_until_close(self) -> None:
        with muster_pg.Server() as server:
            self.assertRegex(server.address, r"^muster://127\.0\.0\.1:\d+$")
            self.assertIn(server.address, repr(server))
            with muster_pg.Store.connect(server.address, timeout=20) as store:
                store.set("k", b"v")
        server.close()  # twice
        with self.assertRaises(muster_pg.Unavailable):
            muster_pg.Store.connect(server.address, timeout=20)
        with self.assertRaises(ProcessLookupError):
            os.kill(server.pid, 0)

    def test_a_directory_keeps_the_store(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            for want in (1, 2):
                with muster_pg.Server(data=directory, options=["--max-keys", "10"]) as server:
                    with muster_pg.Store.connect(server.address, timeout=20) as store:
                        self.assertEqual(store.add("n"), want)

    def ends_with(self, then: str) -> None:
        """Starts a process that starts a server, and requires that the server ends with it."""
        code = f"import muster_pg, os, sys, time; s = muster_pg.Server(); print(s.address, s.pid, flush=True); sys.stdin.readline(); {then}"
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
            assert parent.stdout is not None and parent.stdin is not None
            address = parent.stdout.readline().split()[0]
            store = muster_pg.Store.connect(address, timeout=20)
            self.addCleanup(store.close)
            events = store.watch(timeout=60)
            parent.stdin.write("go on\n")
            parent.stdin.flush()
            with self.assertRaises((muster_pg.Unavailable, muster_pg.StoreError)) as raised:
                next(events)  # ends with the server
            self.assertNotIsInstance(raised.exception, muster_pg.Timeout)
            parent.kill()

    def test_it_ends_when_this_process_is_killed(self) -> None:
        self.ends_with("os.kill(os.getpid(), 9)")

    def test_it_ends_when_this_process_exits_without_close(self) -> None:
        self.ends_with("os._exit(0)")

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_a_fork_neither_keeps_nor_stops_it(self) -> None:
        self.ends_with("os.fork() == 0 and (os.closerange(0, 3), time.sleep(10)); os._exit(0)")
        with muster_pg.Server() as server, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
            if child == 0:
                server.close()
                os._exit(0)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            muster_pg.Store.connect(server.address, timeout=20).close()

    def test_an_interrupt_of_this_process_is_not_the_servers(self) -> None:
        with muster_pg.Server() as server:
            self.assertNotEqual(os.getpgid(server.pid), os.getpgid(0))

    def test_one_that_does_not_start(self) -> None:
        with self.assertRaisesRegex(muster_pg.Unavailable, "has ended with code 2"):
            muster_pg.Server(options=["--no-such-flag"])
        with self.assertRaisesRegex(muster_pg.Timeout, "no address"), tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "muster")
            with open(path, "w") as f:
                f.write("#!/bin/sh\nexec sleep 60\n")
            os.chmod(path, 0o755)
            muster_pg.Server(binary=path, timeout=0.2)


class Arguments(unittest.TestCase):
    def test_a_command_that_is_missing(self) -> None:
        with mock.patch.dict(os.environ, {"MUSTER_BINARY": "/nowhere/muster"}):
            with self.assertRaisesRegex(muster_pg.Unavailable, "/nowhere/muster is no command: pip install"):
                muster_pg.Server()

    def test_arguments(self) -> None:
        for arguments in ({"listen": 7070}, {"options": "--flag"}, {"drain": -1}, {"timeout": "1"}, {"data": 3}, {"binary": 3}):
            with self.assertRaises(muster_pg.Invalid), mock.patch.dict(os.environ, {"MUSTER_BINARY": sys.executable}):
                muster_pg.Server(**arguments)


if __name__ == "__main__":
    unittest.main()
