"""Modules whose gradients are averaged over the workers of an elastic job."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, ContextManager, Iterator, List, Mapping, Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from ._errors import Invalid, make


class Replicated(torch.nn.Module):  # type: ignore[misc]
    """A module whose gradients are averaged over the workers of a job: see ElasticJob.ddp. Its
    state is that of the module.
    """

    def __init__(self, module: torch.nn.Module, options: Mapping[str, Any]) -> None:
        """Not called by users."""
        super().__init__()
        self.module = module
        self._options = dict(options)
        self._current: List[DistributedDataParallel] = []  # in a list, so that it is no submodule

    @property
    def _ddp(self) -> DistributedDataParallel:
        if not self._current:
            raise make(Invalid, "muster_pg.torch: elastic job: the module of ddp is called outside of the function that run calls, or was made in it")
        return self._current[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._ddp(*args, **kwargs)

    def no_sync(self) -> ContextManager[None]:
        """Is that of DistributedDataParallel: gradients accumulate without the others. Call step at
        the end of an accumulation.
        """
        unsynced: ContextManager[None] = self._ddp.no_sync()
        return unsynced

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)


@contextmanager
def in_view(models: Sequence[Replicated], group: Any) -> Iterator[None]:
    """Makes the DistributedDataParallel of each model over a process group, for one view. At its end
    the hooks of the parameters go, which would run beside those of the next one.
    """
    for m in models:
        m._current.append(DistributedDataParallel(m.module, process_group=group, init_sync=False, **m._options))
    try:
        yield
    finally:
        for m in models:
            if m._current:
                m._current.pop()._remove_autograd_hooks()
