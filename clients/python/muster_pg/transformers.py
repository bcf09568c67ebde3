"""A callback of transformers.Trainer that says what this rank does:

    from muster_pg.transformers import PhaseCallback

    with PhaseCallback(stall=600, on_stall="exit") as callback:
        Trainer(..., callbacks=[callback]).train()

With ends the phase of a training that raises an exception, which otherwise has the process ended
although it goes on. Its phases are those of muster_pg.phase: training, whose units are steps; evaluating, which predicts
too; and saving.
"""

from __future__ import annotations

from typing import Any, Optional

from . import _world
from ._phase import Phase

try:
    from transformers import TrainerCallback
except ImportError as e:
    raise ImportError(f"muster_pg.transformers needs transformers: pip install transformers: {e}") from e

class PhaseCallback(TrainerCallback):  # type: ignore[misc]
    """Says what a trainer does, until close. stall and on_stall are those of muster_pg.phase."""

    def __init__(self, *, stall: float = 0.0, on_stall: str = "log") -> None:
        self._options: Any = {"stall": stall, "on_stall": on_stall}
        self._phase: Optional[Phase] = None
        self._training = False

    def __enter__(self) -> PhaseCallback:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the phase that a failed training has left open. It may be used for another training."""
        self._training = False
        self._leave()

    def _enter(self, name: str, total: int = 0) -> Phase:
        """Begins a phase, and ends the one before; or goes on with it."""
        if self._phase is None or self._phase.name != name:
            self._leave()
            self._phase = _world.phase(name, total, **self._options).__enter__()
        return self._phase

    def _leave(self) -> None:
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.__exit__()

    def _next(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Says what the trainer does next, which has no event when it begins."""
        if not self._training:
            self._leave()
        elif control.should_evaluate:
            self._enter("evaluating")
        elif control.should_save:
            self._enter("saving")
        else:
            self._enter("training", max(state.max_steps, 0)).done(state.global_step)

    on_step_end = on_epoch_end = on_evaluate = on_predict = on_save = _next

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._leave()  # of a training that has failed
        self._training = True
        self._next(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        phase = self._enter("evaluating")
        phase.done(phase.units[0] + 1)
