"""What a rank says of itself when it joins, and what all ranks know of each other by it."""

from __future__ import annotations

import os
import socket
import struct
import sys
from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from ._errors import ProtocolError, clip, make
from ._wire import Reply, text

_HEAD = struct.Struct("<QIBB")  # node, pid, whether it hosts the store, length of the host's name; then that, and an address
_MAX_HOST, _MAX_ADDR = 64, 255
_FORMED = 4  # numbers of the answer to a join before the ranks of the node


@dataclass(frozen=True)
class Member:
    """One rank, as all ranks know it."""

    rank: int
    local_rank: int  # among the ranks of its node, by rank
    node: int  # the same for ranks on one node; numbered as they come, by rank
    pid: int
    host: str  # name of its node
    addr: str  # where it hosts the group's store; "" if it does not


def host_name(host: str) -> str:
    """Returns what errors call this node: the name it was given, or its own."""
    return clip(host or socket.gethostname(), _MAX_HOST)


def encode(host: str) -> bytes:
    """Returns what this process says of itself. It never hosts the store."""
    name = text(host_name(host))
    return _HEAD.pack(fnv(text(host or _this_node())), os.getpid() & 0xFFFFFFFF, 0, len(name)) + name


def parse(members: Sequence[bytes]) -> List[Member]:
    """Returns the members of a group, by rank."""
    nodes: Dict[int, int] = {}
    local: Dict[int, int] = {}
    out = []
    for rank, b in enumerate(members):
        if len(b) < _HEAD.size:
            raise _malformed(rank)
        node, pid, hosts, n = _HEAD.unpack_from(b)
        host, addr = b[_HEAD.size : _HEAD.size + n], b[_HEAD.size + n :]
        if hosts > 1 or n > _MAX_HOST or len(host) < n or len(addr) > _MAX_ADDR:
            raise _malformed(rank)
        nodes.setdefault(node, len(nodes))
        out.append(
            Member(rank, local.get(node, 0), nodes[node], pid, _str(host), _str(addr) if hosts else ""),
        )
        local[node] = local.get(node, 0) + 1
    return out


def formed(rep: Reply, rank: int) -> Tuple[int, int, int, int, List[int]]:
    """Returns what the answer to a join says: the id, rank, size and host of the group, and the
    ranks on this rank's node.
    """
    nums = rep.nums or []
    if rep.n:  # after a shrink
        rank = rep.n - 1
    if len(nums) < _FORMED or len(nums) % 3 != _FORMED % 3 or not 0 <= rank < nums[0] < 1 << 31 or not -1 <= nums[1] < nums[0]:
        raise make(ProtocolError, "not a muster store: a group without this rank")
    size = nums[0]
    local: List[int] = []
    for first, count, step in zip(*[iter(nums[_FORMED:])] * 3):
        if not (len(local) == 0 or local[-1] < first) or first < 0 or count < 1 or step < 1 or first + (count - 1) * step >= size:
            raise make(ProtocolError, f"not a muster store: a group of {size} with a node of other ranks")
        local += range(first, first + count * step, step)
    if rank not in local:
        raise make(ProtocolError, f"not a muster store: a group of {size} without this rank")
    return nums[3] & 0xFFFFFFFFFFFFFFFF, rank, size, nums[1], local


def _malformed(rank: int) -> Exception:
    return make(ProtocolError, f"the entry of rank {rank}: malformed member: another version of muster?")


def _str(b: bytes) -> str:
    return b.decode("utf-8", "surrogateescape")


def fnv(b: bytes) -> int:
    """FNV-1a of 64 bits."""
    h = 0xCBF29CE484222325
    for c in b:
        h = (h ^ c) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def _this_node() -> str:
    """Returns a number that differs where memory cannot be shared: machines, their boots, and
    containers.
    """
    parts: List[str] = []
    if sys.platform == "linux":
        try:
            with open("/proc/sys/kernel/random/boot_id") as f:
                parts.append(f.read().strip())
        except OSError:
            pass
        for ns in ("mnt", "ipc"):
            try:
                parts.append(os.readlink(f"/proc/self/ns/{ns}"))
            except OSError:
                pass
    return " ".join(parts) or socket.gethostname()
