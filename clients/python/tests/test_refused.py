"""What one rank of a group cannot send: all ranks get the same error at once, and the group continues."""

from __future__ import annotations

import importlib.util
import math
import unittest
from typing import Any, Callable, Dict, Iterator, List, Tuple, Type

import muster_pg
from test_store import Case

Verb = Callable[[muster_pg.Group, Any], object]  # with an object in every place where it takes one

VERBS: Dict[str, Verb] = {
    "all_gather": lambda g, v: g.all_gather(v),
    "all_gather of parts": lambda g, v: g.all_gather({"deep": [v]}),
    "gather": lambda g, v: g.gather(v),
    "broadcast": lambda g, v: g.broadcast(v, root=1),
    "scatter": lambda g, v: g.scatter([1, v, 2], root=1),
    "all_to_all": lambda g, v: g.all_to_all([v, 1, 2]),
    "all_reduce": lambda g, v: g.all_reduce([v]),
    "all_gather_bytes": lambda g, v: g.all_gather_bytes(v),
    "broadcast_bytes": lambda g, v: g.broadcast_bytes(v, root=1),
}
WHOLE: Dict[str, Verb] = {
    "scatter": lambda g, v: g.scatter(v, root=1),
    "all_to_all": lambda g, v: g.all_to_all(v),
    "all_reduce": lambda g, v: g.all_reduce(v),
}
ARGUMENTS: Dict[str, Verb] = {
    "barrier, timeout": lambda g, v: g.barrier(timeout=v),
    "gather, root": lambda g, v: g.gather(1, v),
    "all_reduce, op": lambda g, v: g.all_reduce([1], v),
}


class Refuses:
    """Raises whenever it is asked for anything: an error whose text raises too."""

    def __init__(self, error: Type[BaseException]) -> None:
        self.error = error

    def __getattribute__(self, name: str) -> Any:
        raise object.__getattribute__(self, "error")(self)

    def refuse(self, *_: object) -> Any:
        raise object.__getattribute__(self, "error")(self)

    __index__ = __float__ = __eq__ = __bool__ = __repr__ = __str__ = __len__ = __iter__ = refuse


class Sequence(List[Any]):
    """Has no length, and no elements."""

    def refuse(self, *_: object) -> Any:
        raise AttributeError("no elements")

    __len__ = __iter__ = __getitem__ = refuse


def objects() -> Iterator[Tuple[str, Any]]:
    """Makes what cannot be sent by any verb."""
    endless: List[Any] = []
    endless.append(endless)
    yield "a list of itself", endless
    circle: Dict[str, Any] = {}
    circle["c"] = [circle]
    yield "a dict of itself", circle
    deep: Any = 0
    for _ in range(2000):
        deep = [deep]
    yield "a deep list", deep
    yield from (("set", {1}), ("class", int), ("complex", 1j), ("a long int", [1 << 70]), ("surrogate", "\ud800"), ("keys", {(1, 2): 3}), ("sequence", Sequence()))
    yield from ((e.__name__, Refuses(e)) for e in (ValueError, RecursionError, MemoryError, StopIteration, muster_pg.Timeout))
    if importlib.util.find_spec("numpy") is not None:
        import numpy as np

        yield "a masked array", np.ma.array([1.0, 2.0], mask=[False, True])
        yield "objects", np.array([object()])
        yield "text", np.array(["text"])
        yield "a broken array", type("Broken", (np.ndarray,), {"dtype": property(Sequence.refuse)})(1)


class Refused(Case):
    def refused(self, group: muster_pg.Group, verb: Verb, wrong: Any, right: Any) -> Tuple[object, ...]:
        """Returns what comes of a verb with a wrong argument on rank 1, as all ranks should report it."""
        try:
            return "done", verb(group, wrong if group.rank == 1 else right)
        except muster_pg.RankError as e:
            return isinstance(e, (muster_pg.Invalid, muster_pg.Cancelled, muster_pg.TooLarge)), e.by, e.code, e.reason, list(e.missing)

    def cases(self) -> Iterator[Tuple[str, Verb, Any, Any]]:
        for what, v in objects():
            for verb, f in VERBS.items():
                right: Any = b"" if "bytes" in verb else 1
                yield f"{verb} of {what}", f, v, right
            for verb, f in WHOLE.items():
                yield f"{verb} of {what} as a whole", f, v, [1, 2, 3]
            for verb, f in ARGUMENTS.items():
                yield f"{verb} {what}", f, v, {"timeout": 20, "root": 0, "op": "sum"}[verb.rpartition(" ")[2]]
        timeouts: Tuple[Any, ...] = (-1, math.nan, "1", True, b"")
        yield from ((f"timeout {bad!r}", ARGUMENTS["barrier, timeout"], bad, 20) for bad in timeouts)
        roots: Tuple[Any, ...] = (-1, 3, 1.0, None, True, 1 << 70)
        yield from ((f"root {bad!r}", ARGUMENTS["gather, root"], bad, 0) for bad in roots)

    def test_every_rank_reports_it(self) -> None:
        def body(g: muster_pg.Group) -> List[Tuple[str, Tuple[object, ...]]]:
            out = [(name, self.refused(g, f, wrong, right)) for name, f, wrong, right in self.cases()]
            g.barrier()  # with the same number on all ranks
            return out

        first, *others = self.ranks(3, body)
        self.assertGreater(len(first), 100)
        for outcomes in zip(first, *others):
            with self.subTest(outcomes[0][0]):
                self.assertEqual(len(set(map(repr, outcomes))), 1, outcomes)
                ok, by, *_ = outcomes[0][1]
                self.assertEqual((ok, by), (True, 1), outcomes)

    def test_messages(self) -> None:
        with muster_pg.Group.join(0, 1, self.store, name="g") as g:
            for name, v in objects():
                with self.subTest(name):
                    self.fails(muster_pg.Invalid, '^pgroup: send to 0 of group "g" on rank 0: ', g.send, v, 0)
            g.send("sent", 0)
            self.assertEqual(g.recv(0), "sent")

    def test_an_interrupt_votes_first(self) -> None:
        for error in (KeyboardInterrupt, SystemExit, GeneratorExit):
            def body(g: muster_pg.Group) -> object:
                try:
                    return g.all_reduce(Refuses(error) if g.rank == 1 else [1])
                except muster_pg.RankError as e:
                    return e.by, e.code.name
                except error as e:
                    return type(e)

            with self.subTest(error.__name__):
                self.assertEqual(self.ranks(3, body), [(1, "CANCELLED"), error, (1, "CANCELLED")])


if __name__ == "__main__":
    unittest.main()
