"""Records what a real client and a real server of PyTorch say to each other, one line for each call.

    python record.py >torch-2.15.txt

A line is the call, and the bytes in hexadecimal: '>' from the client, '<' from the server. A client's nonce, which is its
process id, is written as 01020304.
"""

import multiprocessing
import os
import socket
import struct
import sys
import threading
from datetime import timedelta

import torch
from torch.distributed import TCPStore


class Proxy:
    """Carries bytes between a client and the server, and keeps them."""

    def __init__(self, port):
        self.said, self.lock, self.port = [], threading.Lock(), port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.first = None
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(("127.0.0.1", self.port))
            with self.lock:
                watched = self.first is None
                self.first = self.first or client
            for arrow, a, b in ((">", client, server), ("<", server, client)):
                threading.Thread(target=self.carry, args=(arrow, a, b, watched), daemon=True).start()

    def carry(self, arrow, a, b, watched):
        while data := a.recv(1 << 16):
            with self.lock:
                if watched and self.said and self.said[-1][0] == arrow:
                    self.said[-1][1] += data
                elif watched:
                    self.said.append([arrow, bytearray(data)])
            b.sendall(data)

    def take(self):
        """What was said since the last call, when nothing more comes."""
        seen = -1
        while True:
            with self.lock:
                size = sum(len(d) for _, d in self.said)
                if size == seen:
                    said, self.said = self.said, []
                    return said
            seen = size
            threading.Event().wait(0.4)


def serve(port, pipe):
    """A process of its own: some calls of PyTorch keep Python's lock."""
    proxy = Proxy(port)
    pipe.send(proxy.address[1])
    while pipe.recv():
        pipe.send(proxy.take())


def main():
    server = TCPStore("127.0.0.1", 0, 2, True, timedelta(seconds=5), wait_for_workers=False)
    pipe, other = multiprocessing.Pipe()
    multiprocessing.get_context("fork").Process(target=serve, args=(server.port, other), daemon=True).start()
    port = pipe.recv()
    print(f"# torch {torch.__version__}: record.py made this")

    def line(name):
        pipe.send(True)
        said = pipe.recv()
        text = " ".join(arrow + data.hex() for arrow, data in said)
        nonce = struct.pack("<I", os.getpid()).hex()
        if name == "connect":
            text = text.replace("0d" + nonce, "0d01020304").replace("<" + nonce, "<01020304")
        print(name, text)

    store = TCPStore("127.0.0.1", port, 2, False, timedelta(seconds=5), wait_for_workers=False)
    line("connect")

    def call(name, f):
        try:
            f()
        except Exception as e:  # a timeout
            print(f"{name}: {type(e).__name__}", file=sys.stderr)
        line(name)

    call("set", lambda: store.set("key", "value"))
    call("set_empty", lambda: store.set("empty", ""))
    call("get", lambda: store.get("key"))
    call("add", lambda: store.add("counter", 5))
    call("add_negative", lambda: store.add("counter", -7))
    call("compare_set_absent", lambda: store.compare_set("new", "", "first"))
    call("compare_set_other", lambda: store.compare_set("new", "wrong", "second"))
    call("wait", lambda: store.wait(["key", "counter"], timedelta(seconds=5)))
    call("num_keys", lambda: store.num_keys())
    call("delete", lambda: store.delete_key("empty"))
    call("delete_absent", lambda: store.delete_key("empty"))
    call("set_long", lambda: store.set("long", "v" * 3000))
    call("check", lambda: store.check(["key", "counter"]))
    call("check_absent", lambda: store.check(["nothing"]))
    call("append", lambda: store.append("key", "+more"))
    call("multi_set", lambda: store.multi_set(["a", "b"], ["1", "22"]))
    call("multi_get", lambda: store.multi_get(["a", "b"]))
    call("wait_cancelled", lambda: store.wait(["nothing"], timedelta(milliseconds=20)))
    call("queue_push", lambda: store.queue_push("queue", "item"))
    call("queue_len", lambda: store.queue_len("queue"))
    call("queue_pop", lambda: store.queue_pop("queue"))
    call("queue_pop_empty", lambda: store.queue_pop("queue", block=False))
    call("list_keys", lambda: store.list_keys())
    call("barrier", lambda: store.barrier("all", 1, timedelta(seconds=5)))


main()
