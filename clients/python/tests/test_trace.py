"""The file of a trace, and what becomes of it when something goes wrong.

That "muster trace" reads it is tested in Go.
"""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from pathlib import Path
from typing import Any, Dict, List
from unittest import mock

import muster_pg
from muster_pg import _span, _trace
from muster_pg._span import Joining, Span
from test_session import Outcome
from test_store import ADDRESS, Case

ME = Joining("world", 1, 4, 7, 0xFFFFFFFFFFFFFFFF)


def events(text: str) -> List[Dict[str, Any]]:
    """Are those of a file that is whole, without what names its rows."""
    return [e for e in json.loads(text) if e["ph"] != "M"]


class Slow(io.BytesIO):
    """A file that takes nothing after its first line until it is released, and then little at a
    time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.go, self.asked, self.kept = threading.Event(), threading.Event(), b""

    def write(self, b: Any) -> int:
        if self.kept:
            self.asked.set()
            assert self.go.wait(20)
        n = super().write(b[:100000])
        self.kept = self.getvalue()
        return n


class Full(io.BytesIO):
    """A file on a disk that is full after its first line."""

    lines = 0

    def write(self, b: Any) -> int:
        self.lines += 1
        if self.lines > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(b)


class File(unittest.TestCase):
    def setUp(self) -> None:
        self.dir = self.enter(tempfile.TemporaryDirectory())

    def enter(self, context: Any) -> Any:
        self.addCleanup(context.__exit__, None, None, None)
        return context.__enter__()

    def read(self) -> str:
        [path] = Path(self.dir).iterdir()
        return path.read_text()

    def test_what_a_line_says(self) -> None:
        trace = _trace.create(self.dir, 1, "node.1/é")
        [path] = Path(self.dir).iterdir()
        self.assertEqual(path.name, f"rank1-node.1__-{os.getpid()}.json")
        clock = iter([5_000_001, 5_001_000, 6_000_999, 7_000_000])
        with mock.patch.object(_span, "now", lambda: trace._start + next(clock)):
            with self.assertRaisesRegex(muster_pg.Error, "why"), Span(trace, "barrier", ME._replace(name='a"\n\udcff'), "\0side") as s:
                s.seq = 3
                s.waits()
                s.answered(b"four", [b"not counted"], 2)
                raise muster_pg.Error('why: "é"')
        trace.release()
        [e] = events(self.read())
        self.assertEqual({**e, "args": None}, {"name": "barrier", "cat": "pgroup", "ph": "X", "pid": os.getpid(), "tid": 1, "ts": 5000.001, "dur": 1999.999, "args": None})
        self.assertEqual(
            e["args"],
            {
                "group": 'a"\n\udcff', "channel": "\0side", "generation": 7, "id": "f" * 16, "seq": 3, "rank": 1, "size": 4, "last": 2,
                "bytes": 4, "waited": 999.999, "error": 'why: "é"',
            },
        )  # fmt: skip
        names = {(e["name"], e["tid"]): e["args"]["name"] for e in json.loads(self.read())[1:] if e["ph"] == "M"}
        self.assertEqual(names, {("process_name", 0): "rank 1 of 4", ("thread_name", 1): 'pgroup · a"\n\udcff'})

    def test_what_is_not_there_is_not_said(self) -> None:
        trace = _trace.create(self.dir, 0, "h")
        with Span(trace, "create", Joining("world", 0, 2)):
            pass
        with self.assertRaises(KeyboardInterrupt), Span(trace, "send", Joining("world", 0, 2)):
            raise KeyboardInterrupt  # which says nothing
        trace.release()
        self.assertEqual(
            [e["args"] for e in events(self.read())],
            [{"group": "world", "rank": 0, "size": 2}, {"group": "world", "rank": 0, "size": 2, "error": "KeyboardInterrupt"}],
        )

    def test_what_overlaps_has_rows_of_its_own(self) -> None:
        trace = _trace.create(self.dir, 0, "h")
        with Span(trace, "recv", ME):
            with Span(trace, "barrier", ME):
                pass
            with Span(trace, "barrier", ME):
                pass
        with Span(trace, "barrier", ME), Span(trace, "barrier", ME._replace(name="other")):
            pass
        trace.release()
        self.assertEqual([(e["args"]["group"], e["tid"]) for e in events(self.read())], [("world", 1)] * 2 + [("world", 2), ("other", 3), ("world", 1)])
        self.assertIn("pgroup \\u00b7 world (2)", self.read())

    def test_the_end_waits_for_no_timer(self) -> None:
        with mock.patch.object(_trace, "_DELAY", 1000):
            trace = _trace.create(self.dir, 0, "h")
            for _ in range(2):
                with Span(trace, "barrier", ME):
                    pass
            ended = Outcome(trace.release)
            ended()
        self.assertEqual(len(events(self.read())), 2)

    def test_it_is_written_soon(self) -> None:
        trace = _trace.create(self.dir, 0, "h")
        with Span(trace, "barrier", ME):
            pass
        while "barrier" not in self.read():  # without a call that makes it write
            time.sleep(0.001)
        trace.release()

    def test_a_file_for_each(self) -> None:
        for _ in range(3):
            _trace.create(self.dir, 0, "h").release()
        name = f"rank0-h-{os.getpid()}"
        self.assertEqual(sorted(os.listdir(self.dir)), [f"{name}-1.json", f"{name}-2.json", f"{name}.json"])

    def test_a_failure_is_written_before_the_verb_returns(self) -> None:
        with mock.patch.object(_trace, "_DELAY", 1000):
            trace = _trace.create(self.dir, 0, "h")
            with Span(trace, "barrier", ME):
                pass
            self.assertNotIn("barrier", self.read())
            with self.assertRaises(ValueError), Span(trace, "gather", ME):
                raise ValueError("no")
            self.assertRegex(self.read(), '(?s)"name":"barrier".*"name":"gather".*}}$')
            trace.release()
        self.assertEqual(len(events(self.read())), 2)

    def test_a_slow_file_delays_no_verb(self) -> None:
        """And what is left out is said. The file takes a part of what it is given, as files may."""
        file = Slow()
        with mock.patch.object(_trace, "_MAX_PENDING", 300_000), mock.patch.object(file, "close"):
            trace = _trace.Trace("slow", file)
            with Span(trace, "first", ME):
                pass
            self.assertTrue(file.asked.wait(20))
            for _ in range(3000):
                with Span(trace, "barrier", ME):
                    pass
            file.go.set()
            trace.release()
        got = events(file.getvalue().decode())
        [dropped] = [e for e in got if e["ph"] == "i"]
        self.assertEqual((dropped["cat"], dropped["s"], dropped["tid"]), ("dropped", "p", 0))
        left_out = int(dropped["name"].split()[0])
        self.assertGreater(left_out, 100)
        self.assertEqual(dropped["name"], f"{left_out} events left out: the file was too slow")
        self.assertEqual(len(got) - 1 + left_out, 3001)

    def test_a_file_that_hangs_holds_up_neither_a_failure_nor_the_end(self) -> None:
        file = Slow()
        with mock.patch.object(_trace, "_DELAY", 0.01), mock.patch.object(_trace, "_CLOSE_TIMEOUT", 0.01), mock.patch.object(file, "close"):
            trace = _trace.Trace("traces/rank0.json", file)
            for _ in range(2):
                with self.assertRaises(ValueError), Span(trace, "gather", ME):
                    raise ValueError("no")
            self.assertTrue(file.asked.wait(20))
            with self.assertLogs("muster_pg") as logs:
                trace.release()
            self.assertIn("traces/rank0.json could not be written within 0.01 s", logs.output[0])
            file.go.set()
            trace._thread.join(20)
        self.assertEqual(len(events(file.getvalue().decode())), 2)

    def test_a_disk_that_is_full_is_said_at_the_end(self) -> None:
        file = Full()
        trace = _trace.Trace("traces/rank0.json", file)
        for _ in range(3):
            with self.assertRaises(ValueError), Span(trace, "barrier", ME):
                raise ValueError("why")
        with self.assertLogs("muster_pg", "ERROR") as logs:
            trace.release()
        self.assertEqual(logs.output, ["ERROR:muster_pg:the trace traces/rank0.json could not be written: [Errno 28] No space left on device"])
        self.assertEqual((file.lines, file.closed), (2, True))

    def test_after_its_end_nothing_is_written(self) -> None:
        trace = _trace.create(self.dir, 0, "h")
        late = Span(trace, "recv", ME)
        trace.hold()
        trace.release()
        self.assertEqual(os.path.getsize(next(Path(self.dir).iterdir())), len(self.read()))
        trace.release()
        whole = self.read()
        late.__exit__(None, None, None)
        trace.release()
        self.assertEqual((self.read(), whole[-3:]), (whole, "\n]\n"))

    def test_no_thread(self) -> None:
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            with self.assertRaisesRegex(muster_pg.Invalid, "can't start new thread"):
                muster_pg.Group.join(0, 1, "127.0.0.1:1", trace_dir=self.dir)


class Groups(Case):
    def setUp(self) -> None:
        super().setUp()
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def files(self) -> List[str]:
        return [p.read_text() for p in sorted(Path(self.dir.name).iterdir())]

    def join(self, name: str = "") -> muster_pg.Group:
        return muster_pg.Group.join(0, 1, ADDRESS, name=self.id() + name, timeout=30, trace_dir=self.dir.name)

    def test_without_it_no_clock_is_read(self) -> None:
        with mock.patch.object(_span, "now", side_effect=AssertionError), muster_pg.Group.join(0, 1, ADDRESS, name=self.id(), timeout=30) as g:
            g.barrier()
            g.all_gather(1)
            g.send(1, 0)
            g.recv(0)
            g.expired()
            g.shutdown()
            self.assertNotIn("muster trace", [t.name for t in threading.enumerate()])

    def test_abort(self) -> None:
        with self.join() as g:
            g.abort("no more")
            self.fails(muster_pg.Aborted, "no more", g.barrier)
        [text] = self.files()
        self.assertEqual([e["name"] for e in events(text)], ["create", "abort", "barrier", "close"])
        abort, barrier = events(text)[1:3]
        self.assertEqual((abort["args"]["error"], "last" in abort["args"]), ("no more", False))
        self.assertEqual((barrier["args"]["last"], "waited" in barrier["args"]), (0, False))

    def test_what_is_refused(self) -> None:
        """Names no rank that is none: such a file would not be read."""
        with self.join() as g:
            self.fails(muster_pg.Invalid, "rank 5 of a group of 1", g.recv, 5)
            self.fails(muster_pg.Invalid, "rank -1 of a group of 1", g.send, 1, -1)
            self.fails(muster_pg.Invalid, "root 9 of a group of 1", g.broadcast, 1, 9)
            self.fails(muster_pg.InvalidType, "root", g.broadcast, 1, "x")
        [text] = self.files()
        self.assertEqual([(e["name"], e["args"].get("last", -1)) for e in events(text)[1:-1]], [("recv", -1), ("send", -1), ("broadcast", 0), ("broadcast", 0)])

    def test_survivors(self) -> None:
        """Continue in the same file, with a new number for the generation."""
        left = threading.Event()

        def body(g: muster_pg.Group) -> None:
            if g.rank == 0:
                return left.set()  # it closes
            left.wait(20)
            self.fails(muster_pg.Left, "left", g.all_gather, 1)
            with g.shrink() as rest:
                rest.shutdown()

        self.ranks(3, body, trace_dir=self.dir.name)
        _, *survivors = ([e for e in events(text) if e["name"] in ("create", "all_gather", "allgather", "shrink")] for text in self.files())
        for old, (create, gather, shrink) in enumerate(survivors, 1):
            self.assertEqual([e["args"][what] for e in (gather, shrink) for what in ("rank", "size")], [old, 3, old - 1, 2])
            self.assertEqual((create["args"]["rank"], gather["args"]["last"]), (old, 0), "who left")
            self.assertNotEqual(create["args"]["id"], shrink["args"]["id"])
        self.assertEqual(survivors[0][2]["args"]["id"], survivors[1][2]["args"]["id"])

    def test_groups_of_one_store_have_a_file_each(self) -> None:
        with muster_pg.Store.connect(ADDRESS) as store:
            for name in "ab":
                with muster_pg.Group.join(0, 1, store, name=self.id() + name, timeout=30, trace_dir=self.dir.name) as g:
                    g.barrier()
        self.assertEqual([[e["name"] for e in events(text)] for text in self.files()], [["create", "barrier", "close"]] * 2)

    def test_a_process_that_closes_nothing(self) -> None:
        """Has all of it in the file, as it ends by itself."""
        program = "import os, sys, muster_pg; g = muster_pg.Group.join(0, 1, sys.argv[1], name=sys.argv[2], trace_dir=sys.argv[3]); g.barrier()"
        subprocess.run([sys.executable, "-W", "error", "-c", program, ADDRESS, self.id(), self.dir.name], check=True, timeout=60)
        [text] = self.files()
        self.assertEqual([e["name"] for e in events(text)], ["create", "barrier"])

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_a_fork_writes_nothing(self) -> None:
        """Has the lock held at the fork, as another thread could; and what waits to be written then
        is the parent's.
        """
        program = textwrap.dedent("""
            import os, signal, sys, muster_pg
            from muster_pg import _trace
            _trace._DELAY = 1000
            g = muster_pg.Group.join(0, 1, sys.argv[1], name=sys.argv[2], trace_dir=sys.argv[3])
            g.barrier()
            with g._membership.trace._cond:
                pid = os.fork()
                if pid == 0:
                    signal.alarm(20)  # whatever hangs ends here
                    try:
                        g.recv(0)
                    except muster_pg.Closed:
                        g.close()
                        sys.exit()
            assert os.waitpid(pid, 0)[1] == 0
            g.close()
        """)
        subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, ADDRESS, self.id(), self.dir.name], check=True, timeout=60)
        [text] = self.files()
        self.assertEqual([e["name"] for e in events(text)], ["create", "barrier", "close"])


if __name__ == "__main__":
    unittest.main()
