"""The state of a training that passes from one process to another: what state_dict of a model, an
optimizer or a scheduler returns. It passes through torch.distributed, what is no tensor as msgpack:
nothing that is received is code.
"""

from __future__ import annotations

import hashlib
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

import torch

from ._errors import Invalid, Mismatch, make
from ._torch_native import Replicas, begin_again

try:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor, Replicate, Shard
except ImportError:  # of an old torch, for which _torch_native.check raises before they are used
    FSDPModule = DTensor = Replicate = Shard = None

_FLAT = 1 << 20  # bytes: smaller tensors pass together, in messages of at most _MESSAGE
_MESSAGE = 64 << 20
_PLAIN = (str, bytes, int, float, bool, type(None))


class State:
    """Values of registered objects at one moment: plain, with their tensors apart."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.tensors: List[torch.Tensor] = []
        self._meshes = _meshes(objects)
        self.plain = {name: self._take(name, o.state_dict()) for name, o in objects.items()}

    def _take(self, path: str, v: Any) -> List[Any]:
        """Returns v as [kind, value]; lists, tuples and dicts have such in them."""
        if isinstance(v, DTensor):
            if v.device_mesh not in self._meshes:
                raise make(Invalid, f"muster_pg.torch: elastic job: {path} is sharded over another mesh than the parameters of the models: it cannot be sent to a worker that joins")
            local = v.detach().to_local()
            self.tensors.append(local)
            return ["s", [str(v.dtype)[6:], list(local.shape), list(v.shape), list(v.stride()), _placements(path, v), self._meshes.index(v.device_mesh)]]
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


def clear(module: torch.nn.Module) -> None:
    """Lets go of what an unfinished step has left in a module."""
    module.zero_grad(set_to_none=True)
    if isinstance(module, FSDPModule):
        begin_again(module)
        return
    for child in module.children():
        clear(child)


def _meshes(objects: Mapping[str, Any]) -> List[Any]:
    """Returns the device meshes of the modules' parameters, in their order, which is that of all processes."""
    parameters = (p for o in objects.values() if isinstance(o, torch.nn.Module) for p in o.parameters())
    return list(dict.fromkeys(p.device_mesh for p in parameters if isinstance(p, DTensor)))


def _placements(path: str, t: Any) -> List[int]:
    """Returns the dimension that each of a tensor's placements shards, -1 for a replica."""
    found = []
    for p in t.placements:
        if type(p) not in (Shard, Replicate):
            raise make(Invalid, f"muster_pg.torch: elastic job: {path} has the placement {p}, which cannot be sent to a worker that joins")
        found.append(p.dim if isinstance(p, Shard) else -1)
    return found


def receive(objects: Mapping[str, Any], plain: Mapping[str, Any], link: Replicas) -> List[torch.Tensor]:
    """Returns the tensors that the source of link sends by send, for a state that fits objects."""
    if list(plain) != list(objects):
        raise make(Mismatch, f"muster_pg.torch: elastic job: {', '.join(objects)} are registered here, and {', '.join(plain)} on worker {link.source}")
    tensors = [torch.empty(shape, dtype=_dtype(name), device=link.device) for name, shape in _kinds(plain)]
    send(tensors, link)
    return tensors


def load(objects: Mapping[str, Any], plain: Mapping[str, Any], tensors: Sequence[torch.Tensor], source: int) -> None:
    """Gives objects a state that has been received."""
    rest, meshes = iter(tensors), _meshes(objects)
    for name, o in objects.items():
        try:
            o.load_state_dict(_give(plain[name], rest, meshes))
        except Exception as e:
            raise make(Mismatch, f"muster_pg.torch: elastic job: the state of {name} on worker {source} does not fit here: {e}") from e


def fits(plain: Mapping[str, Any], own: State) -> bool:
    """Reports whether own has tensors like those of a state."""
    return list(_kinds(plain)) == list(_kinds(own.plain))


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise make(Mismatch, f"muster_pg.torch: elastic job: this torch has no dtype {name!r}")
    return dtype


def send(tensors: Sequence[torch.Tensor], link: Replicas) -> None:
    """Broadcasts tensors from the source of link. A process that has them already receives the same
    bits.
    """
    for group in _messages(tensors):
        if len(group) == 1 and group[0].is_contiguous() and group[0].device == link.device:
            link.broadcast(group[0])
        elif link.sends:
            link.broadcast(torch.cat([t.reshape(-1) for t in group]).to(link.device))
        else:
            flat = torch.empty(sum(t.numel() for t in group), dtype=group[0].dtype, device=link.device)
            link.broadcast(flat)
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
        if kind in ("x", "s"):
            yield v[0], list(v[1])
        elif kind == "d":
            for _, x in v:
                yield from walk(x)
        elif kind in ("l", "t"):
            for x in v:
                yield from walk(x)

    for node in plain.values():
        yield from walk(node)


def _give(node: Sequence[Any], tensors: Iterator[torch.Tensor], meshes: Sequence[Any]) -> Any:
    kind, v = node
    if kind == "x":
        return next(tensors)
    if kind == "s":
        _, _, shape, stride, dims, mesh = v
        placements = [Replicate() if dim < 0 else Shard(dim) for dim in dims]
        return DTensor.from_local(next(tensors), meshes[mesh], placements, run_check=False, shape=torch.Size(shape), stride=tuple(stride))
    if kind == "d":
        return {k: _give(x, tensors, meshes) for k, x in v}
    if kind in ("l", "t"):
        parts = [_give(x, tensors, meshes) for x in v]
        return tuple(parts) if kind == "t" else parts
    return v
