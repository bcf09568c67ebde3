"""The state of a training that passes from one process to another: what state_dict of a model, an
optimizer or a scheduler returns. Its tensors pass through torch.distributed, and the rest as plain
values through the store: nothing that is received is code.
"""

from __future__ import annotations

import hashlib
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

import torch
import torch.distributed as dist

from ._errors import Invalid, Mismatch, make

_FLAT = 1 << 20  # bytes: smaller tensors pass together, in messages of at most _MESSAGE
_MESSAGE = 64 << 20
_PLAIN = (str, bytes, int, float, bool, type(None))


class State:
    """Values of registered objects at one moment: plain, with their tensors apart."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.tensors: List[torch.Tensor] = []
        self.plain = {name: self._take(name, o.state_dict()) for name, o in objects.items()}

    def _take(self, path: str, v: Any) -> List[Any]:
        """Returns v as [kind, value]; lists, tuples and dicts have such in them."""
        if isinstance(v, torch.Tensor):
            self.tensors.append(v.detach())
            return ["x", [str(v.dtype)[6:], list(v.shape)]]
        if isinstance(v, Mapping):
            return ["d", [[k, self._take(f"{path}[{k!r}]", x)] for k, x in v.items()]]
        if isinstance(v, (list, tuple)):
            return ["t" if isinstance(v, tuple) else "l", [self._take(f"{path}[{i}]", x) for i, x in enumerate(v)]]
        if isinstance(v, _PLAIN):
            return ["v", v]
        raise make(Invalid, f"muster_pg.torch: elastic job: {path} is a {type(v).__name__}, which cannot be sent to a worker that joins")


def digest(objects: Mapping[str, Any]) -> str:
    """Returns a hash of the names, dtypes and shapes of the models' tensors, which all processes
    must have in common, and of the names of all objects.
    """
    h = hashlib.sha256()
    for name, o in sorted(objects.items()):
        h.update(repr((name, type(o).__name__)).encode())
        if isinstance(o, torch.nn.Module):
            h.update(repr([(k, str(t.dtype), tuple(t.shape)) for k, t in o.state_dict().items() if isinstance(t, torch.Tensor)]).encode())
    return h.hexdigest()[:16]


def receive(objects: Mapping[str, Any], plain: Mapping[str, Any], source: int, device: torch.device) -> None:
    """Gives objects the state that rank source sends by send. Until all of it has come, they have
    what they had.
    """
    if list(plain) != list(objects):
        raise make(Mismatch, f"muster_pg.torch: elastic job: {', '.join(objects)} are registered here, and {', '.join(plain)} on rank {source}")
    tensors = [torch.empty(shape, dtype=_dtype(name), device=device) for name, shape in _kinds(plain)]
    send(tensors, source, device)
    rest = iter(tensors)
    for name, o in objects.items():
        try:
            o.load_state_dict(_give(plain[name], rest))
        except Exception as e:
            raise make(Mismatch, f"muster_pg.torch: elastic job: the state of {name} on rank {source} does not fit here: {e}") from e


def fits(plain: Mapping[str, Any], own: State) -> bool:
    """Reports whether own has tensors like those of a state."""
    return list(_kinds(plain)) == list(_kinds(own.plain))


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise make(Mismatch, f"muster_pg.torch: elastic job: this torch has no dtype {name!r}")
    return dtype


def send(tensors: Sequence[torch.Tensor], source: int, device: torch.device) -> None:
    """Broadcasts tensors from rank source, over device, which the process group is for. A rank that
    has them already receives the same bits.
    """
    for group in _messages(tensors):
        if len(group) == 1 and group[0].is_contiguous() and group[0].device == device:
            dist.broadcast(group[0], source)
            continue
        flat = torch.cat([t.reshape(-1) for t in group]).to(device)
        dist.broadcast(flat, source)
        for t, part in zip(group, flat.split([t.numel() for t in group])):
            t.copy_(part.view(t.shape))


def _messages(tensors: Sequence[torch.Tensor]) -> Iterator[List[torch.Tensor]]:
    """Groups tensors: small ones of one dtype and device pass together."""
    small: Dict[Tuple[torch.dtype, torch.device], List[torch.Tensor]] = {}
    sizes: Dict[Tuple[torch.dtype, torch.device], int] = {}
    for t in tensors:
        size, key = t.numel() * t.element_size(), (t.dtype, t.device)
        if size >= _FLAT:
            yield [t]
        elif size > 0:
            if sizes.get(key, 0) + size > _MESSAGE:
                yield small.pop(key)
                sizes[key] = 0
            small.setdefault(key, []).append(t)
            sizes[key] = sizes.get(key, 0) + size
    yield from small.values()


def _kinds(plain: Mapping[str, Any]) -> Iterator[Tuple[str, List[int]]]:
    """Returns dtype and shape of each tensor, in their order."""

    def walk(node: Sequence[Any]) -> Iterator[Tuple[str, List[int]]]:
        kind, v = node
        if kind == "x":
            yield v[0], list(v[1])
        elif kind == "d":
            for _, x in v:
                yield from walk(x)
        elif kind in ("l", "t"):
            for x in v:
                yield from walk(x)

    for node in plain.values():
        yield from walk(node)


def _give(node: Sequence[Any], tensors: Iterator[torch.Tensor]) -> Any:
    kind, v = node
    if kind == "x":
        return next(tensors)
    if kind == "d":
        return {k: _give(x, tensors) for k, x in v}
    if kind in ("l", "t"):
        parts = [_give(x, tensors) for x in v]
        return tuple(parts) if kind == "t" else parts
    return v
