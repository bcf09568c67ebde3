"""Arrays as objects: of numpy, and of the standard library. tests/torch_group.py has torch."""

from __future__ import annotations

import array
import contextlib
import importlib.util
import subprocess
import sys
import unittest
from typing import Any

import muster_pg
from muster_pg import _arrays, _objects
from test_store import Case

if importlib.util.find_spec("numpy") is not None:
    import numpy as np

KINDS = ("bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32", "complex64", "float64", "int64", "uint64")
numpy_only = unittest.skipUnless(importlib.util.find_spec("numpy"), "SKIPPED: no numpy")


class Encoding(unittest.TestCase):
    def test_the_bytes_are_those_of_a_tensor_of_go(self) -> None:
        b = bytes.fromhex("83a5445479706512a444617461c4080000803f00000040a55368617065920102")
        a = muster_pg.Array("F32", (1, 2), array.array("f", [1, 2]))
        self.assertEqual(_objects.pack(a), b)
        self.assertEqual(_objects.unpack(b), a)
        self.assertEqual((str(a), a.shape, bytes(a.data)), ("F32[1,2]", (1, 2), b"\0\0\x80?\0\0\0@"))

    def test_arrays_of_the_standard_library(self) -> None:
        for v, kind in (
            (array.array("d", [1.5]), "F64[1]"),
            (array.array("b", [-1, 2]), "I8[2]"),
            (memoryview(array.array("q", range(6))).cast("B").cast("q", (2, 3)), "I64[2,3]"),
            (memoryview(array.array("i", range(4)))[::2], "I32[2]"),
        ):
            got = _objects.unpack(_objects.pack(v))
            self.assertEqual((str(got), bytes(got.data)), (kind, v.tobytes()))
        self.assertEqual(_objects.unpack(_objects.pack([memoryview(b"x"), bytearray(b"y")])), [b"x", b"y"])

    def test_what_is_no_array(self) -> None:
        for m in ({"DType": 99, "Shape": [1], "Data": b"x"}, {"DType": 5, "Shape": [2], "Data": b"x"}, {"DType": 5, "Shape": [-1], "Data": b""}, {"DType": 5, "Shape": "a", "Data": b"x"}):
            with self.assertRaises(muster_pg.Invalid):
                _objects.unpack(_objects.pack(m))
        for m in ({"DType": 5, "Shape": [1]}, {"DType": 5, "Shape": [1], "Data": "text"}):
            self.assertEqual(_objects.unpack(_objects.pack(m)), m)

    @numpy_only
    def test_numpy(self) -> None:
        for kind in KINDS:
            v = np.arange(6).astype(kind).reshape(2, 3)
            for view in (v, v.T, v[:, ::2], v[0], v[:0], v[1, 1:2].reshape(()), np.asfortranarray(v)):
                with self.subTest(kind=kind, shape=view.shape):
                    got = _objects.unpack(_objects.pack(view)).numpy()
                    self.assertEqual((got.dtype, got.shape, got.tolist()), (view.dtype, view.shape, view.tolist()))
                    got[...] = 0  # memory of its own
        self.assertEqual(_objects.unpack(_objects.pack(np.array([1, 2], ">i4"))).numpy().tolist(), [1, 2])
        self.assertEqual(_objects.unpack(_objects.pack([np.float32(0.5), np.int8(-3), np.bool_(True)])), [0.5, -3, True])
        self.assertEqual(np.asarray(muster_pg.Array("U8", (2,), b"ab")).tolist(), [97, 98])
        bad: Any
        for bad in (np.array(["text"]), np.array([object()]), np.zeros(1, "complex128"), np.zeros(1, "M8[s]")):
            with self.assertRaisesRegex(muster_pg.Invalid, "cannot be sent"):
                _objects.pack({"deep": [bad]})
        with self.assertRaisesRegex(muster_pg.Invalid, "numpy has no bfloat16"):
            muster_pg.Array("BF16", (1,), b"ab").numpy()

    def test_no_library_is_imported(self) -> None:
        code = (
            "import sys, muster_pg._objects as o; o.unpack(o.pack({'a': [1, b'x', bytearray(b'y'), muster_pg.Array('U8', (1,), b'a')]}));"
            "assert not {'numpy', 'torch'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", "import muster_pg;" + code], check=True)


@numpy_only
class Verbs(Case):
    def test_objects(self) -> None:
        def body(g: muster_pg.Group) -> Any:
            mine: Any = np.full((2, g.rank + 1), g.rank, "int16")  # each rank has a shape of its own
            rows = g.scatter(np.arange(6.0).reshape(3, 2) if g.rank == 1 else None, root=1)
            if g.rank == 0:
                g.send({"w": mine}, 1)
            sent = g.recv(0) if g.rank == 1 else None
            exchanged = g.all_to_all(np.arange(3) + 10 * g.rank)
            at_root = g.gather(mine, 2)
            g.shutdown()
            return rows, sent, exchanged, at_root

        def gathered(g: muster_pg.Group) -> Any:
            got = g.all_gather(np.full((2, g.rank + 1), g.rank, "int16"))
            g.shutdown()
            return [(a.dtype.name, a.tolist()) for a in got]

        all_of_them = [("int16", [[r] * (r + 1)] * 2) for r in range(3)]
        self.assertEqual(self.ranks(3, gathered), [all_of_them] * 3)
        out = self.ranks(3, body)
        self.assertEqual([np.asarray(o[0]).tolist() for o in out], [[0, 1], [2, 3], [4, 5]])
        self.assertIsInstance(out[0][0], muster_pg.Array)
        self.assertEqual(out[1][1]["w"].numpy().tolist(), [[0], [0]])
        self.assertEqual([list(map(int, o[2])) for o in out], [[0, 10, 20], [1, 11, 21], [2, 12, 22]])
        self.assertEqual([a.tolist() for a in out[2][3]], [a for _, a in all_of_them])

    def test_broadcast_fills_an_array(self) -> None:
        def body(g: muster_pg.Group) -> Any:
            mine: Any = np.full((2, 2), g.rank, "float32")
            got = g.broadcast(mine, root=1)
            absent = g.broadcast(mine if g.rank == 1 else None, root=1)
            g.shutdown()
            return got is mine, mine.tolist(), np.asarray(absent).tolist()

        self.assertEqual(self.ranks(2, body), [(True, [[1, 1], [1, 1]], [[1, 1], [1, 1]])] * 2)

    def test_all_reduce(self) -> None:
        def body(g: muster_pg.Group) -> Any:
            out = []
            for kind in KINDS:
                mine = np.array([[g.rank + 1, 30]], kind)
                if kind in ("bool", "complex64"):
                    continue
                for op in ("sum", "product", "min", "max", "avg", "mean"):
                    got = g.all_reduce(mine, op)
                    assert got.dtype == mine.dtype and got.shape == (1, 2), got
                    both = [np.array([[r + 1, 30]], kind) for r in range(3)]
                    f: Any = {"sum": sum, "product": np.multiply.reduce, "min": np.minimum.reduce, "max": np.maximum.reduce}.get(op)
                    want = np.array([[2, 30]], kind) if f is None else f(both).astype(kind)
                    out.append((kind, op, got.tolist() == want.tolist(), got))
            low = g.all_reduce(np.array([-1 - g.rank, -8]), "avg")  # toward 0
            scalars = g.all_reduce([np.float32(0.5), 1.0])
            g.shutdown()
            return [o for o in out if not o[2]], low.tolist(), scalars

        for wrong, low, scalars in self.ranks(3, body):
            self.assertEqual((wrong, low, scalars), ([], [-2, -8], [1.5, 3.0]))

    def test_mismatches_name_ranks_and_shapes(self) -> None:
        def fails(verb: str, a: Any, b: Any, kind: Any, *says: str) -> None:
            def body(g: muster_pg.Group) -> Any:
                try:
                    return getattr(g, verb)(a if g.rank == 0 else b)
                except muster_pg.RankError as e:
                    return [e]

            for [e] in self.ranks(2, body)[verb == "broadcast" :]:  # its root does not wait for the others
                self.assertIsInstance(e, kind)
                for part in says:
                    self.assertIn(part, str(e))

        two: Any = np.zeros((2, 3), "f4")
        three: Any = np.zeros((3, 2), "f4")
        fails("broadcast", two, three, muster_pg.Mismatch, "rank 0 called broadcast(F32[2,3])", "rank 1 called broadcast(F32[3,2])")
        fails("all_reduce", two, three, muster_pg.Mismatch, "rank 0 called allreduce(F32[2,3])", "rank 1 called allreduce(F32[3,2])")
        fails("all_reduce", two, two.astype("i4"), muster_pg.Mismatch, "rank 0 called allreduce(F32[2,3])", "rank 1 called allreduce(I32[2,3])")
        fails("all_reduce", two[0], three[0], muster_pg.Mismatch, "rank 0 called allreduce(sum of 3)", "rank 1 called allreduce(sum of 2)")
        fails("all_reduce", two > 0, two, muster_pg.Invalid, "rank 0: ", "bool cannot be reduced")
        fails("all_gather", np.array(["text"]), two, muster_pg.Invalid, "rank 0: ", "cannot be sent")

    def test_a_read_only_array_receives_nothing(self) -> None:
        def body(g: muster_pg.Group) -> None:
            mine: Any = np.zeros(2)
            mine.flags.writeable = g.rank == 0
            if g.rank == 0:  # which does not wait for the other, but may be second
                with contextlib.suppress(muster_pg.Invalid):
                    g.broadcast(mine)
            else:
                self.fails(muster_pg.Invalid, r"broadcast #1 .*rank 1: .*F64\[2\] that is read-only", g.broadcast, mine)
            g.shutdown()

        self.ranks(2, body)


if __name__ == "__main__":
    unittest.main()
