"""A rank of Python, which does what it reads: one expression of Python a line, in JSON, and one answer for each.

    peer.py standin|vllm

"standin" is the class below, made after what is documented of vLLM's StatelessProcessGroup; "vllm" is vLLM's own.
An expression may use create(host, port, rank, size, expiry), nccl(bytes), the groups in g, and some modules.
"""

import ctypes
import functools
import importlib
import json
import pickle
import sys
import time
import types
import uuid
from collections import deque
from datetime import timedelta

import numpy as np
import torch
from torch.distributed import PrefixStore, TCPStore

WRAPPER = "vllm.distributed.device_communicators.pynccl_wrapper"


class StandIn:
    """The keys, counts and order of operations of vLLM's group."""

    def __init__(self, rank, size, store, expiry=3600):
        self.rank, self.world_size, self.store, self.expiry = rank, size, store, expiry
        self.sent, self.received, self.consumed = {}, {}, {}
        self.said, self.mine = 0, deque()
        for r in range(size):
            self.sent[r] = self.received[r] = self.consumed[r] = 0

    def _put(self, key, value):
        while self.mine and time.time() - self.mine[0][1] > self.expiry:
            self.store.delete_key(self.mine.popleft()[0])
        self.store.set(key, pickle.dumps(value))

    def _post(self, kind, dst, value):
        key = f"{kind}/{dst}/{self.sent[dst]}"
        self._put(key, value)
        self.sent[dst] += 1
        self.mine.append((key, time.time()))

    def _fetch(self, kind, src):
        value = pickle.loads(self.store.get(f"{kind}/{self.rank}/{self.received[src]}"))
        self.received[src] += 1
        return value

    def _cast(self, kind, value, src):
        if src != self.rank:
            value = pickle.loads(self.store.get(f"{kind}/{src}/{self.consumed[src]}"))
            self.consumed[src] += 1
            return value
        key = f"{kind}/{src}/{self.said}"
        self._put(key, value)
        self.said += 1
        self.mine.append((key, time.time()))
        return value

    def send_obj(self, obj, dst):
        self._post("send_to", dst, obj)

    def recv_obj(self, src):
        return self._fetch("send_to", src)

    def broadcast_obj(self, obj, src):
        return self._cast("broadcast_from", obj, src)

    def all_gather_obj(self, obj):
        return [self.broadcast_obj(obj if r == self.rank else None, r) for r in range(self.world_size)]

    def send(self, tensor, dst):
        self._post("send_tensor", dst, tensor)

    def recv(self, tensor, src):
        return tensor.copy_(self._fetch("send_tensor", src))

    def broadcast(self, tensor, src):
        return self._cast("broadcast_tensor", tensor, src)

    def all_reduce(self, tensor, op=torch.distributed.ReduceOp.SUM):
        ops = torch.distributed.ReduceOp
        steps = {
            ops.SUM: torch.add,
            ops.PRODUCT: torch.mul,
            ops.MAX: torch.maximum,
            ops.MIN: torch.minimum,
        }
        first, *rest = self.all_gather_obj(tensor)
        for other in rest:
            first = steps[op](first, other)
        return first

    def barrier(self, timeout=30.0):
        name = self.broadcast_obj(f"barrier_{uuid.uuid4()}" if self.rank == 0 else None, 0)
        self._meet(f"arrival_{name}_", timeout, "Barrier timed out")
        self.store.set(f"departure_{name}_{self.rank}", b"1")
        if self.rank == 0:
            self._all(f"departure_{name}_", timeout, "Barrier departure timed out")
            for r in range(self.world_size):
                self.store.delete_key(f"arrival_{name}_{r}")
                self.store.delete_key(f"departure_{name}_{r}")

    def _meet(self, prefix, timeout, complaint):
        self.store.set(f"{prefix}{self.rank}", b"1")
        self._all(prefix, timeout, complaint)

    def _all(self, prefix, timeout, complaint):
        began, missing = time.time(), set(range(self.world_size))
        while missing:
            if time.time() - began > timeout:
                raise RuntimeError(f"{complaint} after {timeout:.2f} seconds")
            for r in sorted(missing):
                try:
                    self.store.get(f"{prefix}{r}")
                    missing.discard(r)
                except Exception:  # it blocks for the store's timeout, and then raises what its torch has for that
                    pass


def stand_in():
    """Gives create, and vLLM's name for the structure of NCCL."""
    parts = WRAPPER.split(".")
    for i in range(len(parts)):
        sys.modules.setdefault(".".join(parts[: i + 1]), types.ModuleType(parts[i]))

    class ncclUniqueId(ctypes.Structure):
        _fields_ = [("internal", ctypes.c_byte * 128)]

    ncclUniqueId.__module__, ncclUniqueId.__qualname__ = WRAPPER, "ncclUniqueId"
    sys.modules[WRAPPER].ncclUniqueId = ncclUniqueId

    def create(host, port, rank, world_size, data_expiration_seconds=3600, store_timeout=300):
        wait = timedelta(seconds=store_timeout)
        store = TCPStore(host, port, world_size, rank == 0, timeout=wait, use_libuv=False)
        return StandIn(rank, world_size, store, data_expiration_seconds)

    return create


def real():
    from vllm.distributed.utils import StatelessProcessGroup

    return StatelessProcessGroup.create


def beside(group, prefix):
    """Gives another group with the same ranks, in the same store."""
    return type(group)(group.rank, group.world_size, PrefixStore(prefix, group.store))


def nccl(value):
    return importlib.import_module(WRAPPER).ncclUniqueId.from_buffer_copy(value)


def main():
    create = stand_in() if sys.argv[1] == "standin" else real()
    names = {"create": create, "nccl": nccl, "beside": beside, "g": {}, "torch": torch, "np": np}
    names |= {"functools": functools, "pickle": pickle, "time": time}
    print(json.dumps(torch.__version__), flush=True)
    for line in sys.stdin:
        try:
            answer = {"value": repr(eval(json.loads(line), names))}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(answer), flush=True)


main()
