"""The backend "muster" of torch.distributed: a process group for the CPU that says which rank is
missing, lost or out of step.

    import muster_pg.torch                                   # registers the backend

    dist.init_process_group("gloo")
    control = dist.new_group(backend="muster")
    dist.barrier(control)                                    # RankError: … missing rank 2 …

It is for barriers, objects and small tensors: all data passes through the store, and each reduction
is computed on every rank, in rank order, so that all have the same bits. A collective fails on all
ranks alike, at its timeout or as soon as a rank has failed; every barrier is a monitored one.

The store is the one that MUSTER_STORE names, with MUSTER_SECRET_FILE and MUSTER_TLS_*; otherwise
the server of the group's TCPStore, if that is a muster store or a relay: both speak both protocols
on one port. Ranks in errors are those of the group.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import uuid
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from . import _arguments, _env
from ._arrays import bytes_of, memory
from ._errors import Error, Invalid, Mismatch, Unavailable, make
from ._failure import ranks
from ._group import Group
from ._torch_elastic import ElasticJob as ElasticJob
from ._torch_steps import JobView as JobView
from ._verb import Verb
from ._wire import WANT_ALL, WANT_PART, encode_parts

_Split = Callable[[Any], List[torch.Tensor]]
_Future = concurrent.futures.Future  # of an operation
_RUN = "muster run"  # the key of the group's store with the run that rank 0 has chosen, while ranks join
_OPS: Dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group of torch.distributed on a muster_pg.Group.

    torch calls the methods, with one tensor for each rank, or with lists of one tensor. Operations
    run in the order of their calls. A call that torch does not mark as asynchronous runs in the
    caller's thread, and raises its error; the others run in a thread of their kind, and their Work
    raises it.
    """

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self.group = group
        self._threads = _Threads()
        self._name, self._desc = group.name, "undefined"

    # What torch asks of every group.

    def name(self) -> str:
        return "muster"

    getBackendName = name

    @property
    def _device_types(self) -> List[torch.device]:
        """Is empty while torch makes the group: it attaches a recorder to a group with devices,
        which needs a backend of C++.
        """
        return [torch.device("cpu")] if self in c10d._world.pg_map else []

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._desc

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    def _get_backend(self, device: torch.device) -> "ProcessGroup":
        return self

    supports_coalescing = supports_splitting = False

    def set_timeout(self, timeout: timedelta) -> None:
        m = self.group._membership
        m.config.timeout = _arguments.seconds(m.bad("set_timeout"), "timeout", timeout.total_seconds(), zero=False)

    def shutdown(self) -> None:
        """Leaves the group: ranks that wait for this one get Left. torch calls it at
        destroy_process_group.
        """
        self.group.close()
        self._threads.close()

    def abort(self) -> None:
        """Ends the group for all ranks."""
        self.group.abort("torch.distributed aborted the process group")
        self._threads.close()

    # Collectives.

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._collective(opts, [], lambda timeout: self.group.barrier(timeout=timeout))

    def monitored_barrier(self, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False) -> None:
        """Is barrier with a timeout. Its error names all missing ranks, on every rank."""
        self.group.barrier(timeout=_seconds(timeout))

    def broadcast(self, tensors: List[torch.Tensor], opts: Any = c10d.BroadcastOptions()) -> dist.Work:
        [t], root = tensors, opts.rootRank

        def run(timeout: Optional[float]) -> None:
            with self._verb("broadcast", timeout, root=root, root_only=True) as v:
                if root == self.rank():
                    _cast(v, "", t, 0, bytes_of(t))
                else:
                    v.c.want = root
                    _fill(t, _cast(v, "", t, 1)[0])

        return self._collective(opts, tensors, run)

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = c10d.AllreduceOptions()) -> dist.Work:
        def run(timeout: Optional[float]) -> None:
            for t in tensors:
                with self._verb("allgather", timeout, want=WANT_ALL) as v:
                    t.copy_(_reduce(opts.reduceOp, self._gathered(v, _op(opts.reduceOp), t)))

        return self._collective(opts, tensors, run)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: List[torch.Tensor], opts: Any = c10d.ReduceOptions()) -> dist.Work:
        [t] = tensors

        def run(timeout: Optional[float]) -> None:
            with self._verb("gather", timeout, root=opts.rootRank) as v:
                parts = self._collected(v, _op(opts.reduceOp), t)
                if parts is not None:
                    t.copy_(_reduce(opts.reduceOp, parts))

        return self._collective(opts, tensors, run)

    def allgather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None) -> dist.Work:
        return self._allgather(outputs, inputs, opts, list)

    def allgather_coalesced(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None) -> dist.Work:
        return self.allgather([list(outs) for outs in zip(*outputs)], inputs, opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None) -> dist.Work:
        return self._allgather(outputs, inputs, opts, self._rows)

    def _allgather(self, outputs: List[Any], inputs: List[torch.Tensor], opts: Any, split: _Split) -> dist.Work:
        def run(timeout: Optional[float]) -> None:
            for outs, t in zip(outputs, inputs):
                with self._verb("allgather", timeout, want=WANT_ALL) as v:
                    _copy(split(outs), self._gathered(v, "", t))

        return self._collective(opts, outputs, run)

    def gather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = c10d.GatherOptions()) -> dist.Work:
        return self._gather(outputs, inputs, opts, list)

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = c10d.GatherOptions()) -> dist.Work:
        return self._gather([output], [input], opts, self._rows)

    def _gather(self, outputs: List[Any], inputs: List[torch.Tensor], opts: Any, split: _Split) -> dist.Work:
        [t] = inputs

        def run(timeout: Optional[float]) -> None:
            with self._verb("gather", timeout, root=opts.rootRank) as v:
                outs = split(outputs[0]) if v.c.root == self.rank() else []
                _copy(outs, self._collected(v, "", t) or [])

        return self._collective(opts, outputs, run)

    def scatter(self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any = c10d.ScatterOptions()) -> dist.Work:
        [out] = outputs

        def run(timeout: Optional[float]) -> None:
            with self._verb("scatter", timeout, root=opts.rootRank, root_only=True, want=WANT_PART) as v:
                _fill(out, _cast(v, "", out, 1, _parts(inputs[0]) if v.c.root == self.rank() else b"")[0])

        return self._collective(opts, outputs, run)

    def reduce_scatter(self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any = c10d.ReduceScatterOptions()) -> dist.Work:
        return self._reduce_scatter(outputs, inputs, opts, list)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = c10d.ReduceScatterOptions()) -> dist.Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = c10d.ReduceScatterOptions()) -> dist.Work:
        return self._reduce_scatter(outputs, inputs, opts, self._rows)

    def _reduce_scatter(self, outputs: List[torch.Tensor], inputs: List[Any], opts: Any, split: _Split) -> dist.Work:
        def run(timeout: Optional[float]) -> None:
            for out, ts in zip(outputs, inputs):
                with self._verb("alltoall", timeout, want=WANT_PART) as v:
                    parts = [torch.empty_like(out, memory_format=torch.contiguous_format) for _ in range(self.size())]
                    self._exchange(v, _op(opts.reduceOp), split(ts), parts)
                    out.copy_(_reduce(opts.reduceOp, parts))

        return self._collective(opts, outputs, run)

    def alltoall(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None) -> dist.Work:
        return self._alltoall(outputs, opts, lambda: (inputs, outputs))

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_splits: Sequence[int], input_splits: Sequence[int], opts: Any = None
    ) -> dist.Work:
        def split(t: torch.Tensor, sizes: Sequence[int]) -> List[torch.Tensor]:
            return list(torch.split(t, list(sizes))) if sizes else self._rows(t)

        return self._alltoall([output], opts, lambda: (split(input, input_splits), split(output, output_splits)))

    def _alltoall(self, outputs: List[torch.Tensor], opts: Any, split: Callable[[], Tuple[List[torch.Tensor], List[torch.Tensor]]]) -> dist.Work:
        def run(timeout: Optional[float]) -> None:
            with self._verb("alltoall", timeout, want=WANT_PART) as v:
                self._exchange(v, "", *split())

        return self._collective(opts, outputs, run)

    # Before torch 2.15 some of them have other names.
    _allgather_base, alltoall_base = all_gather_single, all_to_all_single
    _reduce_scatter_base, gather_into_tensor = reduce_scatter_single, gather_single
    allgather_into_tensor_coalesced, reduce_scatter_tensor_coalesced = all_gather_single_coalesced, reduce_scatter_single_coalesced

    # Messages. The store keeps what was sent until it is received, within limits.

    def send(self, tensors: List[torch.Tensor], dst: int, tag: int = 0) -> dist.Work:
        [t] = tensors
        data = bytes(bytes_of(t))  # now: the caller may change t when isend has returned
        return self._threads.later(f"send {dst} {tag}", tensors, lambda: self._tagged(tag).send(data, dst))

    def recv(self, tensors: List[torch.Tensor], src: int, tag: int = 0) -> dist.Work:
        [t] = tensors
        return self._threads.later(f"recv {src} {tag}", tensors, lambda: _fill(t, self._tagged(tag).recv(src)))

    def recv_anysource(self, tensors: List[torch.Tensor], tag: int = 0) -> dist.Work:
        raise make(Invalid, "muster_pg.torch: recv from any rank: the backend muster has no such operation: name the rank")

    def _tagged(self, tag: int) -> Group:
        return self.group.channel(f"tag {tag}")

    # What the collectives have in common.

    def _collective(self, opts: Any, outputs: Any, run: Callable[[Optional[float]], object]) -> dist.Work:
        timeout = _seconds(getattr(opts, "timeout", None))
        if getattr(opts, "asyncOp", True):
            return self._threads.later("collectives", outputs, lambda: run(timeout))
        self._threads.drain("collectives")
        run(timeout)
        return _DONE

    def _verb(self, verb: str, timeout: Optional[float], **more: Any) -> Verb:
        """Returns a verb of tensors. What raises in it before its vote, raises on all ranks."""
        return Verb(self.group, verb, timeout, kind="torch.Tensor", **more)

    def _rows(self, t: torch.Tensor) -> List[torch.Tensor]:
        """Returns the part of t that each rank has."""
        return list(t.view(self.size(), -1))

    def _gathered(self, v: Verb, op: str, t: torch.Tensor) -> List[torch.Tensor]:
        """Returns the tensors of all ranks."""
        return _like(t, _cast(v, op, t, self.size(), bytes_of(t)))

    def _collected(self, v: Verb, op: str, t: torch.Tensor) -> Optional[List[torch.Tensor]]:
        """Returns the tensors of all ranks on root, and None on the others."""
        if v.c.root != self.rank():
            _cast(v, op, t, 0, bytes_of(t))
            return None
        v.c.want = WANT_ALL
        return self._gathered(v, op, t)

    def _exchange(self, v: Verb, op: str, ts: List[torch.Tensor], outs: List[torch.Tensor]) -> None:
        """Fills outs[i] with what rank i has for this rank. The tensors may have any sizes."""
        for out, b in zip(outs, _cast(v, op, ts[0][:0], self.size(), _parts(ts))):
            _fill(out, b)


class _Work(dist.Work):  # type: ignore[misc]
    """An operation, finished or under way."""

    def __init__(self, future: "_Future[object]", outputs: object) -> None:
        super().__init__()
        self._future, self._outputs = future, outputs

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._future.result(_seconds(timeout))
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done() and self._future.exception() is None

    def exception(self) -> Optional[BaseException]:
        return self._future.exception() if self._future.done() else None

    def result(self) -> object:
        self.wait()
        return self._outputs

    def get_future(self) -> "torch.futures.Future[Any]":
        ended: torch.futures.Future[Any] = torch.futures.Future()
        self._future.add_done_callback(lambda _: ended.set_result(None))
        return ended.then(lambda _: self.result())  # its set_exception would make the error the result, which DDP reads as tensors


def _finished() -> _Work:
    future: "_Future[object]" = _Future()
    future.set_result(None)
    return _Work(future, [])


_DONE = _finished()


class _Threads:
    """Threads for asynchronous operations: those of one queue run one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the fields below
        self._pools: Dict[str, concurrent.futures.ThreadPoolExecutor] = {}
        self._last: Dict[str, "_Future[object]"] = {}

    def later(self, queue: str, outputs: object, run: Callable[[], object]) -> _Work:
        with self._lock:
            pool = self._pools.get(queue)
            if pool is None:
                pool = self._pools[queue] = concurrent.futures.ThreadPoolExecutor(1, f"muster {queue}")
            future = self._last[queue] = pool.submit(run)
        return _Work(future, outputs)

    def drain(self, queue: str) -> None:
        """Waits for the operations of a queue. Their errors are those of their Works."""
        last = self._last.get(queue)
        if last is not None:
            concurrent.futures.wait([last])

    def close(self) -> None:
        with self._lock:
            for pool in self._pools.values():
                pool.shutdown(wait=False)


def _seconds(timeout: Optional[timedelta]) -> Optional[float]:
    """Returns the seconds of a timeout of torch, for which 0 or less means none of its own."""
    return timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else None


def _cast(v: Verb, op: str, t: torch.Tensor, n: int, data: Any = b"") -> List[bytes]:
    """Votes with data, and returns the n payloads that the verb brings, given that all ranks make
    the same call with tensors like t.
    """
    v.c.label = f"{op} of {t.numel()} {str(t.dtype)[6:]}".strip()
    v.brings(bytes(data))
    return v.decode(bytes, v.cast(), n)


def _parts(ts: Sequence[torch.Tensor]) -> bytes:
    return encode_parts([bytes(bytes_of(t)) for t in ts])


def _copy(outs: List[torch.Tensor], parts: List[torch.Tensor]) -> None:
    for out, part in zip(outs, parts):
        out.copy_(part.view(out.shape))


def _fill(t: torch.Tensor, data: bytes) -> None:
    if len(data) != t.numel() * t.element_size():
        raise make(Mismatch, f"muster_pg.torch: {len(data)} bytes came for a tensor of {t.numel()} {str(t.dtype)[6:]}")
    part = t if t.is_contiguous() and not (t.is_conj() or t.is_neg()) else torch.empty_like(t, memory_format=torch.contiguous_format)
    memory(part)[:] = data
    if part is not t:
        t.copy_(part)


def _like(t: torch.Tensor, got: List[bytes]) -> List[torch.Tensor]:
    """Makes tensors of bytes."""
    parts = [torch.empty_like(t, memory_format=torch.contiguous_format, requires_grad=False) for _ in got]
    for part, b in zip(parts, got):
        _fill(part, b)
    return parts


def _op(op: Any) -> str:
    name: str = getattr(op, "op", op).name
    if name not in _OPS:
        raise make(Invalid, f"muster_pg.torch: the backend muster has no reduction {name}: there are {', '.join(_OPS)}")
    return name


def _reduce(op: Any, parts: List[torch.Tensor]) -> torch.Tensor:
    """Combines the tensors in rank order."""
    name, out = _op(op), parts[0]
    for part in parts[1:]:
        out = _OPS[name](out, part)
    if name == "AVG":
        out = out / len(parts) if out.is_floating_point() or out.is_complex() else out // len(parts)
    return out


def _address(store: Any) -> Tuple[str, bool]:
    """Returns where the group meets, and whether MUSTER_STORE names it."""
    url = os.environ.get("MUSTER_STORE")
    if url:
        return url, True
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not hasattr(store, "port"):
        raise make(Invalid, f"muster_pg.torch: the group's store is a {type(store).__name__}: set MUSTER_STORE to a muster store, as muster://host:7070")
    host = f"[{store.host}]" if ":" in store.host else store.host
    return f"{host}:{store.port}", False


def _create(options: Any, _: Any) -> ProcessGroup:
    """Makes a group, for torch."""
    store, rank, size = options.store, options.group_rank, options.group_size
    address, named = _address(store)
    if rank == 0:
        store.set(_RUN, uuid.uuid4().hex)
    run = store.get(_RUN).decode()
    tls, secret = _env.credentials(os.environ)
    name, members = options.group_id, list(options.global_ranks_in_group)
    if members and members != list(range(size)):
        name += f" of {ranks(members)}"
    try:
        group = Group.join(
            rank, size, address, name=name[:200], run=run, timeout=options.timeout.total_seconds(), tls=tls, secret=secret
        )
    except (Unavailable, Invalid) as e:
        if named:
            raise
        raise make(
            Unavailable, f"muster_pg.torch: no muster store at {address}, where the group's TCPStore is: set MUSTER_STORE to one, as muster://host:7070: {e}"
        ) from None
    finally:  # all have read it: the next job in this store is not to find it
        if rank == 0:
            store.delete_key(_RUN)
    return ProcessGroup(group)


dist.Backend.register_backend("muster", _create, extended_api=True, devices=["cpu"])
