"""Exports of a model whose tensors ranks have parts of: see Group.export."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
import os
import re
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from . import _arguments, _arrays, _objects
from ._errors import Error, Failed, Invalid, make
from ._verb import Verb, plain, words
from ._wire import WANT_ALL, Code, Failure

if TYPE_CHECKING:
    from ._group import Group

CHANNEL = "\0export"
_BLOCK = 8 << 20  # the most bytes of a tensor that are sent, or held, at once
_ROUND = 1 << 30  # bytes after which all ranks learn of a rank that cannot write
_INDEX = "model.safetensors.index.json"
_EXPORTED = re.compile(r"\.muster-export-.*|model-[0-9A-Z]{12}-\d{5}-of-\d{5}\.safetensors")  # files of exports, also of Go's package gather


class Part:
    """A block of a tensor: an array of numpy or torch whose first element is at start in the whole
    tensor, which has a shape.
    """

    def __init__(self, array: Any, start: Sequence[int], shape: Sequence[int]) -> None:
        self.array, self.start, self.shape = array, tuple(start), tuple(shape)


class _Box:
    """A block of a tensor: shape[i] elements along axis i, from start[i] on."""

    def __init__(self, start: Sequence[int], shape: Sequence[int]) -> None:
        self.start, self.shape, self.size = tuple(start), tuple(shape), math.prod(shape)

    def end(self, axis: int) -> int:
        return self.start[axis] + self.shape[axis]

    def both(self, other: "_Box") -> "_Box":
        """Returns what is in both, which may be empty."""
        start = [max(a, b) for a, b in zip(self.start, other.start)]
        return _Box(start, [max(0, min(self.end(i), other.end(i)) - at) for i, at in enumerate(start)])

    def within(self, outer: "_Box") -> Tuple[slice, ...]:
        """Returns where it is in an array of outer."""
        return tuple(slice(a - b, a - b + n) for a, b, n in zip(self.start, outer.start, self.shape))

    def blocks(self, most: int) -> Iterator["_Box"]:
        """Yields blocks of at most so many elements, one after the other in row-major order."""
        axis = next((i for i, n in enumerate(self.shape) if n > 1), -1)
        if axis < 0 or self.size <= most:
            yield self
            return
        n = max(1, most * self.shape[axis] // self.size)
        for at in range(0, self.shape[axis], n):
            start, shape = list(self.start), list(self.shape)
            start[axis] += at
            shape[axis] = min(n, shape[axis] - at)
            yield from _Box(start, shape).blocks(most)


class _Tensor:
    """A tensor, the parts that ranks have of it, and who writes it."""

    def __init__(self, name: str, dtype: str, shape: Sequence[int]) -> None:
        self.name, self.dtype, self.whole = name, dtype, _Box([0] * len(shape), shape)
        self.order, bits = _arrays.kind(dtype)
        self.width = max(1, bits // 8)  # bytes of an element; torch has two of 4 bits in one
        self.held: Dict[Tuple[Tuple[int, ...], Tuple[int, ...]], List[int]] = {}
        self.first = -1  # rank that has a part
        self.same: Optional[str] = None  # the name of what it is the same as; "": of nothing
        self.owner = -1

    def check(self) -> None:
        """Raises unless each element is in exactly one part."""
        parts = [(_Box(*box), ranks[0]) for box, ranks in self.held.items()]
        axes = range(len(self.whole.shape))
        by = max(axes, key=lambda i: len({p.start[i] for p, _ in parts}), default=0)  # where the fewest are beside each other
        parts.sort(key=lambda p: p[0].start[by : by + 1])
        left = self.whole.size
        for i, (p, rank) in enumerate(parts):
            if any(p.end(axis) > self.whole.shape[axis] for axis in axes):
                raise make(Invalid, f"rank {rank} has a part {list(p.shape)} at {list(p.start)} of a tensor of shape {list(self.whole.shape)}")
            left -= p.size
            for q, other in parts[i + 1 :]:
                if axes and q.start[by] >= p.end(by):
                    break
                if p.both(q).size:
                    raise make(Invalid, f"the parts of ranks {rank} and {other} overlap: {list(p.shape)} at {list(p.start)}, and {list(q.shape)} at {list(q.start)}")
        if left:
            raise make(Invalid, f"no rank has {left} of its {self.whole.size} elements")

    def own(self, load: List[int]) -> None:
        """Makes the rank of those that have a part the owner that has the least to write, and chooses
        who sends each part.
        """
        self.owner = min(itertools.chain(*self.held.values()), key=lambda rank: (load[rank], rank))
        load[self.owner] += self.whole.size * self.width
        self.sources = [
            (_Box(*box), self.owner if self.owner in ranks else ranks[i % len(ranks)]) for i, (box, ranks) in enumerate(self.held.items())
        ]

    def header(self, at: int) -> Dict[str, Any]:
        """Returns its entry in the header of a file whose bytes begin at some offset."""
        shape = list(self.whole.shape)
        if self.dtype == "F4":
            shape[-1] *= 2
        return {"dtype": self.dtype, "shape": shape, "data_offsets": [at, at + self.whole.size * self.width]}


def _part(v: Any) -> Optional[Part]:
    """Returns the part that an array or a DTensor is; None: this rank has nothing of it."""
    if isinstance(v, Part):
        return v
    if hasattr(v, "device_mesh"):
        if any(p.is_partial() for p in v.placements):
            raise make(Invalid, "its ranks have parts of a sum: redistribute it first")
        if v.device_mesh.get_coordinate() is None:
            return None
        local = v.to_local()
        chunks = [c for c in v.__create_chunk_list__() if math.prod(c.sizes) or not v.numel()]
        if len(chunks) > 1 or chunks and tuple(chunks[0].sizes) != tuple(local.shape) or not chunks and local.numel():
            has = [list(c.sizes) for c in chunks]
            raise make(Invalid, f"torch says that this rank has blocks of shape {has}, and it has {list(local.shape)}: redistribute it, or save shards")
        return Part(local, chunks[0].offsets, v.shape) if chunks else None
    if not _arrays.library(v):
        raise make(Invalid, f"it is no array of numpy or torch, but {type(v).__name__}")
    return Part(v, [0] * v.ndim, v.shape)


class _Export:
    """One export. All ranks make the same plan, and take part in its steps in the same order."""

    def __init__(self, g: Group, until: float, directory: Any, metadata: Optional[Mapping[str, str]]) -> None:
        self.g, self.until, self.rank = g, until, g.rank
        self.margin = min(30.0, (until - time.monotonic()) / 10)  # in which all learn who is missing
        for pair in dict(metadata or {}).items():
            for text in pair:
                _arguments.text(plain, "metadata", text)
        self.dir, self.metadata = Path(directory), dict(metadata or {})
        self.token = base64.b32encode(os.urandom(8)).decode()[:12]  # in the names of all files of this export; rank 0's counts
        self.error: Optional[Exception] = None  # of writing or reading; the others learn of it with the next step
        self.mine: Dict[str, Part] = {}
        self.tensors: List[_Tensor] = []  # in the order in which they are sent and written
        self.files: Dict[int, str] = {}  # by owner
        self.tied: Dict[str, str] = {}

    def list(self, parts: Mapping[str, Any]) -> List[Any]:
        """Lists what this rank has."""
        first: Dict[Any, str] = {}  # by memory
        out = []
        for name in parts:
            _arguments.text(plain, "name of a tensor", name)
        for name in sorted(parts):
            try:
                if name == "__metadata__":
                    raise make(Invalid, "files of safetensors have something else at that name")
                p = _part(parts[name])
                if p is None:
                    continue
                dtype, memory = _arrays.identity(p.array)
                if len(p.start) != len(p.shape) or len(p.shape) != p.array.ndim or any(n < 0 for n in (*p.start, *p.shape)):
                    raise make(Invalid, f"a part of {p.array.ndim} axes at {list(p.start)} of a tensor of shape {list(p.shape)}")
            except Exception as e:
                raise make(Invalid, f"tensor {name!r:.200}: {words(e)}") from None
            self.mine[name] = p
            box = [list(p.start), list(p.array.shape), list(p.shape)]
            same = first.setdefault((memory, dtype, str(box)), name)
            out.append([name, dtype, *box, "" if same == name else same])
        return out

    def plan(self, lists: Sequence[Any]) -> None:
        all: Dict[str, _Tensor] = {}
        for rank, parts in enumerate(lists):
            for name, dtype, start, shape, whole, same in parts:
                t = all.setdefault(name, _Tensor(name, dtype, whole))
                if (dtype, tuple(whole)) != (t.dtype, t.whole.shape):
                    raise make(Invalid, f"tensor {name!r:.200}: rank {rank} has a part of {dtype}{whole}, and rank {t.first} of {t.dtype}{list(t.whole.shape)}")
                t.first = t.first if t.first >= 0 else rank
                t.same = same if t.same in (None, same) else ""
                if math.prod(shape) or not t.whole.size:
                    t.held.setdefault((tuple(start), tuple(shape)), []).append(rank)
        if not all:
            raise make(Invalid, "no rank has a tensor")
        load = [0] * self.g.size
        owned: Dict[int, List[_Tensor]] = {}
        for t in sorted(all.values(), key=lambda t: (-t.whole.size * t.width, t.name)):
            try:
                t.check()
            except Invalid as e:
                raise make(Invalid, f"tensor {t.name!r:.200}: {e}") from None
            if t.same and t.same < t.name and t.same in all:
                self.tied[t.name] = t.same
            else:
                t.own(load)
                owned.setdefault(t.owner, []).append(t)
        for i, owner in enumerate(sorted(owned), 1):
            self.files[owner] = f"model-{self.token}-{i:05}-of-{len(owned):05}.safetensors"
            owned[owner].sort(key=lambda t: (-t.order, t.name))
        self.tensors = [t for ts in itertools.zip_longest(*owned.values()) for t in ts if t]  # each owner in turn

    def step(self, do: Callable[[], object]) -> None:
        """Has each rank do something. What one raises, all raise."""
        with Verb(self.g, "export", self.left()) as v:
            do()
            v.cast()

    def agree(self) -> None:
        """Raises on all ranks if one could not write or send, or is missing."""
        self.step(lambda: None)
        self.step(self.check)

    def check(self) -> None:
        if isinstance(self.error, Error):
            raise self.error
        if self.error is not None:
            raise make(Failed, words(self.error)) from self.error

    def left(self, margin: float = 0.0) -> float:
        return max(0.0, self.until - margin - time.monotonic())

    def temporary(self, what: object) -> Path:
        return self.dir / f".muster-export-{self.token}-{what}.part"

    def prepare(self) -> None:
        """Makes the directory, and removes what killed jobs have left there."""
        if self.rank != 0:
            return
        self.dir.mkdir(parents=True, exist_ok=True)
        if (self.dir / "model.safetensors").exists():
            raise make(Failed, f"{self.dir} has model.safetensors, which readers may take instead: remove it, or name another directory")
        model = self.indexed()
        for left in self.dir.iterdir():
            if _EXPORTED.fullmatch(left.name) and left.name not in model:
                left.unlink()

    def indexed(self) -> Set[str]:
        """Returns the files of the model in the directory."""
        try:
            return {str(name) for name in json.loads((self.dir / _INDEX).read_bytes())["weight_map"].values()}
        except Exception:  # without an index there is none
            return set()

    def write(self) -> Iterator[None]:
        """Writes the file of this rank, and sends parts to the owners of others. It yields where all ranks agree."""
        moved = 0
        with contextlib.ExitStack() as stack:
            file: Any = None
            if self.rank in self.files:
                with self.failing():
                    file = stack.enter_context(open(self.temporary(self.rank), "xb"))
                    file.write(self.header())
            try:
                for t in self.tensors:
                    sources = [s for s in t.sources if self.rank in (s[1], t.owner)]
                    if sources or self.rank == t.owner:
                        for block in t.whole.blocks(max(1, _BLOCK // t.width)):
                            self.move(t, block, sources, file)
                    moved += t.whole.size * t.width
                    if moved >= _ROUND:
                        moved = 0
                        yield
            except Exception as e:  # of send or recv: the others fail too, or time out
                self.error = self.error or make(Failed, words(e))
            with self.failing():
                if file is not None:
                    file.flush()
                    os.fsync(file.fileno())
        yield

    def move(self, t: _Tensor, block: _Box, sources: Sequence[Tuple[_Box, int]], file: Any) -> None:
        """Sends what this rank has of a block, or writes the block."""
        import numpy

        out: Any = None
        if t.owner == self.rank:
            with self.failing():
                out = numpy.empty((*block.shape, t.width), numpy.uint8)
        for held, source in sources:
            x = held.both(block)
            if not x.size:
                continue
            piece: Any = self.piece(t, held, x) if source == self.rank else None
            if t.owner != self.rank:
                self.g.send(piece, t.owner, timeout=self.left(self.margin))
                continue
            if source != self.rank:
                piece = self.g.recv(source, timeout=self.left(self.margin))
            with self.failing():
                if isinstance(piece, str):
                    raise make(Failed, f"rank {source}: {piece}")
                if out is not None:
                    out[x.within(block)] = numpy.frombuffer(piece, numpy.uint8).reshape(*x.shape, t.width)
        with self.failing():
            if out is not None and self.error is None:
                file.write(memoryview(out).cast("B") if out.size else b"")

    def piece(self, t: _Tensor, held: _Box, x: _Box) -> Any:
        """Returns the bytes of a block of this rank's part, or the text of an error."""
        try:
            return bytes(_arrays.data(self.mine[t.name].array[x.within(held) or ...]))
        except Exception as e:
            says = f"tensor {t.name!r:.200}: {words(e)}"
            self.error = self.error or make(Failed, says)
            return says

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Keeps an error for the next step, until which this rank goes on to receive: others send to it."""
        try:
            yield
        except Exception as e:
            self.error = self.error or e

    def header(self) -> bytes:
        """Returns the header of this rank's file."""
        at, names = 0, {}
        mine = [t for t in self.tensors if t.owner == self.rank]
        for t in mine:
            names[t.name] = t.header(at)
            at += t.whole.size * t.width
        metadata = {**{tied: name for tied, name in self.tied.items() if name in names}, **self.metadata}
        b = json.dumps({**({"__metadata__": metadata} if metadata else {}), **names}, separators=(",", ":"), ensure_ascii=False).encode()
        b += b" " * (-len(b) % 8)
        return struct.pack("<Q", len(b)) + b

    def name(self) -> None:
        """Gives the file of this rank its name. Rank 0 writes the index before."""
        if self.rank == 0:
            files = {t.name: self.files[t.owner] for t in sorted(self.tensors, key=lambda t: t.name)}
            total = sum(t.whole.size * t.width for t in self.tensors)
            with open(self.temporary("index"), "xb") as f:
                f.write(json.dumps({"metadata": {"total_size": total}, "weight_map": files}, indent=2, ensure_ascii=False).encode())
                f.flush()
                os.fsync(f.fileno())
        if self.rank in self.files:
            os.rename(self.temporary(self.rank), self.dir / self.files[self.rank])

    def commit(self) -> None:
        """Gives the index its name, if all files are there, and removes those of the older model."""
        if self.rank != 0:
            return
        for owner, name in self.files.items():
            if not (self.dir / name).exists():
                raise make(Failed, f"the file of rank {owner} is not in the directory of rank 0, {self.dir}")
        old = self.indexed()
        os.replace(self.temporary("index"), self.dir / _INDEX)
        d = os.open(self.dir, os.O_RDONLY)
        try:
            os.fsync(d)
        finally:
            os.close(d)
        for name in old - set(self.files.values()):
            if os.path.basename(name) == name and name.endswith(".safetensors"):
                with contextlib.suppress(OSError):  # the model is complete with or without it
                    (self.dir / name).unlink()

    def discard(self) -> None:
        """Removes all files of this export, unless they are a model. Rank 0 cannot rename the index once
        it is removed here, even if it was stopped and goes on later.
        """
        with contextlib.suppress(OSError, ValueError):
            self.temporary("index").unlink()
        if not self.indexed().isdisjoint(self.files.values()):
            return
        for path in (self.temporary(self.rank), *(self.dir / name for name in self.files.values())):
            with contextlib.suppress(OSError, ValueError):
                path.unlink()


def export(g: Group, parts: Mapping[str, Any], directory: Any, metadata: Optional[Mapping[str, str]], timeout: Optional[float]) -> None:
    """See Group.export."""
    if not g._busy.acquire(blocking=False):
        raise g._busy_error("export")
    channel = g.channel(CHANNEL + g._channel)
    try:
        with Verb(channel, "export", timeout, want=WANT_ALL) as v:
            e = _Export(channel, v.until, _arguments.file(plain, "directory", directory), metadata)
            v.pack([e.list(parts), e.metadata, e.token])
            lists = v.decode(_objects.unpack, v.cast(), g.size)
        _, e.metadata, e.token = lists[0]
        if not re.fullmatch("[0-9A-Z]{12}", e.token):
            raise make(Invalid, f"rank 0 has sent {e.token!r:.100}")
        try:
            e.plan([parts for parts, _, _ in lists])
        except Invalid as err:  # the same on all ranks
            raise g._membership.error("export", Failure(Code.INVALID, reason=str(err))) from None
        try:
            e.step(e.prepare)
            for _ in e.write():
                e.agree()
            e.step(e.name)
            e.step(e.commit)
        except BaseException:
            e.discard()
            raise
    finally:
        with contextlib.suppress(Error):
            channel.close()  # with what was sent and not received
        g._busy.release()
