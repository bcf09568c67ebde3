"""A callback of transformers.Trainer that says what this rank does:

    from muster_pg.transformers import PhaseCallback

    trainer = Trainer(..., callbacks=[PhaseCallback(stall=600, on_stall="exit")])

Its phases are those of muster_pg.phase: training, whose units are steps, and in it evaluating and
saving.
"""

from __future__ import annotations

from typing import Any, List

from . import _world
from ._phase import Phase

try:
    from transformers import TrainerCallback
except ImportError as e:
    raise ImportError(f"muster_pg.transformers needs transformers: pip install transformers: {e}") from e

_TRAINING, _EVALUATING = "training", "evaluating"


class PhaseCallback(TrainerCallback):  # type: ignore[misc]
    """Says what a trainer does. stall and on_stall are those of muster_pg.phase."""

    def __init__(self, *, stall: float = 0.0, on_stall: str = "log") -> None:
        self._options: Any = {"stall": stall, "on_stall": on_stall}
        self._open: List[Phase] = []  # training, and one in it

    def _enter(self, depth: int, name: str = "", total: int = 0) -> None:
        """Ends the phases from a depth on, and begins one if it has a name."""
        while len(self._open) > depth:
            self._open.pop().__exit__()
        if name:
            self._open.append(_world.phase(name, total, **self._options).__enter__())

    def _leave(self) -> None:
        """Ends what is not training."""
        self._enter(1 if self._open and self._open[0].name == _TRAINING else 0)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._enter(0, _TRAINING, max(state.max_steps, 0))
        self._open[0].done(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._enter(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave()
        self._open[0].done(state.global_step)
        self._announce(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._announce(control)

    def _announce(self, control: Any) -> None:
        """Begins what the trainer does next: it says only when that has ended."""
        if control.should_evaluate or control.should_save:
            self._leave()
            self._enter(len(self._open), _EVALUATING if control.should_evaluate else "saving")

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._open or self._open[-1].name != _EVALUATING:
            self._leave()
            self._enter(len(self._open), _EVALUATING)
        phase = self._open[-1]
        phase.done(phase.units[0] + 1)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave()
        self._announce(control)

    def on_predict(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave()
