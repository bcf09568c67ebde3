"""Stores in an etcd: who leads is asked over HTTP.

An etcd is played here; tests of package etcdlog have a real one.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import tempfile
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, List, Tuple
from unittest import mock

import muster_pg
from muster_pg import _etcd
from test_session import Fake, Outcome


class Etcd(ThreadingHTTPServer):
    """Answers what a test says, by path, and notes what it was asked."""

    daemon_threads = True

    def __init__(self, case: unittest.TestCase) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: Dict[str, Tuple[int, Any]] = {}
        self.asked: List[Tuple[str, Any, str]] = []
        self.at = f"127.0.0.1:{self.server_address[1]}"
        thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        thread.start()

        def close() -> None:
            self.shutdown()
            self.server_close()
            thread.join()

        case.addCleanup(close)

    def leads(self, addr: str) -> None:
        self.answers["/v3/kv/range"] = 200, {"kvs": [{"value": base64.b64encode(json.dumps({"addr": addr, "id": "x"}).encode()).decode()}]}


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        etcd = self.server
        assert isinstance(etcd, Etcd)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        etcd.asked.append((self.path, body, self.headers.get("Authorization", "")))
        status, answer = etcd.answers[self.path]
        text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def silent(case: unittest.TestCase) -> str:
    """Returns an address that accepts, and answers nothing."""
    s = socket.create_server(("127.0.0.1", 0))
    case.addCleanup(s.close)
    return f"127.0.0.1:{s.getsockname()[1]}"


class Leaders(unittest.TestCase):
    def connects(self, url: str, fake: Fake) -> None:
        got = Outcome(muster_pg.Store.connect, url, timeout=30)
        fake.welcome()
        store = got()
        fake.close()
        store.close()

    def fake(self) -> Tuple[Fake, str]:
        fake = Fake()
        self.addCleanup(fake.close)
        return fake, "%s:%d" % fake.listener.getsockname()

    def test_the_leader_is_asked_for(self) -> None:
        (fake, addr), etcd = self.fake(), Etcd(self)
        etcd.leads(addr)
        self.connects(f"etcd://{etcd.at}/jobs", fake)
        key = base64.b64encode(b"jobs/leader").decode()
        # What follows the first request is the client's that looks for the closed store.
        self.assertEqual(etcd.asked[0], ("/v3/kv/range", {"key": key}, ""))

    def test_a_member_that_is_silent_costs_a_second(self) -> None:
        (fake, addr), etcd = self.fake(), Etcd(self)
        etcd.leads(addr)
        with mock.patch.object(_etcd, "_ATTEMPT", 0.05):
            self.connects(f"etcd://{silent(self)},127.0.0.1:1,{etcd.at}", fake)

    def test_a_frozen_leader_is_left_for_the_next(self) -> None:
        (fake, addr), (other, next_addr), etcd = self.fake(), self.fake(), Etcd(self)
        etcd.leads(addr)
        got = Outcome(muster_pg.Store.connect, f"etcd://{etcd.at}", liveness_timeout=5, timeout=30)
        fake.welcome(durable=1)
        store = got()
        began = time.monotonic()
        etcd.leads(next_addr)
        _, resumes = other.welcome(durable=1)
        self.assertEqual(resumes, (7, 3))
        self.assertLess(time.monotonic() - began, 3.5, "before it gives up a silent connection")
        fake.close()
        other.close()
        store.close()

    def test_a_user_has_a_token(self) -> None:
        (fake, addr), etcd = self.fake(), Etcd(self)
        etcd.leads(addr)
        etcd.answers["/v3/auth/authenticate"] = 200, {"token": "abc.7"}
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "password")
            with open(file, "w", encoding="utf-8") as f:
                f.write("p:w\n")
            self.connects(f"etcd://me@{etcd.at}?password-file={file}", fake)
        self.assertEqual(etcd.asked[0], ("/v3/auth/authenticate", {"name": "me", "password": "p:w"}, ""))
        self.assertEqual(etcd.asked[1][2], "abc.7")

    def test_the_leader_is_waited_for(self) -> None:
        (fake, addr), etcd = self.fake(), Etcd(self)
        etcd.answers["/v3/kv/range"] = 200, {"header": {}}
        with self.assertRaisesRegex(muster_pg.Timeout, "etcd at 127.*no process leads the store there"):
            muster_pg.Store.connect(f"etcd://{etcd.at}", timeout=0.1)
        got = Outcome(muster_pg.Store.connect, f"etcd://{etcd.at}", timeout=30)
        etcd.leads(addr)
        fake.welcome()
        store = got()
        fake.close()
        store.close()

    def test_what_etcd_refuses(self) -> None:
        etcd = Etcd(self)
        url = f"etcd://me:hidden@{etcd.at}"
        for path, status, answer, kind, says in (
            ("/v3/auth/authenticate", 400, {"code": 3, "message": "etcdserver: authentication failed, invalid user ID or password"}, muster_pg.Denied, "authentication failed"),
            ("/v3/auth/authenticate", 200, {"token": "t"}, muster_pg.Denied, "permission denied"),
            ("/v3/kv/range", 503, {"code": 14, "error": "etcdserver: no leader"}, muster_pg.Timeout, "etcdserver: no leader"),
            ("/v3/kv/range", 404, b"404 page not found", muster_pg.Timeout, 'it is no etcd: it answered 404 "404 page not found"'),
            ("/v3/kv/range", 200, {"kvs": [{}]}, muster_pg.Timeout, "means nothing"),
        ):
            if "kv" not in path:
                etcd.answers["/v3/kv/range"] = 403, {"code": 7, "error": "etcdserver: permission denied"}
            etcd.answers[path] = status, answer
            with self.assertRaisesRegex(kind, says) as raised:
                muster_pg.Store.connect(url, timeout=0.5)
            self.assertNotIn("hidden", str(raised.exception))


class URLs(unittest.TestCase):
    def test_those_that_are_none(self) -> None:
        with tempfile.NamedTemporaryFile("w") as f, mock.patch.dict(os.environ, {"MUSTER_ETCD_PASSWORD": ""}):
            f.write("from a file\n")
            f.flush()
            for url, says in {
                "etcd:///prefix": "no host",
                "etcd://a": "a is no host:port",
                "etcd://a:0": "a:0 is no host:port",
                "etcd://a:1,b/p": "b is no host:port",
                "etcd://a:1#x": "#fragment",
                "etcd://a:1?sesion=5s": 'unknown parameter "sesion"',
                "etcd://a:1?ca=x&ca=y": "twice",
                "etcd://a:1?ca=": "empty",
                "etcd://a:1?ca=x": "say etcds://",
                "etcds://a:1?ca=/no/such/file": "/no/such/file",
                "etcds://a:1?cert=x": "go together",
                "etcd://a:1?password-file=x": "for a user",
                "etcd://me@a:1": "needs a name and a password",
                "etcd://:hidden@a:1": "needs a name and a password",
                f"etcd://me:hidden@a:1?password-file={f.name}": "a password and a password-file",
                "etcd://me@a:1?password-file=/no/such/file": "/no/such/file",
                "etcd://a:1?secret-file=/no/such/file": "/no/such/file",
                "etcd://a:1?tls=true": 'unknown parameter "tls"',
                "redis://a:1": "muster://host:port or etcd://host:port",
            }.items():
                with self.subTest(url), self.assertRaisesRegex(muster_pg.Invalid, says) as raised:
                    muster_pg.Store.connect(url, timeout=5)
                self.assertNotIn("hidden", str(raised.exception))

    def test_the_parts(self) -> None:
        from muster_pg import _dial

        t = _dial.parse("etcd://me:p%3Aw@a:1,[::1]:2/jobs/b/", None, None)
        assert t.etcd is not None
        self.assertEqual((t.etcd.members, t.etcd.root, t.etcd.user, t.etcd.password), (("a:1", "[::1]:2"), "jobs/b/", "me", "p:w"))
        self.assertEqual((t.prefix, t.ways()), ("", ["a:1,[::1]:2"]))
        self.assertEqual(_dial.parse("etcd://a:1", None, None).etcd, _etcd.Etcd(("a:1",)))
        self.assertNotIn("p:w", repr(t))
