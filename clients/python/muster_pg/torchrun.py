"""The rendezvous backend "muster" of torchrun:

    torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=muster \\
      --rdzv-endpoint=muster://store:7070 --rdzv-id=job-7 train.py

The state machine is that of torch's DynamicRendezvousHandler, and its state is one key of a muster
store. Each agent runs a relay on loopback, "muster relay", for each generation of workers. It is
the TCPStore of the agent and of its workers (MASTER_ADDR, MASTER_PORT), and serves the keys of that
generation alone. It reconnects to the store, so that torch's clients do not notice that the store
is restarted or taken over.

Below the endpoint's prefix, a job has the keys

    torchrun/JOB/state      the state of the rendezvous, JSON
    torchrun/JOB/state/…    a key of each agent, which the store deletes when its process ends
    torchrun/JOB/RUN.N/…    what the workers of generation N wrote; RUN differs for each run of JOB
    torchrun/JOB/RUN.N      the number of agents that have left generation N
"""

from __future__ import annotations

import json
import logging
import math
import os
import pickle
import threading
import time
import urllib.parse
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
)

from . import _env
from ._errors import Closed, Conflict, Error, NotFound, Timeout, Unknown, quote
from ._lease import Lease
from ._server import Relay, find
from ._store import Store

_LOOPBACK = "127.0.0.1"
_STATE = "state"
_AGENTS = _STATE + "/"
_POLL = 1.0  # seconds for which an agent waits for a change, until it looks at deadlines and heartbeats, as torch does
_MISSING = 0.5  # seconds that an agent's key is missing until the agent has failed: it sets it again when its session was lost
_CLOSED_TTL = 600.0  # seconds that the state of a closed job remains: its late agents find it closed
_READ_TIMEOUT = 60  # seconds, as that of torch's own backend
_BATCH = 1000  # keys that are deleted at once
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)

_log = logging.getLogger("muster_pg")


def handler() -> Callable[[RendezvousParameters], "Handler"]:
    """Is the entry point of the group torchrun.handlers."""
    return create_handler


def create_handler(params: RendezvousParameters) -> "Handler":
    """Connects to the store of params. An error raises at once: nothing is waited for.

    The options in params (--rdzv-conf) are those of torch's c10d backend: join_timeout,
    last_call_timeout, close_timeout, keep_alive_interval, keep_alive_max_attempt, and read_timeout,
    the seconds that a call waits for the store.
    """
    url = params.endpoint or os.environ.get("MUSTER_STORE", "")
    if not url:
        raise RendezvousError("muster_pg.torchrun: which store? Give --rdzv-endpoint=muster://host:port, or set MUSTER_STORE")
    if "://" not in url:
        url = "muster://" + url
    timeout = params.get_as_int("read_timeout", _READ_TIMEOUT) or 0
    if timeout <= 0:
        raise ValueError("muster_pg.torchrun: read_timeout must be positive")
    try:
        find(None)
    except Error as e:
        raise RendezvousError(f"muster_pg.torchrun: {e}") from None
    try:
        tls, secret = _env.credentials(os.environ)
        store = Store.connect(url, tls=tls, secret=secret, timeout=timeout)
    except Error as e:
        raise RendezvousConnectionError(f"muster_pg.torchrun: rendezvous {quote(params.run_id)}: no store for --rdzv-endpoint: {e}") from e
    prefix = f"torchrun/{urllib.parse.quote(params.run_id, safe='')}/"
    backend = Backend(store.below(prefix), params.run_id)
    try:
        made = dynamic.create_handler(None, backend, params)  # parses the options
        os.environ.setdefault("MUSTER_STORE", url)  # for the workers: groups of muster_pg and of Go meet there
        return Handler(made, backend, _Relays(url, store._prefix + prefix, timeout), store)
    except BaseException:
        store.close()
        raise


class Backend(dynamic.RendezvousBackend):  # type: ignore[misc]
    """The state of a rendezvous as a key of a store.

    torch pickles the state, and would run code that another host has sent. So the key has JSON, and
    what torch gets is a pickle that this process has made of it.
    """

    def __init__(self, store: Store, job: str) -> None:
        self.store, self._job = store, job
        self.run = ""  # a random name for the time from the first agent of a job to its end
        self.expiry = timedelta(0)  # a node without a heartbeat for so long has failed
        self.outage = timedelta.max  # the store was away if no node has sent a heartbeat for so long
        self._joined = False
        self._agents: Dict[str, float] = {}  # agents whose keys were seen, and when they were first missing; 0 while they are there
        self._nodes = 0  # how many there are
        self._due = math.inf  # when the next of them counts as failed
        self._rev = 0  # the revision of the store before the last read that followed wait

    @property
    def name(self) -> str:
        return "muster"

    def get_state(self) -> Optional[Tuple[bytes, bytes]]:
        try:
            value = self._call(lambda: self.store.get(_STATE))
        except NotFound:
            return None
        return self._seen(value), value

    def set_state(self, state: bytes, token: Optional[bytes] = None) -> Optional[Tuple[bytes, bytes, bool]]:
        new = pickle.loads(state)  # noqa: S301  torch pickled it in this process
        if token is None:
            self.run = uuid.uuid4().hex[:8]
        value = json.dumps({"run": self.run, **_encode(new)}).encode()

        def swap() -> Tuple[Optional[bytes], bool]:
            try:
                self.store.swap(_STATE, token, value, ttl=_CLOSED_TTL if new.closed else None)
            except Conflict as e:
                return e.value, False
            except Unknown:  # it may have taken effect
                found = self.store.get(_STATE)
                return found, found == value
            return value, True

        try:
            now, mine = self._call(swap)
        except NotFound:
            now, mine = None, False
        if mine:
            self._joined = True
            return state, value, True
        return None if now is None else (self._seen(now), now, False)

    def _seen(self, value: bytes) -> bytes:
        """Returns the state that value encodes, for torch.

        A job that is closed and has no agent left is over: an agent that begins sees a new job. If
        the store was away for several heartbeats, an agent of the job sees their ages relative to
        the last one, so that no node has failed for that.
        """
        try:
            fields = json.loads(value)
            run, state = fields["run"], _decode(fields)
            if not isinstance(run, str):
                raise TypeError("run is no text")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as e:
            raise RendezvousStateError(
                f"muster_pg.torchrun: rendezvous {quote(self._job)}: the key {quote(self.store._prefix + _STATE)} has no state of a rendezvous "
                f"({type(e).__name__}: {e}): use another --rdzv-id, or delete the key"
            ) from None
        age = min((_age(beat) for beat in state.last_heartbeats.values()), default=self.expiry)
        if not self._joined and state.closed and age >= self.expiry:
            run, state = uuid.uuid4().hex[:8], dynamic._RendezvousState()
        elif self._joined and age > self.outage:  # no node could write, this one included
            state.last_heartbeats = {node: beat + age for node, beat in state.last_heartbeats.items()}
        for node in self._failed(state.last_heartbeats):
            state.last_heartbeats[node] = _LONG_AGO
        self.run = run
        return pickle.dumps(state)

    def _failed(self, nodes: Iterable[Any]) -> List[Any]:
        """Returns those of nodes whose processes have ended, by their keys: long before their
        heartbeats are old.

        While the store is away, and after its restart, it has the keys of all agents that come back.
        An agent whose key was never seen may be of a version that sets none.
        """
        there = self._call(lambda: {e.key[len(_AGENTS) :] for e in self.store.list(_AGENTS)})
        now, failed = time.monotonic(), []
        self._nodes, self._due = 0, math.inf
        for node in nodes:
            self._nodes += 1
            name = _name(node)
            if name in there:
                self._agents[name] = 0.0
            elif name in self._agents:
                since = self._agents[name] = self._agents[name] or now
                if now - since >= _MISSING:
                    failed.append(node)
                else:
                    self._due = min(self._due, since + _MISSING)
        return failed

    def wait(self) -> None:
        """Waits until the state or the keys of agents have changed since the last call, or an agent
        counts as failed; at most a second.

        The agents of a large job change the state as many times as there are agents, and each of
        them reads all of it. So they read less often: all together about a thousand times a second.
        """
        if self._rev:
            try:
                next(self.store.watch(_STATE, self._rev, timeout=max(min(_POLL, self._due - time.monotonic()), 0.001)))
            except Timeout:
                return
            except Error:  # the changes are forgotten; or the store is away, for which the next call waits
                pass
            time.sleep(min(self._nodes / 1000, _POLL))
        self._rev = self._call(self.store.revision)

    def _call(self, do: Callable[[], Any]) -> Any:
        try:
            return do()
        except NotFound:
            raise
        except Error as e:
            raise RendezvousConnectionError(f"muster_pg.torchrun: rendezvous {quote(self._job)}: {e}") from e

    def clear(self, keep: str) -> None:
        """Deletes the keys of the job except the state, those of agents, and those below keep."""
        try:
            keys = [e.key for e in self.store.list() if e.key != _STATE and not e.key.startswith(_AGENTS) and not (keep and e.key.startswith(keep))]
            for i in range(0, len(keys), _BATCH):
                self.store.delete(*keys[i : i + _BATCH])
        except Error as e:
            _log.warning("rendezvous %s: old keys of the job remain below %s: %s", quote(self._job), quote(self.store._prefix), e)


class _Presence:
    """The key of an agent, under a lease: the store deletes it half a second after the agent's process has
    ended, or ttl seconds after it was frozen.
    """

    def __init__(self, store: Store, name: str, ttl: float) -> None:
        self._store, self._key, self._ttl = store, _AGENTS + name, ttl
        lease = self._set()
        threading.Thread(target=self._keep, args=(lease,), name="muster presence", daemon=True).start()

    def _set(self) -> Lease:
        lease = self._store.lease(self._ttl)
        self._store.set(self._key, b"", lease=lease)
        return lease

    def _keep(self, lease: Lease) -> None:
        """Sets the key again whenever the session was lost, until the store is closed here."""
        while True:
            lease.wait()
            if isinstance(lease.error, Closed):
                return
            try:
                lease = self._set()
            except Closed:
                return
            except Error:
                time.sleep(_MISSING / 5)


class _Executor(dynamic._DistributedRendezvousOpExecutor):  # type: ignore[misc]
    """torch's executor of the rendezvous, but it waits for changes where that looks each second."""

    def __init__(self, handler: Any, backend: Backend) -> None:
        super().__init__(handler._this_node, handler._state_holder, handler.settings)
        self._backend = backend

    def run(self, state_handler: Callable[[Any, float], Any], *deadlines: Any) -> None:
        def act(ctx: Any, deadline: float) -> Any:
            while (action := state_handler(ctx, deadline)) == dynamic._Action.SYNC:
                self._backend.wait()
                self._state_holder._last_sync_time = -1  # it keeps a state for a second
                self._state_holder.sync()
                ctx = dynamic._RendezvousContext(self._node, self._state_holder.state, self._settings)
            self._state = ctx.state  # on which the executor carries out the action
            return action

        super().run(act, *deadlines)


class Handler(dynamic.DynamicRendezvousHandler):  # type: ignore[misc]
    """torch's handler, with a relay on loopback as the TCPStore of each generation."""

    def __init__(self, made: Any, backend: Backend, relays: "_Relays", store: Store) -> None:
        super().__init__(made._this_node, made.settings, backend.name, None, made._state_holder)
        self._backend, self._relays, self._muster = backend, relays, store
        self._op_executor = _Executor(self, backend)
        self._names_run = not os.environ.get("MUSTER_RUN")
        backend.expiry = self.settings.keep_alive_interval * self.settings.keep_alive_max_attempt
        backend.outage = self.settings.keep_alive_interval * 2
        _Presence(backend.store, _name(made._this_node), backend.expiry.total_seconds())

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        try:
            self._state_holder.sync()  # an agent that joins a job that runs does not wait for up to 0.3 s
            info = super().next_rendezvous()
        except RendezvousClosedError as e:
            job = quote(self.settings.run_id)
            raise RendezvousClosedError(f"muster_pg.torchrun: rendezvous {job}: the job has ended: use another --rdzv-id") from e
        except Error as e:
            raise RendezvousConnectionError(f"muster_pg.torchrun: rendezvous {quote(self.settings.run_id)}: {e}") from None
        self._relays.agents = info.world_size
        if self._names_run:  # for the workers: groups of different generations are different
            os.environ["MUSTER_RUN"] = f"{self.settings.run_id} {self._relays.generation}"
        if info.rank == 0:
            self._backend.clear(self._relays.generation)
        return RendezvousInfo(info.store, info.rank, info.world_size, RendezvousStoreInfo(_LOOPBACK, self._relays.client.port))

    def num_nodes_waiting(self) -> int:
        """Returns how many agents wait to join, or how many the generation has lost: if it is not 0,
        torch stops the workers and forms again.

        Workers that wait for a key of a lost agent's workers would wait until their own timeout. The
        loss of this agent's relay counts too. Once the job is closed, agents leave it.
        """
        waiting: int = super().num_nodes_waiting()
        state = self._state_holder.state
        if state.closed or not state.last_heartbeats:  # without heartbeats, the state was deleted
            return waiting
        if self._generation() != self._relays.generation or self._relays.ended:
            return max(waiting, 1)
        return max(waiting, self._relays.agents - len(state.participants))

    def _get_store(self) -> PrefixStore:
        """Returns the store of the agents of this generation, for which it starts a relay.

        torch calls it as soon as the generation is complete. It then has the first agent host a
        TCPStore for the workers, unless one is there, and the others wait for its address. It need
        not: the relay is there.
        """
        self._relays.start(self._generation())
        self._shared_tcp_store_server = self._relays.client
        self._bootstrap_store_info = RendezvousStoreInfo(_LOOPBACK, self._relays.client.port)
        return PrefixStore("agents", self._relays.client)

    def _generation(self) -> str:
        return f"{self._backend.run}.{self._state_holder.state.round}"

    def shutdown(self) -> bool:
        """Closes the rendezvous. The last agent deletes the keys of the job."""
        try:
            closed: bool = super().shutdown()
            if closed and self._relays.generation == self._generation() and self._left() == self._relays.agents:
                self._backend.clear("")
            return closed
        finally:
            self._relays.close()
            self._muster.close()

    def _left(self) -> int:
        try:
            return self._backend.store.add(self._relays.generation)
        except Error as e:
            _log.warning("rendezvous %s: the keys of the job remain below %s: %s", quote(self.settings.run_id), quote(self._backend.store._prefix), e)
            return 0


class _Relays:
    """The relay of this agent's generation."""

    def __init__(self, url: str, prefix: str, timeout: int) -> None:
        u = urllib.parse.urlsplit(url)
        if u.scheme == "muster":
            url = u._replace(path="").geturl()  # the prefix in the path is a part of prefix
        self._url, self._prefix, self._timeout = url, prefix, timeout
        self.generation = ""
        self.agents = 0  # of the generation
        self.client: Any = None  # torch's TCPStore
        self._relay: Optional[Relay] = None

    def start(self, generation: str) -> None:
        """Replaces the relay of the generation before, whose workers have ended."""
        self.close()
        self._relay = Relay(self._url, f"{self._prefix}{generation}/", self._timeout)
        self.generation = generation
        self.client = TCPStore(_LOOPBACK, self._relay.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=self._timeout))

    @property
    def ended(self) -> bool:
        """Whether the relay has ended, which close had not ended."""
        return self._relay is not None and self._relay.ended

    def close(self) -> None:
        if self._relay is not None:
            self.client = None
            self._relay.close()
            self._relay = None


# The state is encoded field by field. A node is a list of its address, pid, and number in the process.

_PLAIN = {"round": int, "complete": bool, "closed": bool}
_FIELDS = {*_PLAIN, "deadline", "participants", "wait_list", "redundancy_list", "last_heartbeats"}


def _encode(state: Any) -> Dict[str, Any]:
    unknown = vars(state).keys() - _FIELDS
    if unknown:
        raise RendezvousStateError(f"muster_pg.torchrun: this torch has a rendezvous with {', '.join(sorted(unknown))}: update muster-pg")
    return {
        **{name: getattr(state, name) for name in _PLAIN},
        "deadline": state.deadline and state.deadline.isoformat(),
        "participants": [[_of_node(n), rank] for n, rank in state.participants.items()],
        "wait_list": [_of_node(n) for n in state.wait_list],
        "redundancy_list": [_of_node(n) for n in state.redundancy_list],
        "last_heartbeats": [[_of_node(n), beat.isoformat()] for n, beat in state.last_heartbeats.items()],
    }


def _decode(fields: Dict[str, Any]) -> Any:
    """Is the inverse of _encode. It raises various errors if there is none."""
    state = dynamic._RendezvousState()
    for name, kind in _PLAIN.items():
        if type(fields[name]) is not kind:
            raise TypeError(f"{name} is no {kind.__name__}")
        setattr(state, name, fields[name])
    state.deadline = fields["deadline"] and datetime.fromisoformat(fields["deadline"])
    state.participants = {_node(n): int(rank) for n, rank in fields["participants"]}
    state.wait_list = {_node(n) for n in fields["wait_list"]}
    state.redundancy_list = {_node(n) for n in fields["redundancy_list"]}
    state.last_heartbeats = {_node(n): datetime.fromisoformat(beat) for n, beat in fields["last_heartbeats"]}
    return state


def _name(node: Any) -> str:
    return "/".join(map(str, _of_node(node)))


def _of_node(node: Any) -> List[Any]:
    return [node.addr, node.pid, node.local_id]


def _node(fields: List[Any]) -> Any:
    addr, pid, number = fields
    if not (isinstance(addr, str) and isinstance(pid, int) and isinstance(number, int)):
        raise TypeError("a node is no address, pid and number")
    return dynamic._NodeDesc(addr, pid, number)


def _age(beat: datetime) -> timedelta:
    if beat.tzinfo is None:  # in UTC, from an older torch
        beat = beat.replace(tzinfo=timezone.utc)
    return datetime.now(timezone.utc) - beat
