"""Bars of tqdm whose progress is that of a phase of this rank:

    from muster_pg.tqdm import tqdm

    for shard in tqdm(shards, desc="loading shards"):
        load(shard)

The phase is one of muster_pg.phase, from the making of the bar to its close. It also counts the
units of a bar that is disabled, as that of a rank that prints none.
"""

from __future__ import annotations

from typing import Any, Iterator, Optional

from . import _world
from ._phase import Phase

try:
    from tqdm import tqdm as _tqdm
except ImportError as e:
    raise ImportError(f"muster_pg.tqdm needs tqdm: pip install tqdm: {e}") from e


class tqdm(_tqdm):  # type: ignore[misc]
    """tqdm.tqdm, with its arguments, whose description is the name of the phase."""

    _phase: Optional[Phase] = None

    def __init__(self, iterable: Any = None, desc: Optional[str] = None, total: Optional[float] = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(iterable, desc, total, *args, **kwargs)
        self._phase = _world.phase(str(desc or "tqdm"), int(self.total or 0)).__enter__()
        self._done(self.n)

    def _done(self, n: float) -> None:
        if self._phase is not None:
            self._phase.done(max(int(n), 0))

    def __iter__(self) -> Iterator[Any]:
        for n, unit in enumerate(super().__iter__(), int(self.n) + 1):
            yield unit
            self._done(n)  # tqdm calls update for several units

    def update(self, n: float = 1) -> Any:
        shown = super().update(n)
        if self.disable:
            self.n += n
        self._done(self.n)
        return shown

    def reset(self, total: Optional[float] = None) -> None:
        super().reset(total)
        if self._phase is not None:  # another one: its units are done once more
            self._phase.__exit__()
            self._phase.total = int(self.total or 0)
            self._phase.__enter__()

    def close(self) -> None:
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.__exit__()
        super().close()
