"""Cases that a TCPStore client and its server must pass, in one process: python cases.py HOST PORT

It prints a line for each: "ok NAME", "skip NAME: why" or "not ok NAME: why". What the server holds is shared, so each case has keys of its own.
"""

import sys
import threading
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

HOST, PORT = sys.argv[1], int(sys.argv[2])


def client(timeout=60, **more):
    return dist.TCPStore(HOST, PORT, is_master=False, timeout=timedelta(seconds=timeout), wait_for_workers=False, **more)


class Skip(Exception):
    pass


def need(*names):
    for name in names:
        if not hasattr(dist.TCPStore, name):
            raise Skip(f"torch {torch.__version__} has no {name}")


def later(f):
    """Runs f in a thread; the function that is returned waits for its result."""
    out = []

    def run():
        try:
            out.append((f(), None))
        except BaseException as e:  # noqa: BLE001
            out.append((None, e))

    t = threading.Thread(target=run)
    t.start()

    def result():
        t.join()
        value, error = out[0]
        if error:
            raise error
        return value

    return result


def raises(f, *words):
    try:
        value = f()
    except Exception as e:  # torch has several
        for w in words:
            assert w in str(e), f"{w!r} is not in {e!r}"
        return
    raise AssertionError(f"no error, but {value!r}")


def set_get_check():
    s = client()
    s.set("sgc/key", "value")
    assert s.get("sgc/key") == b"value"
    s.set("sgc/key", "other")
    assert s.get("sgc/key") == b"other"
    s.set("sgc/empty", "")
    assert s.get("sgc/empty") == b""
    assert s.add("sgc/n", 5) == 5
    assert s.add("sgc/n", -7) == -2
    assert s.get("sgc/n") == b"-2"
    if hasattr(s, "check"):
        assert s.check(["sgc/key", "sgc/empty"])
        assert not s.check(["sgc/key", "sgc/missing"])


def compare_set():
    s = client()
    assert s.compare_set("cs/key", "", "first") == b"first"
    assert s.compare_set("cs/key", "first", "second") == b"second"
    assert s.compare_set("cs/key", "first", "third") == b"second"
    assert s.compare_set("cs/missing", "something", "new") == b"something"
    assert s.get("cs/key") == b"second"


def wait_then_success():
    a, b = client(), client()
    done = later(lambda: a.wait(["w/1", "w/2", "w/1"]))
    got = later(lambda: client().get("w/2"))
    b.set("w/1", "1")
    b.set("w/2", "2")
    done()
    assert got() == b"2"
    a.wait(["w/1"], timedelta(seconds=5))


def append():
    need("append")
    s = client()
    s.append("ap/new", "a")
    s.append("ap/new", "bc")
    s.set("ap/old", "x")
    s.append("ap/old", "y")
    assert s.get("ap/new") == b"abc"
    assert s.get("ap/old") == b"xy"


def multi():
    need("multi_set", "multi_get")
    s = client()
    s.multi_set(["m/1", "m/2", "m/3"], ["1", "", "333"])
    assert s.multi_get(["m/3", "m/1", "m/2"]) == [b"333", b"1", b""]


def clone():
    need("clone")
    s = client()
    s.set("c/key", "value")
    assert s.clone().get("c/key") == b"value"
    p = dist.PrefixStore("c", s)
    assert p.clone().get("key") == b"value"


def num_keys_and_delete():
    s = client(timeout=30)
    before = s.num_keys()
    s.set("nk/1", "1")
    s.set("nk/2", "2")
    assert s.num_keys() == before + 2
    assert s.delete_key("nk/1")
    assert not s.delete_key("nk/1")
    assert s.num_keys() == before + 1
    t = client(timeout=5)
    raises(lambda: t.get("nk/1"))


def list_keys():
    need("list_keys")
    s = client()
    s.set("lk/1", "1")
    keys = s.list_keys()
    assert "lk/1" in keys
    assert all("\0" not in k for k in keys), keys


def queues():
    need("queue_push", "queue_pop", "queue_len")
    a = client()
    b = a.clone()
    for v in "123":
        a.queue_push("q", v)
    assert a.queue_len("q") == 3
    assert [b.queue_pop("q") for _ in range(3)] == [b"1", b"2", b"3"]
    assert b.queue_len("q") == 0
    raises(lambda: b.queue_pop("q", block=False), "empty")
    popped = later(lambda: b.queue_pop("q"))
    a.queue_push("q", "4")
    assert popped() == b"4"
    c = client(timeout=1)
    raises(lambda: c.queue_pop("q"))
    a.queue_push("q", "5")
    assert c.queue_pop("q") == b"5"


def barrier():
    need("barrier")
    n = 4
    clients = [client() for _ in range(n)]
    came = []
    waits = [later(lambda c=c: (c.barrier("b", n), came.append(1))) for c in clients[1:]]
    time.sleep(0.2)
    assert not came
    clients[0].barrier("b", n)
    for w in waits:
        w()
    c = client()
    raises(lambda: c.barrier("b2", 2, timedelta(seconds=1)))
    c.set("b/works", "1")
    assert c.get("b/works") == b"1"


def timeout_leaves_the_client_usable():
    s = client(timeout=1)
    for _ in range(2):
        raises(lambda: s.get("to/never"))
        raises(lambda: s.wait(["to/never"], timedelta(milliseconds=100)))
    s.set("to/key", "1")
    assert s.get("to/key") == b"1"


def prefixes():
    s = client()
    p = dist.PrefixStore("p", s)
    pp = dist.PrefixStore("q", p)
    p.set("key", "1")
    pp.set("key", "2")
    assert s.get("p/key") == b"1"
    assert s.get("p/q/key") == b"2"
    assert pp.get("key") == b"2"


def threads():
    n, rounds = 16, 1000

    def work(i):
        s = client()
        for r in range(rounds):
            s.add("t/shared", 1)
            s.set(f"t/{i}", str(r))
            assert s.get(f"t/{i}") == str(r).encode()

    for result in [later(lambda i=i: work(i)) for i in range(n)]:
        result()
    assert client().add("t/shared", 0) == n * rounds


def many_wait_for_all():
    n = 128
    keys = [f"all/{i}" for i in range(n)]

    def work(i):
        s = client()
        s.set(keys[i], str(i))
        s.wait(keys)

    for result in [later(lambda i=i: work(i)) for i in range(n)]:
        result()


def watch_key():
    need("watch_key")
    s = client()
    seen = []
    s.watch_key("wk", lambda old, new: seen.append((old, new)))
    s.set("wk", "1")
    s.set("wk", "2")
    s.delete_key("wk")
    for _ in range(300):
        if len(seen) == 3:
            break
        time.sleep(0.01)
    assert seen == [(None, "1"), ("1", "2"), ("2", None)], seen


def world():
    """Clients that are counted."""
    for i in range(3):
        dist.TCPStore(HOST, PORT, world_size=3, is_master=False, timeout=timedelta(seconds=30))


CASES = [
    set_get_check, compare_set, wait_then_success, append, multi, clone, num_keys_and_delete, list_keys, queues, barrier,
    timeout_leaves_the_client_usable, prefixes, threads, many_wait_for_all, watch_key, world,
]


def main():
    print("torch", torch.__version__, flush=True)
    for case in CASES:
        try:
            case()
            print("ok", case.__name__, flush=True)
        except Skip as e:
            print(f"skip {case.__name__}: {e}", flush=True)
        except BaseException:  # noqa: BLE001
            print(f"not ok {case.__name__}: {traceback.format_exc()!r}", flush=True)


main()
