"""The encoder and the parser, against the golden bytes that Go's package wire has too."""

from __future__ import annotations

import base64
import json
import re
import unittest
from pathlib import Path
from typing import Any, Dict, Optional, Type

from muster_pg import _objects, _wire
from muster_pg._wire import Code, Contribution, Op, Phase, Reply, Request, Failure

HERE = Path(__file__).resolve().parent
COPY = HERE / "golden.json"  # in a source distribution
GOLDEN = COPY if COPY.exists() else HERE.parents[2] / "wire" / "testdata" / "golden.json"


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def from_base64(s: Optional[str]) -> Optional[bytes]:
    return None if s is None else base64.b64decode(s)


def fields(kind: Type[Any], go: Dict[str, Any]) -> Dict[str, Any]:
    """Are Go's fields, by the names of a class here."""
    known = kind.__dataclass_fields__
    return {snake(k): v for k, v in go.items() if snake(k) in known}


def contribution(go: Dict[str, Any]) -> Contribution:
    reduction = go.get("Reduction", {})
    return Contribution(**fields(Contribution, go), reduce_op=reduction.get("Op", 0), reduce_kind=reduction.get("Kind", 0))


def phase(go: Dict[str, Any]) -> Phase:
    return Phase(**{snake(k): v for k, v in go.items()})


def request(go: Dict[str, Any]) -> Request:
    out = fields(Request, go)
    out.update({snake(k): from_base64(go.get(k)) for k in ("Value", "Expect", "Claim", "Token")})
    return Request(**{**out, "op": Op(go["Op"]), "group": contribution(go.get("Group", {})), "phase": phase(go.get("Phase", {}))})


def reply(go: Dict[str, Any]) -> Reply:
    out = fields(Reply, go)
    values = go.get("Values")
    out.update(code=Code(go.get("Code", 0)), value=from_base64(go.get("Value")), values=values and [from_base64(v) for v in values])
    v = go.get("Failure")
    if v is not None:
        lists = {k: v.get(k.capitalize(), []) for k in ("missing", "doing", "lost", "left")}
        clash = [contribution(c) for c in v.get("Clash", [])]
        out["failure"] = Failure(Code(v["Code"]), v.get("By", 0), v.get("Waited", 0), v.get("Reason", ""), clash=clash, **lists)
    return Reply(**out)


class Golden(unittest.TestCase):
    golden: Dict[str, Any]

    @classmethod
    def setUpClass(cls) -> None:
        cls.golden = json.loads(GOLDEN.read_text())
        for g in cls.golden["Requests"] + cls.golden["Replies"]:
            g["Bytes"] = re.sub("[ |]", "", g["Bytes"])  # they are for the reader

    def test_preface(self) -> None:
        self.assertEqual(_wire.PREFACE.hex(), self.golden["Preface"])

    def test_requests(self) -> None:
        seen = set()
        for g in self.golden["Requests"]:
            r = request(g["Request"])
            seen.add(r.op)
            with self.subTest(op=r.op, request=r):
                self.assertEqual(_wire.encode(r).hex(), g["Bytes"])
        self.assertEqual(seen, set(Op), "operations that no golden frame has")

    def test_address(self) -> None:
        for g in self.golden["Requests"]:
            r = request(g["Request"])
            frame = _wire.encode(Request(**{**r.__dict__, "id": 99, "number": r.number and 1, "acked": 0}))
            _wire.address(frame, r.id, r.number, r.acked)
            self.assertEqual(frame.hex(), g["Bytes"])

    def test_replies(self) -> None:
        for g in self.golden["Replies"]:
            with self.subTest(g["Name"]):
                b = bytes.fromhex(g["Bytes"])
                h = _wire.parse_header(b)
                self.assertEqual((h.length, h.op, h.id), (len(b) - _wire.HEADER_LEN, g["Op"], g["ID"]))
                self.assertEqual(_wire.parse_reply(h, b[_wire.HEADER_LEN :]), reply(g["Reply"]))

    def test_cut_replies(self) -> None:
        for g in self.golden["Replies"]:
            b = bytes.fromhex(g["Bytes"])
            h, body = _wire.parse_header(b), b[_wire.HEADER_LEN :]
            for n in range(len(body)):
                self.assertRaises(_wire.Malformed, _wire.parse_reply, h, body[:n])
            self.assertRaises(_wire.Malformed, _wire.parse_reply, h, body + b"\0")

    def test_headers(self) -> None:
        for bad in ("", "00" * 15, "00000000 00 00 0000" + "00" * 8, "00000000 ff 00 0000" + "00" * 8, "00000000 05 00 1800" + "00" * 8):
            self.assertRaises(_wire.Malformed, _wire.parse_header, bytes.fromhex(bad))
        with self.assertRaises(_wire.TooLong):
            _wire.parse_header(bytes.fromhex("01000000 05 00 0000" + "00" * 8), limit=0)

    def test_counts_make_no_room(self) -> None:
        for flags in (8, 16, 32):
            h = _wire.Header(8, Op.GET, flags, Code.OK, 1)
            self.assertRaises(_wire.Malformed, _wire.parse_reply, h, b"\xff\xff\xff\xff\0\0\0\0")

    def test_text_that_is_no_text(self) -> None:
        key = b"\xff\xfe".decode("utf-8", "surrogateescape")
        self.assertIn(b"\x02\0\0\0\xff\xfe", _wire.encode(Request(Op.GET, key=key)))

    def test_names(self) -> None:
        self.assertEqual([c.text for c in (Code.OK, Code.NOT_FOUND, Code.TIMEOUT, Code.WOULD_BLOCK)], ["ok", "not found", "timed out", "would block"])
        self.assertEqual([o.text for o in (Op.SET, Op.WATCH, Op.GRANT, Op.KEEP_ALIVE, Op.CLOSE_CHANNEL, Op.ACK)], ["set", "watch", "lease", "keep alive", "close channel", "acknowledge"])


class Objects(unittest.TestCase):
    def test_golden(self) -> None:
        """Has what wire's TestMsgPackGolden has."""
        v: object
        for v, want in (
            (1, b"\x01"),
            (-1, b"\xff"),
            ("a", b"\xa1a"),
            (b"a", b"\xc4\x01a"),
            (None, b"\xc0"),
            ([1, 2], b"\x92\x01\x02"),
            ((1, 2), b"\x92\x01\x02"),
            ({"b": 1, "a": 2}, b"\x82\xa1a\x02\xa1b\x01"),
            (1.5, b"\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"),
            ("x" * 40, b"\xd9\x28" + b"x" * 40),
        ):
            self.assertEqual(_objects.pack(v), want)

    def test_round_trips(self) -> None:
        v: object
        for v in (None, True, 0, -(1 << 63), (1 << 64) - 1, 1.5, "é\0", "\udcff", b"\xff", [], {"a": [{"b": b""}]}, {1: "one"}):
            self.assertEqual(_objects.unpack(_objects.pack(v)), v)

    def test_refused(self) -> None:
        loop: Any = []
        loop.append(loop)
        v: object
        for v in ({1, 2}, object(), 1j, 1 << 64, loop):
            with self.assertRaises(Exception):
                _objects.pack(v)
        for b in (b"", b"\x01\x01", b"\xa5ab", b"\xdd\xff\xff\xff\xff", b"\xc1", b"\x91" * (1 << 16) + b"\xc0"):
            with self.assertRaises(Exception):
                _objects.unpack(b)


if __name__ == "__main__":
    unittest.main()
