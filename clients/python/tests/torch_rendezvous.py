"""The rendezvous backend of torchrun without torchrun: errors, and the state in the store.

    torch_rendezvous.py HOST:PORT SECRET_HOST:PORT

The first is a muster store, the second one that requires a secret.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
import time
from datetime import timedelta
from typing import Any, Type

from torch.distributed.elastic.rendezvous import api, dynamic_rendezvous

import muster_pg
from muster_pg import torchrun

OPEN, SECRET = sys.argv[1:]
os.environ["MUSTER_BINARY"] = sys.executable  # is there; only a generation starts it


def params(endpoint: str, job: str = "job", **more: Any) -> api.RendezvousParameters:
    return api.RendezvousParameters(backend="muster", endpoint=endpoint, run_id=job, min_nodes=1, max_nodes=1, local_addr="127.0.0.1", **more)


def fails(kind: Type[Exception], *texts: str, endpoint: str = OPEN, **more: Any) -> None:
    began = time.monotonic()
    try:
        torchrun.handler()(params(endpoint, **more))
    except kind as e:
        assert all(text in str(e) for text in texts), e
    else:
        raise AssertionError(f"no {kind.__name__}")
    assert time.monotonic() - began < 30, "it waits for nothing"


def errors() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = f"127.0.0.1:{s.getsockname()[1]}"
    fails(api.RendezvousConnectionError, "--rdzv-endpoint", free, "refused", endpoint=free)
    fails(api.RendezvousConnectionError, "requires a secret", endpoint=SECRET)
    fails(api.RendezvousConnectionError, "--rdzv-endpoint", "port", endpoint="localhost")
    fails(api.RendezvousConnectionError, "muster://host:port", endpoint="http://localhost:1")
    fails(api.RendezvousError, "set MUSTER_STORE", endpoint="")
    fails(ValueError, "read_timeout", read_timeout="-1")
    for named, text in (("/no/such/muster", "/no/such/muster is no command"), ("", 'pip install "muster-pg[server]"')):
        os.environ["MUSTER_BINARY"] = named
        path, os.environ["PATH"] = os.environ["PATH"], ""
        fails(api.RendezvousError, "muster_pg.torchrun: ", text)
        os.environ.update(PATH=path, MUSTER_BINARY=sys.executable)
    # a relay that does not start
    handler = torchrun.handler()(params(OPEN, "no relay"))
    try:
        handler.next_rendezvous()
    except api.RendezvousConnectionError as e:
        assert "relay: " in str(e) and "has ended with code" in str(e), e
    else:
        raise AssertionError("no error")
    assert handler.shutdown()


def state() -> None:
    with muster_pg.Store.connect(OPEN) as store:
        below = store.below("torchrun/state/")
        a, b = (torchrun.Backend(below, "state") for _ in range(2))
        a.expiry = b.expiry = timedelta(seconds=5)
        b.outage = timedelta(seconds=30)
        assert a.get_state() is None
        first = dynamic_rendezvous._RendezvousState()
        node = dynamic_rendezvous._NodeDesc("host", 7, 1)
        first.participants[node] = 0
        first.last_heartbeats[node] = dynamic_rendezvous.datetime.now(dynamic_rendezvous.timezone.utc)
        first.wait_list.add(node)
        first.deadline = first.last_heartbeats[node]
        set_by_a = a.set_state(pickle.dumps(first))
        assert set_by_a is not None and set_by_a[2]
        got = b.get_state()
        assert got is not None and vars(pickle.loads(got[0])) == vars(first) and b.run == a.run
        refused = b.set_state(pickle.dumps(dynamic_rendezvous._RendezvousState()))
        assert refused is not None and not refused[2] and refused[1] == set_by_a[1]

        # The store was away for a minute: b is not held to have failed. An agent that begins sees that.
        minute = timedelta(minutes=1)
        other = dynamic_rendezvous._NodeDesc("other", 7, 1)
        first.last_heartbeats = {node: first.last_heartbeats[node] - minute, other: first.last_heartbeats[node] - 2 * minute}
        old = b.set_state(pickle.dumps(first), got[1])
        assert old is not None and old[2]
        seen, fresh = b.get_state(), torchrun.Backend(below, "state")
        raw = fresh.get_state()
        assert seen is not None and raw is not None and vars(pickle.loads(raw[0])) == vars(first)
        beats = pickle.loads(seen[0]).last_heartbeats
        assert beats[node] - beats[other] == minute and torchrun._age(beats[node]) < timedelta(seconds=30)

        # A closed job has ended for its agents, and for others until its last heartbeat is old.
        first.closed = True
        closed = b.set_state(pickle.dumps(first), old[1])
        assert closed is not None and closed[2]
        entry = next(iter(below.list("state")))
        assert entry.ttl is not None and 0 < entry.ttl <= 600
        late = torchrun.Backend(below, "state")
        late.expiry = timedelta(hours=1)
        seen = late.get_state()
        assert seen is not None and pickle.loads(seen[0]).closed
        late.expiry = timedelta(0)
        seen = late.get_state()
        assert seen is not None and not pickle.loads(seen[0]).closed and late.run != a.run
        again = late.set_state(seen[0], seen[1])
        assert again is not None and again[2]
        seen = b.get_state()
        assert seen is not None and b.run == late.run

        # An agent whose key is missing has failed, not one that sets it again, nor one that never had one.
        state = dynamic_rendezvous._RendezvousState()
        now = dynamic_rendezvous.datetime.now(dynamic_rendezvous.timezone.utc)
        state.last_heartbeats = {node: now, other: now}
        below.delete("state")
        assert a.set_state(pickle.dumps(state)) is not None

        def beats_of(b: torchrun.Backend) -> Any:
            seen = b.get_state()
            assert seen is not None
            return pickle.loads(seen[0]).last_heartbeats

        with muster_pg.Store.connect(OPEN) as agent:
            torchrun._Presence(agent.below("torchrun/state/"), torchrun._name(node), 5)
            assert beats_of(a) == {node: now, other: now}
            assert a.get_state() is not None
        began = time.monotonic()
        while beats_of(a)[node] == now:
            assert time.monotonic() - began < 30
        assert time.monotonic() - began >= torchrun._MISSING and beats_of(a)[other] == now
        key = torchrun._AGENTS + torchrun._name(node)
        below.set(key, b"")
        assert beats_of(a) == {node: now, other: now}

        # A wait ends at a change of the state or of the agents, and when an agent counts as failed.
        def waits(poll: float = 60) -> float:
            torchrun._POLL, began = poll, time.monotonic()
            a.wait()
            return time.monotonic() - began

        assert waits() < 30, "the first one returns at once: nothing was read before"
        below.set("run.1/key of a worker", b"")
        assert waits(0.3) >= 0.3
        assert a.set_state(pickle.dumps(state), below.get("state")) is not None
        assert waits() < 30
        below.delete(key)
        assert waits() < 30 and beats_of(a)[node] == now, "it is missing, and may set its key again"
        waits(60)
        while beats_of(a)[node] == now:
            assert waits() < 30
        assert waits(0.3) >= 0.3, "no agent is missing that has not failed"
        torchrun._POLL = 1

        # What is no state runs no code.
        class Evil:
            def __reduce__(self) -> Any:
                return os.abort, ()

        good = json.loads(below.get("state"))
        infinite = json.dumps({**good, "participants": [[["host", 7, 1], float("inf")]]})
        wrong = [json.dumps({**good, **change}) for change in ({"run": 7}, {"wait_list": [[1, 2, 3]]}, {"round": "1"}, {"deadline": 1})]
        for bad in (pickle.dumps(Evil()), *(text.encode() for text in ("[]", "{}", "[" * 100_000, infinite, *wrong))):
            below.set("state", bad)
            try:
                b.get_state()
            except api.RendezvousStateError as e:
                assert "use another --rdzv-id" in str(e)
            else:
                raise AssertionError(f"{bad!r} is a state")


errors()
print("ok errors")
state()
print("ok state")
