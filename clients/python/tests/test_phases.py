"""Phases: what the ranks of a group report of their progress, and what becomes of one that hangs."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
import timeit
import unittest
import warnings
from typing import Any, Dict, List, Tuple
from unittest import mock

import muster_pg
from muster_pg import _phase, _wire, _world
from muster_pg._phase import Phase, Progress
from test_store import ADDRESS, Case


def outcome(f: Any, *args: Any, **kwargs: Any) -> str:
    """Returns the text of the error of f, or what it returns."""
    try:
        return repr(f(*args, **kwargs))
    except muster_pg.Error as e:
        return f"{type(e).__mro__[2].__name__}: {e}"


class Stalls(Case):
    """Has rank 0 wait in barriers whose stall is the shortest."""

    def test_a_rank_that_hangs_is_named_and_one_that_moves_is_not(self) -> None:
        failed = threading.Event()

        def rank(g: muster_pg.Group) -> str:
            def repeat(phase: Phase) -> None:
                while not failed.wait(0.05):
                    phase.done(12)  # excuses nobody

            if g.rank > 0:
                with g.phase("loading shards", total=48) as phase:
                    phase.done(12)
                    if g.rank == 1:
                        thread = threading.Thread(target=repeat, args=(phase,))
                        thread.start()
                        thread.join()
                    for n in range(13, 1000):
                        if failed.wait(0.05):
                            break
                        phase.done(n)
            try:
                g.barrier("loaded", timeout=60, stall=2)
            except muster_pg.RankError as e:
                failed.set()
                self.assertIsInstance(e, muster_pg.Stalled)
                self.assertIsInstance(e, TimeoutError)
                self.assertEqual((e.code, e.missing, e.op), (muster_pg.Code.STALLED, [1], "barrier"))
                self.assertLess(e.waited, 4)
                self.assertEqual(str(pickle.loads(pickle.dumps(e))), str(e))
                g.barrier("after")
                return str(e)
            return "no error"

        says = self.ranks(3, rank)
        for r, text in enumerate(says):
            self.assertRegex(
                text,
                rf"^pgroup: barrier #1 of group .* on rank {r} of 3: "
                r"stalled after [23]\.\d\ds: rank 1: no progress for [23]\.?\d*s: loading shards, 12 of 48 \(25%\): 1 more missing, not stalled$",
            )

    def test_others_have_until_the_timeout(self) -> None:
        over = threading.Event()

        def rank(g: muster_pg.Group) -> str:
            if g.rank == 1:  # moves
                with g.phase("counting") as phase:
                    for n in range(1000):
                        if over.wait(0.05):
                            break
                        phase.done(n)
            elif g.rank == 2:  # has said that it may take longer
                with g.phase("waiting", stall=60):
                    over.wait()
            elif g.rank == 3:  # reports nothing
                over.wait()
            says = outcome(g.barrier, timeout=3.5)
            over.set()
            self.assertEqual(outcome(g.barrier), "None")
            return says

        says = self.ranks(4, rank, stall=2)
        for r, text in enumerate(says):
            self.assertRegex(text, rf"^Timeout: .* on rank {r} of 4: timed out after 3\.[5-9]\ds: missing ranks 1–3; 1: .*counting; 2: .*waiting; 3: no call")

    def test_no_phase_is_watched_in_a_verb(self) -> None:
        waits: List[Progress] = [Progress("a rank without a group")]

        def rank(g: muster_pg.Group) -> None:
            if g.rank == 0:
                waits.append(g._membership.progress)
            else:
                while len(waits) < 2 or not all(p._waiting for p in waits):
                    time.sleep(0.01)
            g.barrier()

        with mock.patch.object(_world, "_alone", waits[0]):
            self.ranks(2, rank)
        self.assertEqual([p._waiting for p in waits], [0, 0])

    def test_a_group_that_shrinks_has_the_phases(self) -> None:
        def rank(g: muster_pg.Group) -> str:
            if g.rank == 0:
                return "left"
            with g.phase("loading"), g.shrink() as rest:
                self.assertEqual(rest._membership.progress.who, f"rank {rest.rank}")
                g.close()
                if rest.rank == 0:
                    says = outcome(rest.barrier, stall=2)
                    rest.send("", 1)
                    return says
                rest.recv(0)
                return outcome(rest.barrier, stall=2)

        says = self.ranks(3, rank)
        self.assertEqual(says[0], "left")
        self.assertRegex(says[1], "^Stalled: .*: rank 1: no progress for .*: loading")
        self.assertRegex(says[2], "^Stalled: ")

    def test_barriers_with_different_names(self) -> None:
        says = self.ranks(2, lambda g: outcome(g.barrier, ("loaded", "saved")[g.rank]))
        for text in says:
            self.assertRegex(text, r"^Mismatch: .*ranks disagree: (?=.*rank 0 called barrier\(loaded\))(?=.*rank 1 called barrier\(saved\))")
        [says] = self.ranks(1, lambda g: [outcome(g.barrier, name) for name in ("é", "x" * 8193, 5)])
        self.assertEqual(says[0], "None")
        self.assertRegex(says[1], "^TooLarge: .*: a name of 8193 bytes, the limit is 8192$")
        self.assertRegex(says[2], "^Invalid.*: name is a str, not int$")

    def test_what_makes_no_sense_is_refused_at_once(self) -> None:
        def rank(g: muster_pg.Group) -> None:
            args: Tuple[Any, ...]
            kwargs: Dict[str, Any]
            for args, kwargs, says in (
                (("",), {}, "name is empty"),
                ((5,), {}, "name is a str, not int"),
                (("a", -1), {}, "total is -1, which is not from 0"),
                (("a", 1.5), {}, "total is an int, not float"),
                (("a",), {"stall": 1}, "stall is 1: it has to be at least 2 seconds, or 0 for none: reports come once a second"),
                (("a",), {"stall": float("inf")}, "stall is inf"),
                (("a",), {"stall": 2, "on_stall": "stop"}, "on_stall is 'stop': there are log, cut, exit"),
                (("a",), {"on_stall": "exit"}, "on_stall is 'exit': it needs a stall"),
            ):
                self.fails(muster_pg.Invalid, f"^pgroup: phase of group .* on rank 0: {says}", g.phase, *args, **kwargs)
            self.fails(muster_pg.Invalid, "stall is 1.5: it has to be at least 2 seconds", g.barrier, stall=1.5)
            phase = g.phase("é" * 100, 2**63 - 1)
            self.assertEqual(phase.name, "é" * 62 + "…")
            for n in (-1, 2**63, "1", 1.0, True):
                self.fails(muster_pg.Invalid, "phase of group .*: done is ", phase.done, n)
            self.assertFalse([t for t in threading.enumerate() if t.name == "muster progress"])

        self.ranks(1, rank)
        self.fails(muster_pg.Invalid, "^pgroup: join: stall is 0.5: it has to be at least 2", muster_pg.Group.join, 0, 1, ADDRESS, stall=0.5)

    def test_a_group_that_is_closed(self) -> None:
        g = muster_pg.Group.join(0, 1, ADDRESS, name=self.id())
        with g.phase("a") as phase, g.channel("c").phase("b"):
            self.assertTrue(progressing())
            g.close()
            self.assertFalse(progressing())
            phase.done(1)
            self.fails(muster_pg.Closed, "^pgroup: phase of group .*: closed: this rank has closed it", g.phase, "c")


def progressing() -> bool:
    return any(t.name == "muster progress" for t in threading.enumerate())


class Reports(unittest.TestCase):
    """Has the thread of a rank report to a list, 20 times as often."""

    def setUp(self) -> None:
        patch = mock.patch.multiple(_phase, _LOOK=0.05, _REPORT=0.05)
        patch.start()
        self.addCleanup(patch.stop)
        self.said: List[_wire.Phase] = []
        self.errors: List[muster_pg.Error] = []
        self.connection = object()
        self.progress = Progress("rank 0")
        self.progress.reports(1, self.report, lambda: self.connection)
        self.addCleanup(self.progress.close)

    def report(self, phase: _wire.Phase) -> None:
        self.said.append(phase)
        if self.errors:
            raise self.errors.pop()

    def phase(self, name: str = "a", total: int = 0, stall: float = 0) -> Phase:
        return Phase(self.progress, lambda why, also: muster_pg.Invalid(why), name, total, stall, "log")

    def says(self, *want: Any) -> None:
        """Waits for reports, and checks that there are no others."""
        until = time.monotonic() + 10
        while len(self.said) < len(want) and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(0.15)
        self.assertEqual([tuple(p)[: len(w)] for p, w in zip(self.said, want)], list(want))
        self.assertEqual(len(self.said), len(want), self.said)
        self.said.clear()

    def test_what_has_changed_is_reported_and_no_more(self) -> None:
        with self.phase("a", 3) as a:
            self.says((1, "a", 0, 3, 0))
            for n in range(1, 3):
                a.done(n)
            self.says((1, "a", 2, 3))
            with self.phase("b", stall=2.5):
                self.says((2, "b", 0, 0, 2_500_000_000))
                with self.phase("c"):  # has the stall of the one around it
                    self.says((3, "c", 0, 0, 2_500_000_000))
                self.says((2, "b", 0))
                a.done(3)  # is the current one now; all have to stop for the stall of b
                self.says((1, "a", 3, 3, 2_500_000_000))
                with self.progress._lock:  # without a look in between
                    a.done(2)
                    d = self.phase("d").__enter__()
                self.says((4, "d"))
                d.__exit__()
                self.says((1, "a", 2))
            self.says((1, "a", 2, 3, 0))
        self.says((0, "", 0, 0, 0))
        with a:
            self.says((5, "a", 0, 3))

    def test_the_current_phase_is_the_last_one_that_has_not_ended(self) -> None:
        a, b = self.phase("a"), self.phase("b")
        a.__enter__()
        self.says((1, "a"))
        b.__enter__()
        self.says((2, "b"))
        a.__exit__(None, None, None)
        a.__exit__(None, None, None)
        self.says()
        b.__exit__(None, None, None)
        self.says((0,))

    def test_another_group_is_told_too(self) -> None:
        other: List[_wire.Phase] = []
        with self.phase():
            self.says((1, "a"))
            self.progress.reports(2, other.append, lambda: self.connection)
            self.says()
            self.assertEqual([p[:2] for p in other], [(1, "a")])
        self.says()
        self.assertEqual([p[:2] for p in other], [(1, "a"), (0, "")])
        self.progress.reports(1, self.report, lambda: self.connection)
        self.says((0, ""))

    def test_what_was_not_reported_is_repeated(self) -> None:
        self.errors = [muster_pg.Timeout("late"), muster_pg.Unavailable("gone")]
        with self.phase():
            self.says((1, "a"), (1, "a"), (1, "a"))
            self.connection = object()
            self.says((1, "a"))
            self.errors = [muster_pg.Stale("over")]
            with self.phase("b"):
                self.says((2, "b"))
            self.says()  # the group is over

    def test_a_large_group_reports_less_often_and_says_when_the_progress_was(self) -> None:
        self.progress.reports(250, self.report, lambda: None)  # each half second
        with self.phase() as a:
            self.says((1, "a", 0))
            a.done(1)
            time.sleep(0.1)
        with self.phase("b"):
            self.says()
            time.sleep(0.3)
            [b] = self.said
        self.assertEqual(b[:2], (2, "b"))
        self.assertTrue(0.1e9 < b.ago < 0.6e9, b)

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_fork(self) -> None:
        with self.phase("a", stall=60) as a:
            a.done(5)
            self.said.clear()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a process with threads is forked
                pid = os.fork()
            if pid == 0:
                a.done(7)
                with self.phase("of the fork"):
                    pass
                a.__exit__(None, None, None)
                self.progress.close()
                os._exit(len(self.said) + 2 * progressing() + 4 * (a.units[0] != 7))
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            self.assertEqual(a.shown[0], 5)

    def test_signals(self) -> None:
        with self.assertRaises(KeyboardInterrupt), mock.patch.object(self.progress, "_start", side_effect=KeyboardInterrupt), self.phase():
            pass
        self.assertFalse(self.progress._open)
        with self.phase(), self.progress._lock:  # which the handler has interrupted
            self.progress.close()

    def test_done_costs_nothing(self) -> None:
        for stall in (0, 60):
            with self.phase("a", stall=stall) as a:
                self.assertLess(min(timeit.repeat(lambda: a.done(5), number=10_000, repeat=5)) / 10_000, 2e-6)


class World(Case):
    """Has the environment of a launcher."""

    def setUp(self) -> None:
        super().setUp()
        self.env = {"RANK": "3", "WORLD_SIZE": "4", "MUSTER_STORE": f"muster://{ADDRESS}", "MUSTER_NAME": self.id(), "MUSTER_RUN": "r"}
        for patch in (mock.patch.dict(os.environ, self.env), mock.patch.multiple(_world, _world=None, _alone=None)):
            patch.start()
            self.addCleanup(patch.stop)

    def test_the_group_that_from_env_has_returned_last(self) -> None:
        os.environ.update(RANK="0", WORLD_SIZE="1")
        muster_pg.barrier("start", timeout=30, stall=2)
        first = _world._group()
        assert first is not None
        self.addCleanup(first.close)
        self.assertEqual((first.name, first.size), (self.id(), 1))
        muster_pg.barrier()
        self.assertEqual((first._seq, _world._group()), (2, first))
        with muster_pg.phase("a") as phase:
            self.assertIs(phase._progress, first._membership.progress)
        os.environ["MUSTER_RUN"] = "s"
        with muster_pg.Group.from_env() as second:
            self.assertIs(muster_pg.phase("b")._progress, second._membership.progress)
        muster_pg.barrier()
        third = _world._group()
        assert third is not None
        self.addCleanup(third.close)
        self.assertNotIn(third.generation, (first.generation, second.generation))
        self.fails(muster_pg.Invalid, "^muster_pg: phase: name is empty$", muster_pg.phase, "")

    def alone(self, **env: str) -> "subprocess.Popen[str]":
        """Returns a process without a group that is in a phase."""
        program = "import muster_pg, sys\nwith muster_pg.phase('alone'):\n  print('begun', flush=True)\n  sys.stdin.read()\nmuster_pg.phase('again')"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env}
        p = subprocess.Popen([sys.executable, "-c", program], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert p.stdout is not None
        self.assertEqual(p.stdout.readline(), "begun\n")
        return p

    def test_a_rank_without_a_group_is_in_one_of_its_own(self) -> None:
        p = self.alone()
        join: Any = lambda: muster_pg.Group.join(0, 1, ADDRESS, name=self.id() + " rank 3", run="r", timeout=1)
        self.fails(muster_pg.Conflict, "rank 0 is already in use", join)
        self.assertEqual((p.communicate(), p.returncode), (("", ""), 0))
        join().close()  # it has left
        self.assertEqual(self.alone().communicate(), ("", ""))

    def test_one_whose_group_is_over_joins_again(self) -> None:
        with mock.patch.object(_world, "_AGAIN", 0), self.assertLogs("muster_pg", "WARNING") as logs, muster_pg.phase("a") as phase:
            report: Any = phase._progress._report
            alone = report.__self__
            self.addCleanup(alone._close)
            first = alone._membership
            first.leave()
            for n in range(1, 1000):
                if alone._membership is not first:
                    break
                phase.done(n)
                time.sleep(0.05)
            self.assertNotEqual(alone._membership.generation, first.generation)
            self.assertFalse(alone._membership.closed)
        self.assertEqual([r.getMessage()[:31] for r in logs.records], ["rank 3 joins the store again, t"])

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_a_fork_is_no_rank_yet(self) -> None:
        muster_pg.phase("a")
        assert _world._alone is not None
        self.addCleanup(_world._alone._report.__self__._close)  # type: ignore[union-attr]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a process with threads is forked
            pid = os.fork()
        if pid == 0:
            os._exit(_world._alone is not None)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_a_rank_without_a_store(self) -> None:
        began = time.monotonic()
        p = self.alone(MUSTER_STORE="muster://127.0.0.1:1")
        self.assertLess(time.monotonic() - began, 5)
        out, err = p.communicate()
        self.assertRegex(err, "^what this process does is not reported, only watched: .*no process listens at 127.0.0.1:1 after 1.0s")
        self.assertEqual((out, err.count("\n"), p.returncode), ("", 1, 0))


if __name__ == "__main__":
    unittest.main()
