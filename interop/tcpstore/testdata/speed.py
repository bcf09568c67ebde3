"""Times each operation of a TCPStore client against several servers, by turns: python speed.py IDLE NAME=PORT NAME=PORT ...

IDLE is how many more connections each server has meanwhile, which do nothing. It prints microseconds for a call, the best of 25 times 200.
"""

import socket
import sys
import time
from datetime import timedelta

import torch.distributed as dist

IDLE = int(sys.argv[1])
SERVERS = {name: int(port) for name, port in (arg.split("=") for arg in sys.argv[2:])}
VALUE = "x" * 100

OPERATIONS = {
    "set, and check": lambda s: (s.set("k", VALUE), s.check(["k"])),
    "get": lambda s: s.get("k"),
    "get of 64 KiB": lambda s: s.get("k64"),
    "get of 256 KiB": lambda s: s.get("k256"),
    "get of 1 MiB": lambda s: s.get("k1024"),
    "add": lambda s: s.add("n", 1),
    "check": lambda s: s.check(["k"]),
    "wait": lambda s: s.wait(["k", "k1"]),
    "compare_set": lambda s: s.compare_set("k", VALUE, VALUE),
    "multi_get of 5": lambda s: s.multi_get(["k"] * 5),
    "multi_set of 2, and check": lambda s: (s.multi_set(["k", "k1"], [VALUE, VALUE]), s.check(["k"])),
    "append, and check": lambda s: (s.append("a", ""), s.check(["k"])),
    "queue_push, queue_pop": lambda s: (s.queue_push("q", VALUE), s.queue_pop("q")),
    "queue_len": lambda s: s.queue_len("q"),
    "delete_key": lambda s: s.delete_key("none"),
    "num_keys": lambda s: s.num_keys(),
    "list_keys": lambda s: s.list_keys(),
    "barrier of 1": lambda s: s.barrier("b", 1),
}


def idle(port):
    c = socket.create_connection(("127.0.0.1", port))
    c.sendall(b"\x00\xce\xf7\x85\x3c")  # no ping, whose answer can take seconds: PyTorch's server looks up host names first
    return c


def timed(f, s, n=200):
    began = time.perf_counter()
    for _ in range(n):
        f(s)
    return (time.perf_counter() - began) / n * 1e6


def main():
    stores = {name: dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60)) for name, port in SERVERS.items()}
    held = []
    for _ in range(IDLE):
        held += [idle(port) for port in SERVERS.values()]
        time.sleep(0.002)  # the servers accept meanwhile: a full backlog costs the next connection a second
    for s in stores.values():
        s.set("k", VALUE)
        s.set("k1", VALUE)
        s.set("a", "")
        for kib in (64, 256, 1024):
            s.set(f"k{kib}", "x" * (kib << 10))
    for what, f in OPERATIONS.items():
        best = {name: 1e9 for name in stores}
        for _ in range(25):
            for name, s in stores.items():
                best[name] = min(best[name], timed(f, s))
        print(f"{what:26}", "  ".join(f"{name} {us:6.1f}" for name, us in best.items()), flush=True)
    del held


main()
