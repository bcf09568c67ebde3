"""What elastic jobs use of torch that is private in torch 2.15, or specific to its backends: the
process groups whose members are replaced in place (pytorch#186298, #187381, #189359).

check names what a torch lacks. Nothing else of this package uses these names.
"""

from __future__ import annotations

import collections
import math
import os
import random
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Deque, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from . import _objects
from ._errors import Conflict, Invalid, Unsupported, make
from ._store import Store

BACKENDS = "gloo", "nccl2"  # nccl2 was never run: there is no GPU where this is developed
ATTEMPTS = 64  # to connect the processes of a view, at most
_FIRST_ATTEMPT = 2.0  # seconds
_DRAIN = 5.0  # seconds that gloo may take to close the connections that were cut
_FORGOTTEN = 0.05  # seconds that an operation may take to end after that; otherwise gloo has forgotten it
_LINGER = 0.5  # seconds in which the others learn that a process has left
_KEY_TTL = 3600.0  # seconds that the store keeps a key of a group's forming
_NEEDED = (
    "torch.distributed._reconfigure",
    "torch.distributed._get_reconfigure_handle",
    "torch.distributed._supports_reconfigure",
    "torch.distributed.ProcessGroup.register_post_hook",
    "torch.distributed.device_mesh.DeviceMesh.from_group",
    "torch.distributed.distributed_c10d._get_default_group",
    "torch.distributed.distributed_c10d._new_process_group_helper",
    "torch.distributed.distributed_c10d._world.group_count",
    "torch.distributed.distributed_c10d._world.pg_group_ranks",
    "torch.distributed.fsdp.FSDPModule._get_fsdp_state",
    "torch.distributed.fsdp.FSDPModule.reset_iter_state",
    "torch.amp.GradScaler._found_inf_per_device",
    "torch.nn.parallel.DistributedDataParallel._remove_autograd_hooks",
)

_Address = Tuple[Any, ...]  # of a socket, as the socket module has it


def check(backend: str) -> None:
    """Raises Unsupported if this torch cannot replace the members of a group, or names what of it
    has changed.
    """
    if backend not in BACKENDS:
        raise make(Invalid, f"muster_pg.torch: elastic job: backend is {backend!r}: there are {' and '.join(BACKENDS)}")
    lacks = [name for name in _NEEDED if not _has(name)]
    if lacks:
        raise make(
            Unsupported,
            f"muster_pg.torch: elastic job: torch {torch.__version__} has no {', '.join(lacks)}: install torch 2.15, or let torchrun restart "
            "all processes (torchrun --max-restarts=3 --rdzv-backend=muster)",
        )


def _has(name: str) -> bool:
    o: Any = torch
    for part in name.split(".")[1:]:
        o = getattr(o, part, None)
    return o is not None


class ViewStore(dist.Store):  # type: ignore[misc]
    """The keys through which the processes of a view connect, below a prefix that is the view's."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store  # replaced in each view
        self._timeout = timedelta(seconds=300)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set(self, key: str, value: Any) -> None:
        self.store.set(key, value.encode() if isinstance(value, str) else value, ttl=_KEY_TTL)

    def get(self, key: str) -> bytes:
        return self.store.wait(key, timeout=self._timeout.total_seconds())[0]

    def multi_get(self, keys: List[str]) -> List[bytes]:
        return self.store.wait(*keys, timeout=self._timeout.total_seconds())

    def wait(self, keys: List[str], timeout: Optional[timedelta] = None) -> None:
        self.store.wait(*keys, timeout=(timeout or self._timeout).total_seconds())

    def check(self, keys: List[str]) -> bool:
        return all(self.store.exists(key) for key in keys)

    def add(self, key: str, value: int) -> int:
        return self.store.add(key, value)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        expected, desired = (v.encode() if isinstance(v, str) else bytes(v) for v in (expected, desired))
        try:
            self.store.swap(key, expected or None, desired, ttl=_KEY_TTL)
        except Conflict as e:
            return expected if e.value is None else e.value
        return bytes(desired)

    def delete_key(self, key: str) -> bool:
        return self.store.delete(key) > 0


class Connections:
    """The connections of a gloo group in one view. cut ends the operations that wait for them.

    A blocked operation of gloo ends when its connection does, and by nothing else that another
    thread can do: abort, and a reconfiguration, wait for its timeout. The connections are those of
    this process to or from an address on which a process of the view listens for the group. They
    are held as duplicates, because the number of a descriptor that gloo has closed may soon be
    another file's. The socket that listens is never shut down: gloo aborts the process then.

    Only the reading end is shut down, and the duplicates stay open until the next view has formed:
    otherwise the other process gets a reset, and if it writes before gloo has seen that, gloo (of
    torch 2.15) forgets the operation, which then waits for its timeout.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects the fields below
        self._held: List[socket.socket] = []
        self._over = False

    def hold(self, listeners: Sequence[Sequence[Any]]) -> None:
        """Finds the connections of a group that has just connected, given the listeners of all. They
        are cut at once if cut was called before.
        """
        known = {tuple(a)[:2] for a in listeners}
        with self._lock:
            for s in _open_sockets():
                local, peer = _names(s)
                if peer is not None and (local[:2] in known or peer[:2] in known):
                    self._held.append(s)
                else:
                    s.close()
            over = self._over
        if over:
            self.cut()

    def cut(self) -> None:
        """Ends the operations that wait for the connections. Any thread may call it."""
        with self._lock:
            self._over = True
            for s in self._held:
                with suppress(OSError):
                    s.shutdown(socket.SHUT_RD)

    def closed(self) -> bool:
        """Reports whether gloo has closed all of them: then it reads and writes no more."""
        with self._lock:
            mine = {s.fileno(): os.fstat(s.fileno()).st_ino for s in self._held}
        for name in os.listdir("/dev/fd"):
            with suppress(OSError):
                if int(name) not in mine and os.fstat(int(name)).st_ino in mine.values():
                    return False
        return True

    @property
    def held(self) -> bool:
        return bool(self._held)

    def release(self) -> None:
        """Closes the connections."""
        with self._lock:
            held, self._held = self._held, []
        for s in held:
            s.close()


def listening() -> Set[_Address]:
    """Returns the TCP addresses on which this process listens."""
    found = set()
    for s in _open_sockets():
        local, peer = _names(s)
        if peer is None and local and s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            found.add(tuple(local))
        s.close()
    return found


def _open_sockets() -> List[socket.socket]:
    """Returns duplicates of the TCP sockets of this process."""
    found = []
    for name in os.listdir("/dev/fd"):
        try:
            fd = os.dup(int(name))
        except (OSError, ValueError):
            continue
        try:
            s = socket.socket(fileno=fd)
        except OSError:  # it is none
            os.close(fd)
            continue
        if s.family in (socket.AF_INET, socket.AF_INET6) and s.type == socket.SOCK_STREAM:
            found.append(s)
        else:
            s.close()
    return found


def _names(s: socket.socket) -> Tuple[Any, Any]:
    """Returns the addresses of both ends; None for a peer that is not there."""
    try:
        local = s.getsockname()
    except OSError:
        return None, None
    try:
        return local, s.getpeername()
    except OSError:
        return local, None


def timed_out(e: BaseException) -> bool:
    """Reports whether a collective of torch failed because a rank did not come in time."""
    return isinstance(e, RuntimeError) and ("Timed out waiting" in str(e) or "timeout" in type(e).__name__.lower())


def disconnected(e: BaseException) -> bool:
    """Reports whether a collective of torch failed because of its connections. A rank that times out
    closes them, so that others which wait have this error instead of their own timeout.
    """
    says = "gloo/transport", "Application timeout caused pair closure"
    return isinstance(e, dist.DistError) or isinstance(e, RuntimeError) and any(s in str(e) for s in says)


def found_inf(scaler: Any, optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
    """Returns what a torch.amp.GradScaler finds in the gradients: 1 if there are infinities. It
    divides them by the scale, unless the program has done that, as to clip them.
    """
    if not scaler._found_inf_per_device(optimizer):
        scaler.unscale_(optimizer)
    return list(scaler._found_inf_per_device(optimizer).values())


def forget_inf(scaler: Any) -> None:
    """Has a scaler begin a step again."""
    scaler._per_optimizer_states.clear()


def attempts(seconds: float) -> Iterator[float]:
    """Divides the time in which processes connect."""
    limit = _FIRST_ATTEMPT
    while seconds > 2 * limit:
        yield limit
        seconds, limit = seconds - limit, 2 * limit
    yield seconds


class Replicas:
    """The processes of the same number in their workers, and the one of them that sends its state."""

    def __init__(self, group: Any, source: int, device: torch.device) -> None:
        self._group, self.source, self.device = group, source, device

    def broadcast(self, t: torch.Tensor) -> None:
        """Gives t, which is on device, the source's values."""
        dist.broadcast(t, group=self._group, group_src=self.source)

    @property
    def sends(self) -> bool:
        """Reports whether this process is the source."""
        return bool(dist.get_rank(self._group) == self.source)

    def broadcast_object(self, obj: Any) -> Any:
        """Returns the source's obj, of plain values."""
        data = _objects.pack(obj)
        size = torch.tensor([len(data)], device=self.device)
        self.broadcast(size)
        t = torch.frombuffer(bytearray(data), dtype=torch.uint8) if self.sends else torch.empty(int(size.item()), dtype=torch.uint8)
        t = t.to(self.device)
        self.broadcast(t)
        return _objects.unpack(t.cpu().numpy().tobytes())


class _Members:
    """A process group whose members are replaced, and the store through which they connect."""

    def __init__(self, group: Any, store: ViewStore) -> None:
        self.group, self.store = group, store

    def enter(self, store: Store, uuid: int, ranks: Sequence[int], handles: Sequence[Sequence[str]], index: int, timeout: timedelta) -> None:
        """Replaces the members by processes with these ranks in the default group."""
        self.store.store = store
        dist._reconfigure(uuid, [handles[r][index] for r in ranks], group=self.group, timeout=timeout).wait()
        c10d._world.pg_group_ranks[self.group] = {rank: i for i, rank in enumerate(ranks)}
        if self.group.size() != len(ranks):
            raise RuntimeError(f"torch has a group of {self.group.size()} after its reconfiguration to {len(ranks)}")


def begin_again(module: Any) -> None:
    """Lets go of what an unfinished step has left in a module of fully_shard, and in those in it."""
    if module._get_fsdp_state()._is_root is not None:  # it has been called
        module.reset_iter_state()


class World:
    """The process groups of an elastic job, made once and with other members in each view: torch's
    default group, of all processes; and where workers have several processes, one of those with the
    same number, and one of a worker's.
    """

    def __init__(self, backend: str, store: Store, timeout: float, processes: int) -> None:
        """processes is how many a worker has. Before the first enter, each group has this process alone."""
        check(backend)
        if dist.is_initialized():
            raise make(Invalid, "muster_pg.torch: elastic job: torch.distributed is initialized: the job makes the default process group itself")
        self._timeout = timedelta(seconds=timeout if timeout < math.inf else 10**9)
        self._processes = processes
        before = listening()
        # What tells the processes apart until they have connected is this rank; torch assigns those of the view afterwards.
        rank, first = random.SystemRandom().randrange(1 << 31), ViewStore(store)
        dist.init_process_group(backend, store=first, rank=rank, world_size=1, timeout=self._timeout, enable_reconfigure=True)
        self._groups = [_Members(c10d._get_default_group(), first)]
        for name in ("replicate", "shard") if processes > 1 else ():
            s = ViewStore(store)
            group, _ = c10d._new_process_group_helper(1, rank, [rank], backend, s, name, timeout=self._timeout, group_desc=name, enable_reconfigure=True)
            self._groups.append(_Members(group, s))
        self._last = Connections()  # of the newest view that has formed
        self._lock = threading.Lock()  # protects works, which each thread that calls torch adds to
        self._works: Deque[Any] = collections.deque()  # operations that may be under way, in their order
        for g in self._groups:
            g.group.register_post_hook(0, self._began)
        self._listeners = [list(a) for a in sorted(listening() - before, key=repr)]

    @property
    def device(self) -> torch.device:
        """Where tensors have to be for the groups."""
        return torch.device("cpu") if dist.get_backend() == "gloo" else torch.device("cuda", torch.cuda.current_device())

    @property
    def replicated(self) -> Any:
        """The group of the processes with the same number."""
        return self._groups[1 if self._processes > 1 else 0].group

    def replicas(self, source: int) -> Replicas:
        """Returns those processes, of which that of one worker sends."""
        return Replicas(self.replicated, source, self.device)

    def mesh(self) -> Any:
        """Returns the device mesh of this worker, in which it is the only replica. It has the groups
        themselves, so that what is computed over it has the members of the view.
        """
        members = [g.group for g in self._groups[1:]]
        ranks = torch.arange(self._processes).view(1, -1)
        return dist.device_mesh.DeviceMesh.from_group(members, self.device.type, mesh=ranks, mesh_dim_names=("replicate", "shard"))

    @property
    def handle(self) -> Dict[str, Any]:
        """What the other processes need to connect to this one."""
        return {"handles": [dist._get_reconfigure_handle(group=g.group) for g in self._groups], "listeners": self._listeners}

    def enter(self, connections: Connections, store: Store, uuid: int, rank: int, processes: Sequence[Dict[str, Any]], timeout: float) -> None:
        """Replaces the members of the groups by the processes with these handles, in this order; this
        one has the given rank.

        store is below a prefix that is this view's alone, in which uuid is used once. The operations
        of the view before have ended: see drain.
        """
        n, all_ranks, limit = self._processes, range(len(processes)), timedelta(seconds=timeout)
        worker, number = divmod(rank, n)
        members = ("all", all_ranks), (f"replicate {number}", all_ranks[number::n]), (f"shard {worker}", all_ranks[worker * n : (worker + 1) * n])
        for i, (g, (name, ranks)) in enumerate(zip(self._groups, members)):
            g.enter(store.below(name + "/"), uuid, ranks, [p["handles"] for p in processes], i, limit)
        self._last.release()
        self._last = connections
        connections.hold([a for p in processes for a in p["listeners"]])
        c10d._world.group_count = uuid << 16  # the names of further groups: the same on all processes, and new in each view

    def _began(self, op: Any) -> None:
        self._under_way()
        with self._lock:
            self._works.append(op.work)

    def _under_way(self) -> bool:
        """Lets go of the operations that have ended, and of their tensors, and reports whether any is left."""
        with self._lock:
            while self._works and self._works[0].is_completed():
                self._works.popleft()
            return bool(self._works)

    def drain(self) -> None:
        """Waits until no operation of a view that was cut is under way: one that ended later might
        write into tensors of the next view.

        One that is left after a while is a send that gloo has forgotten, and writes nothing.
        """
        if dist.get_backend() != "gloo":
            for g in self._groups:
                g.group.abort()
        began = time.monotonic()
        until = began + _DRAIN
        while self._under_way() and time.monotonic() < until:
            if until == began + _DRAIN and self._last.closed():
                until = time.monotonic() + _FORGOTTEN
            time.sleep(0.001)
        with self._lock:
            self._works.clear()

    def linger(self) -> None:
        """Keeps the connections open, after the others have been told that this process has left,
        until they have cut theirs: see Connections.
        """
        if self._last.held:
            time.sleep(_LINGER)

    def close(self) -> None:
        self._last.release()
        if dist.is_initialized():
            dist.destroy_process_group()
