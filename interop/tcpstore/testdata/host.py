"""Hosts TCPStores, and runs commands on them: one Python expression a line, with new and stores in scope; it prints what it gives."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

stores = {}


def new(world=None, port=0, timeout=60, **more):
    """Hosts a store, and gives its port."""
    s = dist.TCPStore("127.0.0.1", port, world, is_master=True, timeout=timedelta(seconds=timeout), wait_for_workers=False, **more)
    stores[s.port] = s
    return s.port


def drop(port):
    """Ends it."""
    del stores[port]


print("torch", torch.__version__, flush=True)
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except Exception as e:  # noqa: BLE001
        print("error", repr(str(e)), flush=True)
