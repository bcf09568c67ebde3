"""The members of a group: those in the answer to a join, and those that are asked for."""

from __future__ import annotations

import struct
import unittest
from typing import List, Sequence

import muster_pg
from muster_pg import _member, _wire
from muster_pg._errors import ProtocolError
from muster_pg._wire import Code, Op, Reply

from test_session import Fake, Outcome


def node_of(n: int) -> bytes:
    """Is a member on node n."""
    return struct.pack("<QIBB", n, 10 + n, 0, 0)


class Members(unittest.TestCase):
    """Has one rank, on a store that is played."""

    def setUp(self) -> None:
        self.fake = Fake()
        connecting = Outcome(muster_pg.Store.connect, self.fake.addr, timeout=10)
        self.peer, _ = self.fake.welcome()
        self.store: muster_pg.Store = connecting()
        self.addCleanup(self.store.close)
        self.addCleanup(self.fake.close)

    def joined(self, rank: int, size: int, nums: Sequence[int]) -> muster_pg.Group:
        joining = Outcome(muster_pg.Group.join, rank, size, self.store, timeout=30)
        op, _, call, _ = self.peer.frame()
        self.assertEqual(op, Op.JOIN)
        self.peer.forms(call, 5, [], nums=nums)
        g: muster_pg.Group = joining()
        return g

    def test_large(self) -> None:
        g = self.joined(70, 100, (100, 3, 50, -1, 20, 2, 50))
        self.assertEqual((g.rank, g.size, g.local_rank), (70, 100, 1))
        self.assertEqual((g._membership.host, g._membership.id), (3, (1 << 64) - 1))
        asking = Outcome(lambda: g.members)
        op, _, call, body = self.peer.frame()
        self.assertEqual((op, body), (Op.MEMBERS, struct.pack("<qQQi", 0, 0, 5, 70)))
        self.peer.say(Op.MEMBERS, call, flags=8, body=_wire.encode_parts([node_of(n % 50) for n in range(100)]))
        members: List[muster_pg.Member] = asking()
        self.assertEqual([m.pid for m in members], [10 + n % 50 for n in range(100)])
        self.assertEqual((members[70].local_rank, members[70].node), (1, 20))
        self.assertEqual(g.members, members)  # without a request

    def test_fails(self) -> None:
        g = self.joined(0, 100, (100, -1, 1, 7, 0, 100, 1))
        for body, error in (
            (_wire.encode_parts([node_of(0)]), "1 members of a group of 100"),
            (_wire.encode_parts([b"x"] * 100), "the entry of rank 0: malformed member"),
        ):
            asking = Outcome(lambda: g.members)
            _, _, call, _ = self.peer.frame()
            self.peer.say(Op.MEMBERS, call, flags=8, body=body)
            failed = asking()
            self.assertIsInstance(failed, ProtocolError)
            self.assertIn(error, str(failed))
        asking = Outcome(lambda: g.members)
        _, _, call, _ = self.peer.frame()
        self.peer.say(Op.MEMBERS, call, code=Code.CLOSED)
        failed = asking()
        self.assertIsInstance(failed, muster_pg.RankError)
        self.assertEqual((failed.op, failed.code), ("members", Code.CLOSED))

    def test_formed(self) -> None:
        right = (10, -1, 5, 7, 1, 2, 2, 8, 1, 1)
        self.assertEqual(_member.formed(Reply(rev=1, nums=list(right)), 3), (7, 3, 10, -1, [1, 3, 8]))
        self.assertEqual(_member.formed(Reply(rev=1, n=9, nums=list(right)), 3), (7, 8, 10, -1, [1, 3, 8]))
        for wrong in (
            (), right[:9], (10,) + right[:6], (8,) + right[1:], (10, 10) + right[2:], (10, -2) + right[2:], right[:4] + (0, 2, 2), right[:4] + (3, 0, 1),
            right[:4] + (3, 1, 0), right[:4] + (3, 8, 1), right[:4] + (-1, 5, 1), right + (8, 1, 1), (3,) + right[1:],
        ):  # fmt: skip
            with self.assertRaises(ProtocolError, msg=str(wrong)):
                _member.formed(Reply(rev=1, nums=list(wrong)), 3)
