"""Group.export with arrays of numpy. tests/torch_export.py has DTensors, and a rank that is killed."""

from __future__ import annotations

import importlib.util
import json
import math
import tempfile
import threading
import time
import types
import unittest
from pathlib import Path
from typing import Any, Dict, List
from unittest import mock

import muster_pg
from muster_pg import _arrays, _export
from test_store import Case

if importlib.util.find_spec("numpy") is not None:
    import numpy as np


def read(directory: Path) -> Dict[str, Any]:
    """Returns the tensors of a model, and its metadata at ""."""
    out: Dict[str, Any] = {"": {}}
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    for file in set(index["weight_map"].values()):
        b = (directory / file).read_bytes()
        n = 8 + int.from_bytes(b[:8], "little")
        header = json.loads(b[8:n])
        out[""].update(header.pop("__metadata__", {}))
        for name, t in header.items():
            assert index["weight_map"][name] == file
            begin, end = t["data_offsets"]
            out[name] = muster_pg.Array(t["dtype"], t["shape"], b[n + begin : n + end]).numpy()
    assert out.keys() - {""} == index["weight_map"].keys()
    return out


@unittest.skipUnless(importlib.util.find_spec("numpy"), "SKIPPED: no numpy")
class Export(Case):
    def setUp(self) -> None:
        super().setUp()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = Path(directory.name)
        self.x = np.arange(13 * 7, dtype="float32").reshape(13, 7)

    def rows(self, rank: int) -> muster_pg.Part:
        start, end = ((0, 4), (4, 12), (12, 13))[rank]
        return muster_pg.Part(self.x[start:end], (start, 0), self.x.shape)

    def refused(self, size: int, kind: Any, says: str, body: Any) -> None:
        """Checks that all ranks raise one error."""
        errors = self.ranks(size, lambda g: self.fails(kind, says, body, g).args[0])
        self.assertEqual(len({e.partition(" on rank ")[2][1:] for e in errors}), 1, errors)
        self.assertEqual([p for p in self.dir.rglob("*") if p.is_file()], [])

    def test_parts(self) -> None:
        """Writes a model twice: the second one replaces the first."""
        whole = {"rows": self.x, "columns": self.x.T, "same": self.x[0], "step": np.array(7), "none": np.zeros((0, 3), "int8"), "one's own": self.x[1], "turned": self.x.T[::-1], "view": self.x.view("int32")}

        def body(g: muster_pg.Group) -> None:
            a, b = (0, 4, 9)[g.rank], (4, 9, 13)[g.rank]
            parts: Dict[str, Any] = {name: whole[name] for name in ("same", "step", "none", "turned")}
            parts.update(rows=self.rows(g.rank), columns=muster_pg.Part(self.x.T[:, a:b], (0, a), (7, 13)))
            parts["tied"] = parts["rows"]
            parts["view"] = self.x.view("int32")
            if g.rank == 2:
                parts["one's own"] = whole["one's own"]
            for n in range(2):
                g.export(parts, str(self.dir / "new" / "model"), {"n": str(n)}, timeout=math.inf if n else None)
            g.send("on", (g.rank + 1) % 3)  # the streams of the group are its own
            self.assertEqual(g.recv((g.rank - 1) % 3), "on")

        (self.dir / "new" / "model").mkdir(parents=True)
        for left in (".muster-export-A-0.part", "model-AAAAAAAAAAAA-00001-of-00002.safetensors"):  # by a killed job
            (self.dir / "new" / "model" / left).touch()
        with mock.patch.object(_export, "_BLOCK", 60), mock.patch.object(_export, "_ROUND", 200):
            self.ranks(3, body)
        got = read(self.dir / "new" / "model")
        self.assertEqual(got.pop(""), {"n": "1", "tied": "rows"})
        self.assertEqual(got.keys(), whole.keys())
        for name, t in whole.items():
            self.assertEqual((got[name].dtype, got[name].shape, got[name].tolist()), (t.dtype, t.shape, t.tolist()), name)
        self.assertEqual(len(list((self.dir / "new" / "model").iterdir())), 4)

    def test_parts_that_do_not_fit(self) -> None:
        x = self.x
        bad: Any = object()
        cases: Any = (
            (r"invalid: tensor 'x': no rank has 49 of its 91 elements$", ({"x": muster_pg.Part(x[:6], (0, 0), x.shape)}, {})),
            (r"tensor 'x': the parts of ranks 0 and 1 overlap: \[6, 7\] at \[0, 0\], and \[8, 7\] at \[5, 0\]$", [{"x": muster_pg.Part(x[a:b], (a, 0), x.shape)} for a, b in ((0, 6), (5, 13))]),
            (r"tensor 'x': rank 0 has a part \[6, 7\] at \[8, 0\] of a tensor of shape \[13, 7\]$", ({"x": muster_pg.Part(x[:6], (8, 0), x.shape)}, {})),
            (r"tensor 'x': rank 1 has a part of F64\[13, 7\], and rank 0 of F32\[13, 7\]$", ({"x": x}, {"x": x.astype("float64")})),
            (r"rank 0: invalid: tensor '__metadata__': files of safetensors have something else", ({"__metadata__": x}, {})),
            (r"invalid: no rank has a tensor$", ({}, {})),
            (r"rank 0: invalid: name of a tensor is a str, not int$", ({1: x, "1": x}, {})),
            (r"rank 1: invalid: tensor 'x': it is no array of numpy or torch, but object$", ({}, {"x": bad})),
            (r"rank 1: invalid: tensor 'x': an array of str32 cannot be sent", ({}, {"x": np.array(["a"])})),
            (r"rank 0: invalid: tensor 'x': a part of 2 axes at \[0\] of a tensor of shape \[13, 7\]$", ({"x": muster_pg.Part(x, (0,), x.shape)}, {})),
        )
        for says, parts in cases:
            self.refused(2, muster_pg.Invalid, says, lambda g: g.export(parts[g.rank], self.dir))
        self.refused(2, muster_pg.Invalid, "rank 1: invalid: directory is the path of a file, not int", lambda g: g.export({}, bad if g.rank == 9 else 1 if g.rank else self.dir))
        self.refused(2, muster_pg.Invalid, "rank [01]: invalid: metadata is a str, not int", lambda g: g.export({}, self.dir, {"n": 1}))

    def test_a_rank_that_cannot_write(self) -> None:
        """Is named on all ranks, and the model that was there stays."""

        def body(g: muster_pg.Group) -> None:
            g.export({"x": self.rows(g.rank), "n": np.zeros(1)}, self.dir)
            g.barrier()
            parts = {"x": self.rows(g.rank), "y": self.x, "z": self.x.copy()}
            for _ in range(2):
                self.fails(muster_pg.Failed, "rank 2: failed: FileNotFoundError: ", g.export, parts, self.dir / "none" if g.rank == 2 else self.dir)
            g.barrier()
            self.assertEqual(read(self.dir)["x"].tolist(), self.x.tolist())

        with mock.patch.object(_export, "_ROUND", 100):
            self.ranks(3, body)

    def test_directories_that_are_not_the_same(self) -> None:
        for name in ("0", "1", "2"):
            (self.dir / name).mkdir()
        self.refused(2, muster_pg.Failed, "rank 0: failed: the file of rank 1 is not in the directory of rank 0, ", lambda g: g.export({"x": self.x, "y": self.x + 1}, self.dir / str(g.rank)))
        (self.dir / "2" / "model.safetensors").touch()

        def body(g: muster_pg.Group) -> None:
            self.fails(muster_pg.Failed, "rank 0: failed: .* has model.safetensors, which readers may take instead", g.export, {"x": self.x}, self.dir / "2")

        self.ranks(2, body)

    def test_two_at_once(self) -> None:
        """Exports on channels, which begin in another order on each rank."""

        def body(g: muster_pg.Group) -> None:
            def one(name: str) -> None:
                half: Any = np.full(2, float(name), "float32")
                g.channel(name).export({"x": muster_pg.Part(half, (2 * g.rank,), (4,))}, self.dir / name)

            names = ["1", "2"]
            threads = [threading.Thread(target=one, args=(name,)) for name in (names if g.rank else names[::-1])]
            for t in threads:
                t.start()
            for t in threads:
                t.join()

        self.ranks(2, body)
        for name in ("1", "2"):
            self.assertEqual(read(self.dir / name)["x"].tolist(), [float(name)] * 4)

    def test_a_first_rank_that_was_stopped(self) -> None:
        """It goes on when the others have given up, and must not publish a model without their files."""
        commit, others = _export._Export.commit, threading.Barrier(3)

        def stops(e: Any) -> None:
            if e.rank == 0 and e.metadata == {"n": "2"}:
                others.wait(30)
            commit(e)

        def body(g: muster_pg.Group) -> None:
            g.export({"x": self.x, "y": self.x + 1, "z": self.x + 2}, self.dir, {"n": "1"})
            try:
                g.export({"x": self.x, "y": self.x + 1, "z": self.x + 2}, self.dir, {"n": "2"}, timeout=1)
            except muster_pg.RankError:
                pass
            else:
                raise AssertionError("no error")
            if g.rank > 0:
                others.wait(30)

        with mock.patch.object(_export._Export, "commit", stops):
            self.ranks(3, body)
        self.assertEqual((len(read(self.dir)), read(self.dir)[""]), (4, {"n": "1"}))
        self.assertEqual(len(list(self.dir.iterdir())), 4)

    def test_a_rank_that_closes_in_the_last_step(self) -> None:
        """No model is published whose files it has removed."""
        commit, entered, closed = _export._Export.commit, threading.Event(), threading.Event()

        def waits(e: Any) -> None:
            if e.rank == 0:
                closed.wait(30)
            elif e.rank == 1:
                entered.set()
            commit(e)

        def body(g: muster_pg.Group) -> None:
            def close() -> None:
                entered.wait(30)
                g.close()

            closer = threading.Thread(target=close)
            if g.rank == 1:
                closer.start()
            with self.assertRaises(muster_pg.RankError):
                g.export({"x": self.x, "y": self.x + 1}, self.dir)
            if g.rank == 1:
                closed.set()
                closer.join()

        with mock.patch.object(_export._Export, "commit", waits):
            self.ranks(2, body)
        self.assertEqual(list(self.dir.iterdir()), [])

    def test_an_owner_without_memory(self) -> None:
        """Is named at once, and not those that send to it."""

        def body(g: muster_pg.Group) -> None:
            began = time.monotonic()
            e = self.fails(muster_pg.Failed, "rank 0: failed: MemoryError: none left", g.export, {"x": self.rows(g.rank)}, self.dir)
            self.assertEqual(e.by, 0)
            self.assertLess(time.monotonic() - began, 15)  # of 30 s

        with mock.patch.object(np, "empty", side_effect=MemoryError("none left")):
            self.ranks(3, body)
        self.assertEqual(list(self.dir.iterdir()), [])

    def test_blocks_that_torch_reports_wrongly(self) -> None:
        class Tensor:
            """A DTensor of a shape that its mesh does not divide."""

            placements: List[Any] = []
            device_mesh = types.SimpleNamespace(get_coordinate=lambda: [0])
            shape = (6, 9)

            def __create_chunk_list__(self) -> List[Any]:
                return [types.SimpleNamespace(offsets=(5, 0), sizes=(1, 9))]

            def to_local(self) -> Any:
                return np.zeros((0, 9))

            def numel(self) -> int:
                return 54

        self.refused(2, muster_pg.Invalid, r"tensor 'x': torch says that this rank has blocks of shape \[\[1, 9\]\], and it has \[0, 9\]", lambda g: g.export({"x": Tensor()}, self.dir))

    def test_a_part_that_cannot_be_read(self) -> None:
        def data(v: Any) -> memoryview:
            raise MemoryError("none left")

        with mock.patch.object(_arrays, "data", data):
            self.refused(3, muster_pg.RankError, "rank [012]: failed: .*tensor 'x': MemoryError: none left", lambda g: g.export({"x": self.rows(g.rank)}, self.dir))

    def test_a_rank_that_is_missing(self) -> None:
        def body(g: muster_pg.Group) -> None:
            if g.rank == 2:
                g.recv(0)
                return
            e = self.fails(muster_pg.Timeout, "missing rank 2", g.export, {"x": self.x}, self.dir, timeout=0.3)
            self.assertEqual(e.missing, [2])
            if g.rank == 0:
                g.send("enough", 2)

        self.ranks(3, body)

    def test_a_rank_that_hangs(self) -> None:
        """Is named by all that wait for its part."""
        go_on, data = threading.Event(), _arrays.data
        hung: Dict[int, bool] = {}

        def hangs(v: Any) -> memoryview:
            if hung.get(threading.get_ident()):
                go_on.wait(30)
            return data(v)

        def body(g: muster_pg.Group) -> None:
            hung[threading.get_ident()] = g.rank == 2
            e = self.fails(muster_pg.Timeout, "missing rank 2", g.export, {"x": self.rows(g.rank)}, self.dir, timeout=2)
            self.assertEqual(e.missing, [2])
            go_on.set()

        with mock.patch.object(_arrays, "data", hangs):
            self.ranks(3, body)
        self.assertEqual(list(self.dir.iterdir()), [])

    def test_a_rank_that_leaves(self) -> None:
        def body(g: muster_pg.Group) -> None:
            if g.rank < 2:
                self.assertEqual(self.fails(muster_pg.Left, "rank 2 left", g.export, {"x": self.rows(g.rank)}, self.dir).left, [2])

        self.ranks(3, body)


if __name__ == "__main__":
    unittest.main()
