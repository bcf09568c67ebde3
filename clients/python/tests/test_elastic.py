"""Members of elastic jobs, each with a store of its own in this process."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
import time
import unittest
import warnings
from typing import Any, Callable, List, Set
from unittest import mock

import muster_pg
from muster_pg import ElasticMember, View, ViewOver, _decide, _track
from muster_pg._elastic import remove
from muster_pg._unit import Unit
from test_ends import files, stopped
from test_session import Outcome
from test_store import ADDRESS, Case

_SOON = 30.0  # seconds of every expected event, on a busy machine too


def left() -> Set[str]:
    """Are the threads of members that do not end."""
    ours = [t for t in threading.enumerate() if t.name in ("muster follow", "muster lead", "muster guard", "muster lease")]
    for t in ours:
        t.join(_SOON)
    return {t.name for t in ours if t.is_alive()}


class Elastic(Case):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(lambda: self.assertEqual(left(), set()))  # after all members are closed

    def fails(self, kind: Any, says: str, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Checks that the error can be pickled, too."""
        e = super().fails(kind, says, f, *args, **kwargs)
        again = pickle.loads(pickle.dumps(e))
        self.assertEqual((type(again), str(again), vars(again)), (type(e), str(e), vars(e)))
        return e

    def at(self) -> muster_pg.Store:
        """Returns a store with a session of its own."""
        top = muster_pg.Store.connect(ADDRESS, timeout=_SOON)
        self.addCleanup(top.close)
        return top.below(self.id() + "/")

    def member(self, id: str, least: int = 1, most: int = 3, **more: Any) -> ElasticMember:
        store = more.pop("store", None) or self.at()
        m = ElasticMember.join(store, "train", id, least=least, most=most, addr="10.0.0.1:" + id, **more)
        self.addCleanup(m.close)
        return m

    def view(self, m: ElasticMember, *ids: str) -> View:
        """Returns a view of these workers; m may get others before."""
        while True:
            view = m.next(timeout=_SOON)
            self.assertEqual(view.workers[view.rank].id, m.id)
            if tuple(w.id for w in view.workers) == ids:
                return view

    def over(self, view: View) -> ViewOver:
        self.assertTrue(view.wait(_SOON))
        assert view.error is not None
        return view.error

    def evict(self, m: ElasticMember) -> None:
        """Ends the lease of m at the store."""
        assert m._lease is not None
        muster_pg.Lease(m._store, m._lease.id, 1000).close()

    def test_views(self) -> None:
        a = self.member("a", 2)
        says = 'membership: next of worker "a" in job "train": timed out: 1 of 2 workers are registered: "a" at 10.0.0.1:a'
        self.assertEqual(str(self.fails(muster_pg.Timeout, "timed out", a.next, timeout=0.2)), says)
        b = self.member("b", 2)
        first = self.view(b, "a", "b")
        self.assertEqual((first.generation, first.rank, first.size, first.error), (1, 1, 2, None))
        self.assertFalse(first.wait(0))
        self.view(a, "a", "b")
        c, d = self.member("c", 2), self.member("d", 2)
        before, of = self.view(a, "a", "b", "c"), self.view(c, "a", "b", "c")
        self.assertEqual((before.run, before.newcomers(first), before.newcomers(None)), (first.run, [2], [0, 1, 2]))
        self.assertRegex(str(self.over(first)), r'^membership: view 1 of job "train" ended on rank 1 of 2, worker "b": joined by worker "c" at 10.0.0.1:c$')
        self.fails(muster_pg.Timeout, "timed out: this worker is a standby: view 2 has its 3 workers$", d.next, timeout=0.2)
        self.fails(muster_pg.Timeout, r'next of worker "a" \(rank 0\) in job "train": timed out: view 2 has not ended$', a.next, timeout=0.2)
        b.leave(timeout=_SOON)
        why = self.over(of)
        self.assertEqual(str(why), 'membership: view 2 of job "train" ended on rank 2 of 3, worker "c": left by rank 1, worker "b" at 10.0.0.1:b')
        self.assertIsInstance(why, muster_pg.Left)
        after = self.view(d, "a", "c", "d")
        a.close()  # who decides
        why = self.over(after)
        self.assertEqual((why.lost, why.left, why.gone, why.generation), ([0], [], [muster_pg.Worker("a", "10.0.0.1:a")], 3))
        self.assertIsInstance(why, muster_pg.Lost)
        self.view(c, "c", "d")
        for m in (c, d):
            m.leave(timeout=_SOON)
            m.leave()
        self.fails(muster_pg.Closed, "next of worker .*: closed$", d.next)
        self.assertEqual(list(self.store.list()), [])

    def test_processes(self) -> None:
        a, b = self.member("a", 2, 2), self.member("b", 2, 2)
        follows = [ElasticMember.follow(self.at(), "train", m.id, m.registration) for m in (a, b)]
        for f in follows:
            self.addCleanup(f.close)
        views = [self.view(m, "a", "b") for m in (a, follows[0], b, follows[1])]
        self.assertEqual([(v.generation, v.rank) for v in views], [(1, 0), (1, 0), (1, 1), (1, 1)])
        groups = [Outcome(v.group, process=i % 2, processes=2, timeout=_SOON) for i, v in enumerate(views)]
        for rank, g in enumerate(groups):
            with g() as group:
                self.assertEqual((group.rank, group.size), (rank, 4))
        views[3].exclude(0)
        self.fails(muster_pg.Excluded, 'next of worker "a" .* excluded: evicted: another worker has deleted its registration$', follows[0].next, timeout=_SOON)
        self.assertEqual(self.over(views[1]).lost, self.over(views[0]).lost)
        says = 'next of worker "b" .*: 1 of 2 workers are registered: "b" at 10.0.0.1:b$'
        self.fails(muster_pg.Timeout, says, follows[1].next, timeout=0.2)
        b.close()
        self.fails(muster_pg.Evicted, "its registration has been deleted$", follows[1].next, timeout=_SOON)
        self.fails(muster_pg.Invalid, "Config.ID is empty$", ElasticMember.follow, self.store, "train", "", "r")
        late = ElasticMember.follow(self.at(), "train", "b", b.registration)
        self.addCleanup(late.close)
        self.fails(muster_pg.Evicted, "its registration has been deleted$", late.next, timeout=_SOON)

    def test_history(self) -> None:
        a, store = self.member("a"), self.at()
        self.view(a, "a")
        b = self.member("b", store=store)
        self.view(a, "a", "b")
        b.close()
        self.view(a, "a")
        c = self.member("c")
        self.view(a, "a", "c")
        c.leave()
        last = self.view(a, "a")
        key = "membership/train/history"
        until = time.monotonic() + _SOON
        while True:
            h = json.loads(store.get(key)) if store.exists(key) else {"Changes": 0}
            if h["Changes"] == 5:
                break
            self.assertLess(time.monotonic(), until, h)
        self.assertEqual(h["Run"], last.run)
        shown = [[c["Workers"], *((what, c[what]["IDs"]) for what in ("Joined", "Lost", "Left") if what in c)] for c in h["Newest"]]
        a_joined, b_joined, c_joined = (("Joined", [id]) for id in "abc")
        self.assertEqual(shown, [[1, a_joined], [2, b_joined], [1, ("Lost", ["b"])], [2, c_joined], [1, ("Left", ["c"])]])
        a.leave()
        self.assertFalse(store.exists(key))

    def test_settle(self) -> None:
        a = self.member("a", 1, 2, settle=1000)
        self.fails(muster_pg.Timeout, "timed out$", a.next, timeout=0.2)
        self.member("b", 1, 2, settle=1000)
        self.assertEqual(self.view(a, "a", "b").generation, 1, "with most workers it does not wait")

    def test_refused(self) -> None:
        self.member("a")
        for kind, says, args in (
            (muster_pg.IDInUse, 'id in use: by worker "a" at 10.0.0.1:a$', {"id": "a"}),
            (muster_pg.Mismatch, 'ranks disagree: Min is 2 and Max is 3 here, and 1 and 3 on worker "a" at 10.0.0.1:a$', {"least": 2}),
            (muster_pg.Mismatch, 'ranks disagree: "x" here, and "" on worker "a" at 10.0.0.1:a$', {"settings": "x"}),
            (muster_pg.Invalid, "invalid request: Config.ID is empty$", {"id": ""}),
            (muster_pg.Invalid, "Config.ID has 257 bytes, the limit is 256$", {"id": "x" * 257}),
            (muster_pg.Invalid, "Config.Settings is not UTF-8$", {"settings": "\udcff"}),
            (muster_pg.Invalid, "Config.Min is 0: a view has at least one worker$", {"least": 0}),
            (muster_pg.Invalid, "Config.Max is 3, less than Config.Min, 4$", {"least": 4}),
            (muster_pg.Invalid, "settle is -1", {"settle": -1}),
            (muster_pg.Invalid, "ttl is inf", {"ttl": float("inf")}),
            (muster_pg.InvalidType, "timeout is a number of seconds, not str$", {"timeout": "1"}),
            (muster_pg.InvalidType, "store is a muster_pg.Store, not str$", {"store": "127.0.0.1:7070"}),
        ):
            more: Any = {"id": "b", **args}
            with self.subTest(says):
                e = self.fails(kind, f'^membership: join of worker "{more["id"]}" in job "train": .*{says}', self.member, **more)
                self.assertEqual((e.id, e.rank), (more["id"], -1))
        names = ["membership/a%2Froster%25/roster/view", "membership/$&+:=@%20%21%27%28%2A%2C%3B~%E6%97%A5/roster/view"]  # those of Go
        for job, key in zip(("a/roster%", "$&+:=@ !'(*,;~日"), names):
            with ElasticMember.join(self.store, job, "w/1", least=1) as m:
                m.next(timeout=_SOON)
                self.assertTrue(self.store.exists(key))

    def test_evicted(self) -> None:
        a, b = self.member("a"), self.member("b")
        before, of = self.view(a, "a", "b"), self.view(b, "a", "b")
        self.evict(b)
        self.assertEqual(self.over(before).lost, [1])
        self.fails(muster_pg.Evicted, r'next of worker "b" \(rank 1\) in job "train": evicted: ', b.next, timeout=_SOON)
        self.assertIsInstance(self.over(of), muster_pg.Evicted)
        for f in (lambda: b.leave(), lambda: b.start_checkpoint(1, "")):
            self.fails(muster_pg.Evicted, " evicted: ", f)
        self.view(a, "a")
        self.assertEqual(self.view(self.member("b"), "a", "b").generation, 4)
        before = self.view(a, "a", "b")
        remove(self.store, "train", "b")
        remove(self.store, "train", "nobody")
        self.assertEqual(self.over(before).lost, [1])
        last = self.view(a, "a")
        a._store._session.close()
        e = self.fails(muster_pg.Evicted, "closed", a.next, timeout=_SOON)
        self.assertIsInstance(e, muster_pg.Closed)
        self.assertIsInstance(self.over(last), muster_pg.Evicted)
        self.fails(muster_pg.Evicted, "leave of", a.leave)

    def test_exclude(self) -> None:
        a, b = self.member("a"), self.member("b")
        view = self.view(a, "a", "b")
        self.view(b, "a", "b")
        self.fails(muster_pg.Invalid, "there is no rank 2 in a view of 2", view.exclude, 2)
        view.exclude(1, timeout=_SOON)
        self.fails(muster_pg.Excluded, "excluded: evicted: another worker has deleted its registration", b.next, timeout=_SOON)
        self.assertEqual(self.over(view).left, [1])
        self.fails(ViewOver, "left by rank 1", view.exclude, 0)
        self.view(a, "a")

    def test_group(self) -> None:
        a, b = self.member("a", 2), self.member("b", 2)
        va, vb = self.view(a, "a", "b"), self.view(b, "a", "b")
        forms = Outcome(va.group, timeout=_SOON)
        with vb.group(timeout=_SOON) as g, forms() as other:
            self.assertEqual((g.rank, other.rank, g.name), (1, 0, "train view 1"))
        forms = Outcome(va.group)
        b.close()
        self.assertIsInstance(forms(), ViewOver)
        self.fails(muster_pg.Lost, "view 1 .* lost rank 1", va.group)

    def test_checkpoints(self) -> None:
        a, b = self.member("a", 2, 2), self.member("b", 2, 2)
        self.fails(muster_pg.NotInView, "not in the view: next has returned no view$", a.start_checkpoint, 1, "")
        of = self.view(a, "a", "b")
        self.fails(muster_pg.Invalid, r'path "\\xff" is not UTF-8', a.start_checkpoint, 1, "\udcff")
        self.fails(muster_pg.NotFound, 'membership: checkpoint "no/such" of worker "a"', a.checkpoint, "no/such")
        self.fails(muster_pg.NotFound, "of 0 checkpoints none is complete$", a.newest_checkpoint)
        c = a.start_checkpoint(7, "/ckpt/日")
        theirs = b.checkpoint(c.id)
        self.assertEqual((theirs.epoch, theirs.path, theirs.generation, theirs.workers), (7, "/ckpt/日", 1, of.workers))
        self.assertEqual([c.end(), c.end(), [w.id for w in c.missing()]], [False, False, ["b"]])
        self.fails(muster_pg.Timeout, 'wait of checkpoint "7-.*ended/', c.wait, timeout=0.1)
        waits = Outcome(c.wait, timeout=_SOON)
        self.assertTrue(theirs.end())
        self.assertIsNone(waits())
        never = a.start_checkpoint(8, "")
        waits = Outcome(never.wait)
        b.close()
        self.assertIsInstance(waits(), ViewOver)
        again = self.member("b", 2, 2)
        self.view(again, "a", "b")
        self.fails(muster_pg.NotInView, "generation 1 has 2 workers, and this worker is not one of them$", again.checkpoint(never.id).end)
        self.assertEqual(again.newest_checkpoint().id, c.id)
        a.leave()
        again.leave()
        self.assertEqual({e.key.split("/")[3] for e in self.store.list("membership/train/checkpoint/")}, {c.id}, "the others are gone")

    def test_finish(self) -> None:
        a, standby = self.member("a", 1, 1), self.member("b", 1, 1)
        waits = Outcome(standby.next, timeout=_SOON)
        view = self.view(a, "a")
        self.assertFalse(view.finished())
        view.finish()
        a.leave()
        self.assertTrue(view.finished(), "it can be asked after the end of the member")
        self.assertRegex(str(waits()), 'next of worker "b" in job "train": finished without this worker$')
        standby.leave()
        self.assertEqual([e.key.split("/")[2] for e in self.store.list()], ["finished"])
        c, cut = self.member("c"), self.member("cut")
        view = self.view(c, "c", "cut")
        self.assertFalse(view.finished(), "another run")
        self.view(cut, "c", "cut")
        self.evict(cut)
        self.over(view)
        view.finish()
        c.leave()
        self.fails(muster_pg.Finished, "finished without this worker$", cut.next, timeout=_SOON)

    def test_finish_of_a_launch(self) -> None:
        for launch in ("", "first", "second"):
            a = self.member("a", launch=launch)
            self.view(a, "a").finish()
            if launch == "first":  # the view may end with its last worker before a late one is in it
                self.fails(muster_pg.Finished, "finished before this worker started$", self.member, "late", launch=launch)
            a.leave()
        self.fails(muster_pg.Finished, 'join of worker "b" in job "train": finished before this worker started$', self.member, "b", launch="first")
        self.view(self.member("b", launch="third"), "b")

    def test_foreign_keys(self) -> None:
        a = self.member("a")
        self.view(a, "a")
        number = b'{"ID":"x","Min":1e400,"Max":1}'
        for name, value in (("worker/x", b"not JSON"), ("worker/x", b"[" * 100_000), ("worker/x", number), ("view/x", b""), ("x", b""), ("worker/x", b'{"ID":7}')):
            key = "membership/train/roster/" + name
            self.store.set(key, value)
            says = f'key "{key}" was not written by this package'
            self.fails(muster_pg.MemberError, says, self.member, "b")
            while says not in str(self.fails(muster_pg.Timeout, "timed out", a.next, timeout=0.05)):
                pass
            self.store.delete(key)
        self.view(self.member("b"), "a", "b")
        self.view(a, "a", "b")

    def test_a_view_that_goes_while_a_worker_registers(self) -> None:
        """Has the worker read the view of those before it, decide without it, since the last of them
        has deleted it, and only then take up what it has read.
        """
        a = self.member("a")
        self.view(a, "a")
        a.close()
        load, decide, gone, decided = _track.Tracker._load, _decide.Decider._decide, threading.Event(), threading.Event()

        def load_late(m: Any, roster: Any) -> None:
            if not gone.is_set():
                self.store.delete("membership/train/roster/view")
                gone.set()
                while not decided.is_set():
                    m._cond.wait(0.01)
            load(m, roster)

        def decide_early(decider: Any) -> None:
            self.assertTrue(gone.wait(_SOON))
            decide(decider)
            decided.set()

        with mock.patch.object(_track.Tracker, "_load", load_late), mock.patch.object(_decide.Decider, "_decide", decide_early):
            self.assertEqual(self.view(self.member("b"), "b").generation, 2)

    def test_close_in_a_callback(self) -> None:
        a, b = self.member("a"), self.member("b")
        view, waits = self.view(a, "a", "b"), [Outcome(a.next, timeout=_SOON) for _ in range(2)]
        made: List[str] = []
        calls: List[Callable[[], Any]] = [lambda: made.append("first"), lambda: 1 // 0, a.close, a.leave, lambda: made.append("last")]
        for call in calls:
            view.at_end(call)
        with self.assertLogs("muster_pg", "ERROR"):
            b.close()
            self.over(view)
            self.assertEqual({type(w()) for w in waits} - {View}, {type(self.fails(muster_pg.Closed, "closed$", a.next))})
            self.assertEqual(left(), set())
        self.assertEqual(made, ["first", "last"])
        view.at_end(lambda: made.append("at once"))
        self.assertEqual(made[2:], ["at once"])

    def test_many_views(self) -> None:
        """Has leaves during decisions, and nothing that grows."""
        a = self.member("a", most=2)
        self.view(a, "a")
        self.store.wait("membership/train/history", timeout=_SOON)
        shared, before, sizes = self.at(), {t.ident for t in threading.enumerate()}, set()
        for n in range(100):
            b = self.member("b", most=2, store=shared)
            if n % 3:
                self.view(b, "a", "b")
            b.leave() if n % 2 else b.close()
            if n % 3:
                self.view(a, "a")
            for t in threading.enumerate():
                if t.name == "muster lease" and t.ident not in before:
                    t.join(_SOON)
            sizes.add((threading.active_count(), files(), len(list(self.store.list()))))
        self.assertEqual(len(sizes), 1, sizes)

    def test_a_store_that_hangs(self) -> None:
        with muster_pg.Server() as server, muster_pg.Store.connect(server.address, timeout=_SOON, liveness_timeout=600) as s:
            a, b = (self.member(id, store=s, ttl=600) for id in ("a", "b"))
            view, c = self.view(a, "a", "b"), a.start_checkpoint(1, "")
            with stopped(server):
                calls: List[Callable[..., Any]] = [
                    lambda timeout: self.member("x", store=s, timeout=timeout), a.next, view.group, view.finish, c.end, c.missing, c.wait, a.newest_checkpoint, a.leave
                ]
                for call in calls:
                    began = time.monotonic()
                    e = self.fails(muster_pg.Timeout, "timed out", call, timeout=0.3)
                    self.assertLess(time.monotonic() - began, 10, "not the 30 s of the store, nor the 600 s of the lease")
                    self.assertEqual(str(e).count("membership: "), "pgroup" not in str(e), e)
                b.close()

    def test_a_unit_whose_store_hangs(self) -> None:
        with muster_pg.Server() as server, muster_pg.Store.connect(server.address, timeout=_SOON, liveness_timeout=600) as s:
            lost = threading.Event()
            units = [Outcome(Unit, s, "train", "a", rank, 2, _SOON, lost.set) for rank in range(2)]
            a, b = (u() for u in units)
            with stopped(server):
                began = time.monotonic()
                a.close()
                self.assertLess(time.monotonic() - began, 20)
                self.assertEqual((b.error, lost.is_set()), (None, False))
            self.fails(muster_pg.Error, 'worker "a" ends, because one of its 2 processes has ended, or has lost the store: .*', b.registered, None, _SOON)
            self.assertTrue(lost.wait(_SOON))
            b.close()

    @unittest.skipUnless(hasattr(os, "fork"), "there is no fork")
    def test_a_fork_is_an_error(self) -> None:
        a = self.member("a")
        view = self.view(a, "a")
        with a._cond, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a process with threads is forked
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)  # whatever hangs ends here
                a.close()
                for f in (a.next, a.leave, view.finished):
                    self.fails(muster_pg.Closed, "another process", f)
                os._exit(0)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertIsNone(view.error)


if __name__ == "__main__":
    unittest.main()
