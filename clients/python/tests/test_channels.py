"""Channels that are closed: on a store that is played here, what a client says; on a real one, what
comes of it.
"""

from __future__ import annotations

import struct
import threading
import unittest
from typing import Any, Dict, Tuple
from unittest import mock

import muster_pg
from muster_pg import _calls, _member, _wire
from muster_pg._call import Call
from muster_pg._wire import Code, Op
from test_session import Fake, Outcome, Peer
from test_store import ADDRESS, Case

WHY = b"this rank has closed the channel"


class Closes(unittest.TestCase):
    """Has rank 0 of two, on a store that is played."""

    def setUp(self) -> None:
        self.fake = Fake()
        connecting = Outcome(muster_pg.Store.connect, self.fake.addr, timeout=10)
        self.peer, _ = self.fake.welcome()
        store: muster_pg.Store = connecting()
        self.addCleanup(store.close)
        self.addCleanup(self.fake.close)
        joining = Outcome(muster_pg.Group.join, 0, 2, store, timeout=30)
        op, _, call, _ = self.peer.frame()
        self.assertEqual(op, Op.JOIN)
        member = _member.encode("host")
        self.peer.forms(call, 5, [member, member])
        self.group: muster_pg.Group = joining()
        self.assertEqual(self.group.generation, 5)

    def request(self, want: Op, channel: str = "x", n: int = 0) -> int:
        """Is the next request, of this rank on a channel. Returns its id."""
        op, flags, call, body = self.peer.frame()
        at = 16 * (op in _wire.NUMBERED) + 8 * (op in _wire.WAITS) + (op == Op.SEND) * 8
        if op in (Op.COLLECT, Op.SEND):
            at += 4 + struct.unpack_from("<I", body, at - 8 * (op == Op.SEND))[0]
        generation, rank = struct.unpack_from("<Qi", body, at)
        length = struct.unpack_from("<I", body, at + 12)[0]
        name = body[at + 16 : at + 16 + length].decode()
        seq = struct.unpack_from("<Q", body, at + 16 + length)[0]
        self.assertEqual((op, generation, rank, name, seq), (want, 5, 0, channel, n))
        return call

    def cancelled(self, *calls: int) -> None:
        """Has the next requests cancel calls, and answers those."""
        for call in calls:
            self.assertEqual(self.peer.frame(), (Op.CANCEL, 4, call, struct.pack("<HI", Code.CANCELLED, len(WHY)) + WHY))
        for call in calls:
            self.peer.say(Op.RECV, call, code=Code.CANCELLED)

    def closed(self, e: Any, verb: str) -> None:
        self.assertIsInstance(e, muster_pg.RankError)
        self.assertIsInstance(e, muster_pg.Closed)
        self.assertRegex(str(e), f'^pgroup: {verb} of group "world" channel "x" on rank 0 of 2: closed: this rank has closed it')

    def under_way(self) -> Tuple[Dict[str, Outcome], Dict[str, int]]:
        """Has a barrier and a recv on channel x, and one on channel y, wait at the store."""
        x, y = self.group.channel("x"), self.group.channel("y")
        outcomes, calls = {}, {}
        for what, verb, args in (("barrier", x.barrier, ()), ("recv from 1", x.recv, (1,)), ("on y", y.barrier, ())):
            outcomes[what] = Outcome(verb, *args)
            calls[what] = self.request(Op.RECV if args else Op.COLLECT, "y" if what == "on y" else "x", 1)
        return outcomes, calls

    def test_close_cancels_the_calls_of_the_channel_alone(self) -> None:
        outcomes, calls = self.under_way()
        closing = Outcome(self.group.channel("x").close)
        self.cancelled(calls["barrier"], calls["recv from 1"])  # before the store learns of the close
        done = self.request(Op.CLOSE_CHANNEL)
        self.peer.say(Op.CLOSE_CHANNEL, done)
        self.assertIsNone(closing())
        for what in ("barrier", "recv from 1"):
            self.closed(outcomes[what](), what)
        self.peer.say(Op.COLLECT, calls["on y"], flags=1, body=bytes(16))
        self.assertIsNone(outcomes["on y"]())

    def test_calls_that_have_no_answer_end(self) -> None:
        x = self.group.channel("x")
        outcomes, calls = self.under_way()
        outcomes["send to 1"] = Outcome(x.send, b"m", 1)
        self.request(Op.SEND)
        with mock.patch.object(_calls, "GRACE", 0.05):
            closing = Outcome(x.close)
            for call in (calls["barrier"], calls["recv from 1"]):
                self.assertEqual(self.peer.frame()[::2], (Op.CANCEL, call))
            done = self.request(Op.CLOSE_CHANNEL)
        for what in ("barrier", "recv from 1", "send to 1"):
            e = outcomes[what]()
            self.closed(e, what)
            self.assertEqual(isinstance(e, muster_pg.Unknown), what != "recv from 1", e)
        self.peer.say(Op.CLOSE_CHANNEL, done)
        self.assertIsNone(closing())

    def test_a_call_that_waits_to_be_sent_is_not_sent(self) -> None:
        x = self.group.channel("x")
        waits, room = threading.Event(), _calls.Calls._room

        def looks_for_space(session: _calls.Calls, call: Call) -> bool:
            if call.op == Op.SEND:
                waits.set()
            return room(session, call)

        with mock.patch.object(_calls, "_MOST_NUMBERED", 1), mock.patch.object(_calls.Calls, "_room", looks_for_space):
            adding = Outcome(self.group.store.add, "k")
            add = self.peer.numbered()[:2]
            sending = Outcome(x.send, b"m", 1)
            self.assertTrue(waits.wait(10))
            closing = Outcome(x.close)
            self.closed(sending(), "send to 1")
            self.peer.number(*add, 1)
            self.assertEqual(adding(), 1)
            self.peer.say(Op.CLOSE_CHANNEL, self.request(Op.CLOSE_CHANNEL))
            self.assertIsNone(closing())

    def verbs(self, x: muster_pg.Group, n: int) -> None:
        """Has a barrier and a recv with number n on channel x succeed."""
        barrier = Outcome(x.barrier)
        self.peer.say(Op.COLLECT, self.request(Op.COLLECT, n=n), flags=1, body=bytes(16))
        self.assertIsNone(barrier())
        receiving = Outcome(x.recv, 1)
        self.peer.say(Op.RECV, self.request(Op.RECV, n=n), flags=4 | 64, body=b"\1\0\0\0m" + b"\6\0\0\0[]byte")
        self.assertEqual(receiving(), b"m")

    def test_numbers_go_on_unless_the_store_knows_of_the_close(self) -> None:
        for n, code in enumerate((Code.UNSUPPORTED, Code.UNAVAILABLE, Code.OK), 1):
            x = self.group.channel("x")
            self.verbs(x, n)
            closing = Outcome(x.close)
            self.peer.say(Op.CLOSE_CHANNEL, self.request(Op.CLOSE_CHANNEL), code=code)
            error = closing()
            self.assertEqual(isinstance(error, muster_pg.Unavailable), code == Code.UNAVAILABLE, error)
            self.assertEqual(isinstance(error, muster_pg.Error), code == Code.UNAVAILABLE, error)
            x.close()  # once
            self.assertIsNot(self.group.channel("x"), x)
        self.group.channel("x").close()  # the store knows of no use of it
        self.verbs(self.group.channel("x"), 1)

    def test_large_messages_are_acknowledged(self) -> None:
        size = 64 << 10
        for n, (length, code) in enumerate(((size - 1, None), (size, Code.OK), (size + 1, Code.UNSUPPORTED), (0, None)), 1):
            receiving = Outcome(self.group.recv, 1)
            call = self.request(Op.RECV, "", n)
            self.peer.say(Op.RECV, call, flags=4 | 64, body=struct.pack("<I", length) + bytes(length) + b"\x06\0\0\0[]byte")
            if code is not None:
                self.peer.say(Op.ACK, self.request(Op.ACK, "", n), code=code)
            self.assertEqual(len(receiving()), length)


class Channels(Case):
    """Has a group of one, on a real store: groups of both languages are in channel_test.go."""

    def test_close_is_of_nothing_else(self) -> None:
        with muster_pg.Group.join(0, 1, ADDRESS, name=self.id(), timeout=30) as g:
            with g.channel("x") as x, g.channel("y") as y:
                x.barrier()
                y.barrier()
                x.close()
                x.close()
                for verb in (x.barrier, lambda: x.send(1, 0), lambda: x.recv(0), x.shutdown):
                    self.fails(muster_pg.Closed, 'of group .* channel "x" on rank 0 of 1: closed: this rank has closed it$', verb)
                y.barrier()
                self.assertEqual((x._seq, g.channel("x")._seq), (1, 0))
                self.assertIs(g.channel("y"), y)
            self.fails(muster_pg.Closed, "channel", y.barrier)
            g.channel("x").shutdown()
            g.barrier()
            again = g.channel("x")
            again.barrier()
        self.fails(muster_pg.Closed, "channel", again.barrier)
        again.close()  # with its group

    def test_a_name_again(self) -> None:
        with muster_pg.Group.join(0, 1, ADDRESS, name=self.id(), timeout=30) as g:
            for i in range(20):
                with g.channel("x") as x:
                    x.send(i, 0)
                    self.assertEqual(x.all_gather(i), [i])
                    self.assertEqual(x.recv(0), i)

    def test_a_late_call_is_not_of_the_next_use(self) -> None:
        """Has a thread send on a handle while another closes it: the message is of that use, or is
        not sent.
        """
        with muster_pg.Group.join(0, 1, ADDRESS, name=self.id(), timeout=30) as g:
            for i in range(200):
                x = g.channel("x")
                sending = Outcome(x.send, "late", 0)
                x.close()
                with g.channel("x") as again:
                    again.send(i, 0)
                    self.assertEqual(again.recv(0), i)
                self.assertIsInstance(sending(), (type(None), muster_pg.Closed))


if __name__ == "__main__":
    unittest.main()
