"""Phases of bars of tqdm, and of a trainer of transformers: with these libraries, or a stand-in."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import unittest
from typing import Any, Iterator, List, Optional, Tuple
from unittest import mock

from muster_pg import _world
from muster_pg._phase import Phase, Progress


class Bar:
    """Is what muster_pg.tqdm needs of tqdm.tqdm: its iterator updates for several units."""

    def __init__(self, iterable: Any = None, desc: Optional[str] = None, total: Optional[float] = None, disable: bool = False, initial: int = 0, **_: Any) -> None:
        self.iterable, self.disable, self.n = iterable, disable, initial
        self.total = total if total is not None else len(iterable)

    def __iter__(self) -> Iterator[Any]:
        for i, unit in enumerate(self.iterable):
            yield unit
            if i % 5 == 4 and not self.disable:
                self.update(5)
        self.close()

    def update(self, n: float = 1) -> Optional[bool]:
        if not self.disable:
            self.n += int(n)
        return None

    def reset(self, total: Optional[float] = None) -> None:
        self.n, self.total = 0, self.total if total is None else total

    def close(self) -> None:
        pass


class Recorder(Progress):
    """Notes which phases have begun and ended."""

    def __init__(self) -> None:
        super().__init__("rank 0")
        self.said: List[Tuple[str, str, int]] = []

    def begin(self, phase: Phase) -> None:
        super().begin(phase)
        self.said.append(("begins", phase.name, phase.total))

    def end(self, phase: Phase) -> None:
        self.said.append(("ends", phase.name, phase.units[0]))
        super().end(phase)


class Callbacks(unittest.TestCase):
    def setUp(self) -> None:
        self.progress = Recorder()
        patch = mock.patch.multiple(_world, _world=None, _alone=self.progress)
        patch.start()
        self.addCleanup(patch.stop)

    def module(self, name: str, **stand_in: Any) -> Any:
        """Returns a module of muster_pg, which imports the library of that name."""
        modules = {f"muster_pg.{name}": None}
        if importlib.util.find_spec(name) is None:
            library = types.ModuleType(name)
            vars(library).update(stand_in)
            modules[name] = library  # type: ignore[assignment]
        patch = mock.patch.dict(sys.modules, modules)
        patch.start()
        self.addCleanup(patch.stop)
        del sys.modules[f"muster_pg.{name}"]
        return importlib.import_module(f"muster_pg.{name}")

    def test_tqdm(self) -> None:
        tqdm = self.module("tqdm", tqdm=Bar).tqdm
        for options in {}, {"disable": True}:
            with self.subTest(options):
                seen = []
                for i in tqdm(range(12), "loading shards", **options):
                    seen.append((i, self.progress.state().done))
                self.assertEqual(seen, [(i, i) for i in range(12)])
                bar = tqdm(total=8, initial=2, **options)
                bar.update(3)
                bar.reset(total=4)
                bar.update()
                bar.close()
                bar.close()
                self.assertEqual(
                    self.progress.said,
                    [
                        ("begins", "loading shards", 12), ("ends", "loading shards", 12),
                        ("begins", "tqdm", 8), ("ends", "tqdm", 5), ("begins", "tqdm", 4), ("ends", "tqdm", 1),
                    ],
                )  # fmt: skip
                self.progress.said.clear()

    def test_transformers(self) -> None:
        callback = self.module("transformers", TrainerCallback=object).PhaseCallback(stall=60)
        state, control = mock.Mock(max_steps=4, global_step=1), mock.Mock(should_evaluate=False, should_save=False)

        def on(*events: str, evaluates: bool = False, saves: bool = False) -> None:
            control.should_evaluate, control.should_save = evaluates, saves
            for event in events:
                getattr(callback, "on_" + event)(None, state, control)

        on("train_begin", "step_end")
        state.global_step = 2
        on("step_end", evaluates=True, saves=True)
        on("prediction_step", "prediction_step", "evaluate", saves=True)
        on("save", "epoch_end", "train_end", "prediction_step", "predict")
        on("train_begin", "train_begin", "train_end")  # the first one has failed
        self.assertEqual(
            self.progress.said,
            [
                ("begins", "training", 4), ("ends", "training", 1), ("begins", "evaluating", 0), ("ends", "evaluating", 2),
                ("begins", "saving", 0), ("ends", "saving", 0), ("begins", "training", 4), ("ends", "training", 2),
                ("begins", "evaluating", 0), ("ends", "evaluating", 1),
                ("begins", "training", 4), ("ends", "training", 2), ("begins", "training", 4), ("ends", "training", 2),
            ],
        )  # fmt: skip
        with self.assertRaises(KeyError), callback:
            on("train_begin")
            raise KeyError
        on("save")
        self.assertEqual(self.progress.said[-2:], [("begins", "training", 4), ("ends", "training", 2)])
        self.assertFalse(self.progress._open)
        self.progress.close()

    def test_without_the_libraries(self) -> None:
        for name in "tqdm", "transformers":
            with mock.patch.dict(sys.modules, {name: None}):
                sys.modules.pop(f"muster_pg.{name}", None)
                with self.assertRaisesRegex(ImportError, f"^muster_pg.{name} needs {name}: pip install {name}: "):
                    importlib.import_module(f"muster_pg.{name}")


if __name__ == "__main__":
    unittest.main()
