"""Groups: ranks, and what they do together."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Type, TypeVar, Union, overload

from . import _arguments, _env, _export, _objects, _membership, _reduce, _stream, _wire, _world
from ._arguments import Value
from ._call import NoAnswer
from ._errors import Busy, Error, Kinds, StoreError, Unknown, Unsupported, clip, make, quote
from ._member import Member
from ._membership import CLOSE_WAIT, Config, Membership
from ._secure import TLS
from ._span import Span
from ._phase import Phase
from ._store import Store
from ._verb import BYTES, SHUTDOWN, Verb, data_of
from ._wire import WANT_ALL, WANT_PART, Code, Op, Request

_G = TypeVar("_G", bound="Group")
_N = TypeVar("_N", int, float)


class Group:
    """One rank's handle of a group. Many threads may use it.

    Every rank, in Go or in Python, calls the collective verbs (barrier, broadcast, gather,
    all_gather, scatter, all_to_all, all_reduce) in the same order, one at a time; a second one at
    the same time is Busy. send and recv are free of that, and a channel has its own sequence.
    A verb is decided once, for all: all ranks get the same result, and if it is a failure, a
    RankError has the reason and the ranks.

    timeout, in seconds (int or float; math.inf is no timeout), bounds a verb for every rank: the
    earliest deadline decides. Without it, the group's timeout is used.

    A failure that the group decided is a RankError, and has a class for its kind: Timeout (with the
    missing ranks), Stalled (a Timeout, with those that have stalled), Lost, Left, Mismatch, Aborted,
    Cancelled, Failed, Invalid or TooLarge (what a rank brought), Stale; Closed, Unavailable and
    Unknown as for a Store. Lost, Mismatch and Aborted end the group; after the others it continues.

    Objects are msgpack values of at most 16 MiB: None, bool, int, float, str, bytes, lists and
    dicts (a tuple arrives as a list), and arrays of numpy and torch, alone or in lists and dicts.
    An array arrives as one of the library whose arrays this rank passes to the verb, or else as an
    Array. In Go an array is a *tensor.Tensor, and other objects are values of any type that
    msgpack can decode into. For Go's verbs of []byte, use the verbs that end in _bytes.
    """

    def __init__(self, membership: Membership, channel: str = "") -> None:
        """Not called by users: see join and from_env."""
        self._membership = membership
        self._channel = channel
        self._channels: Dict[str, Group] = {"": self}
        self._busy = threading.Lock()  # held for the whole of a collective verb
        self._seq = 0
        self._boxes: Dict[int, _stream.Box] = {}
        # Of a channel. It is closed in two steps: no further call begins, and the calls under way have ended. Only then does the
        # store learn of it, because a call that came later would be one of the next use of the name.
        self._calls = membership.store._scoped() if channel else membership.store
        self._closed = False  # the membership's lock protects its change
        self._used = False  # a call has been made: the store may know the channel

    @classmethod
    def join(
        cls: Type[_G],
        rank: int,
        size: int,
        store: Union[str, Store],
        *,
        name: str = "world",
        run: str = "",
        timeout: float = 300.0,
        stall: float = 0.0,
        expiry: float = 3600.0,
        host: str = "",
        tls: Optional[TLS] = None,
        secret: Optional[bytes] = None,
        liveness_timeout: Optional[float] = None,
        trace_dir: str = "",
    ) -> _G:
        """Joins a group.

        Returns when all ranks have joined; the error of a timeout names the missing ranks.

        store is where the ranks meet: host:port of a Go rank 0 or of "muster serve", which may
        start later; a URL, as for Store.connect; or a Store, which stays open when the group is
        closed. name is unique among the groups on one store, and run among the runs of one job.
        timeout bounds joining, and each verb without its own. stall, if not 0, ends a collective
        verb earlier, when a rank that it waits for makes no progress for so many seconds (at least
        2): see phase. A message that no rank receives within expiry seconds is dropped. liveness_timeout: see Store.connect. trace_dir is a
        directory for the trace of this group, for "muster trace" and Perfetto; it is created if
        missing.
        """
        config = Config(
            rank, size, store, name=name, run=run, timeout=timeout, stall=stall, expiry=expiry, host=host, tls=tls, secret=secret, liveness_timeout=liveness_timeout, trace_dir=trace_dir
        )
        return cls(_membership.join(config))

    @classmethod
    def from_env(cls: Type[_G]) -> _G:
        """Joins the group that a launcher has set in the environment, as Go's FromEnv reads it.

        The launchers are torchrun or muster run, Open MPI, Slurm, and indexed jobs of Kubernetes.
        The group meets at MASTER_ADDR and MASTER_PORT, or at the store that MUSTER_STORE names.
        MUSTER_TRACE is trace_dir. Without MUSTER_STORE, rank 0 must find the store within a second.
        """
        config = _env.config()
        _env.check_hosted(config)
        g = cls(_membership.join(config))
        _world.enter(g)
        return g

    @property
    def rank(self) -> int:
        """This process's rank: 0 ≤ rank < size."""
        return self._membership.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._membership.size

    @property
    def name(self) -> str:
        """The group's name."""
        return self._membership.name

    @property
    def generation(self) -> int:
        """The number of this group on its store, never used again there."""
        return self._membership.generation

    @property
    def members(self) -> List[Member]:
        """The ranks, in their order.

        A group of more than 64 ranks asks the store for them at the first use.
        """
        return self._membership.members()

    @property
    def local_rank(self) -> int:
        """The number of lower ranks on this rank's node."""
        return self._membership.local.index(self.rank)

    @property
    def store(self) -> Store:
        """The store that the group meets on, below a prefix that is this generation's alone."""
        return self._membership.store.below(f"{self.name}/{self.generation}/")

    def channel(self, name: str) -> "Group":
        """Returns a handle of this group with its own verbs and streams, without a round trip.

        The same name gives the same handle until that is closed. close of a channel ends this
        rank's use of it, and of nothing else. The store frees a channel when all ranks that use it
        have closed it; the same name can be used again at once, and begins anew. A group has at
        most 4,096 channels at a time, one more is Full: close those that are no longer needed.
        Closing the group closes all of its channels.
        """
        _arguments.text(self._membership.bad("channel"), "name", name)
        with self._membership.lock:
            g = self._channels.get(name)
            return self._open(name) if g is None else g

    def _open(self, name: str) -> "Group":
        """Makes the handle of a channel. Called with the membership's lock."""
        g = self._channels[name] = Group(self._membership, name)
        g._channels = self._channels
        return g

    def barrier(self, name: str = "", *, timeout: Optional[float] = None, stall: Optional[float] = None) -> None:
        """Returns when every rank has called it: one round trip.

        Ranks that pass different names get Mismatch, which has both. stall is that of join, for this
        barrier; if ranks pass different ones, the least counts.
        """
        with Verb(self, "barrier", timeout, stall=stall) as v:
            v.named(name)
            v.cast()

    def phase(self, name: str, total: int = 0, *, stall: float = 0.0, on_stall: str = "log") -> Phase:
        """Returns a phase of this rank, for the store, muster who, and the errors of other ranks:

            with group.phase("loading shards", total=len(shards)) as phase:
                for i, shard in enumerate(shards, 1):
                    load(shard)
                    phase.done(i)
            group.barrier("loaded", timeout=3600, stall=60)

        A verb with a stall fails when a rank that it waits for has had a phase, and has made no
        progress for so many seconds, or those of its phase if they are more: done has not risen, it
        has not voted, and the phase has not changed, which counts 16 times in one operation of the
        group: use one phase with a total in a loop, not one for each file. It is Stalled on all
        ranks, which names the rank and what it did last. A rank that has had no phase has until the
        timeout. The open phase that has begun or progressed last, in any thread, is current.

        name has at most 128 bytes; a longer one is cut. total is the number of units, 0 if it is
        unknown. stall is in seconds, at least 2, or 0; a phase without its own has that of another
        one that is open, with its on_stall. on_stall is what a child process does when this process
        has made no progress in any phase for stall seconds, even if a thread holds the interpreter's
        lock, and waits in no collective verb. In any case it writes a line to stderr.

            "log"   no more
            "cut"   shuts down the TCP connections of this process (Linux), so that collectives of
                    gloo fail, here and on other ranks; those of muster are made anew
            "exit"  has faulthandler print the stacks of all threads, and ends the process
        """
        if self._is_closed():
            raise self._closed_error("phase")
        return Phase(self._membership.progress, self._membership.bad("phase"), name, total, stall, on_stall)

    def broadcast(self, obj: Any = None, root: int = 0, *, timeout: Optional[float] = None) -> Any:
        """Returns root's obj on every rank; what the others pass does not count.

        Only an array of numpy or torch that another rank passes does: it receives the values of
        root's array, which must have its dtype and shape. The root does not wait for its readers.
        """
        with Verb(self, "broadcast", timeout, root=root, root_only=True) as v:
            v.typed(obj, receives=self.rank != v.c.root)
            if self.rank != v.c.root:
                v.c.want = v.c.root
                return v.received(obj, v.decode(_objects.unpack, v.cast(), 1)[0])
            v.pack(obj)
            v.cast()
            return obj

    def broadcast_bytes(self, data: Value = b"", root: int = 0, *, timeout: Optional[float] = None) -> bytes:
        """Is broadcast of bytes that pass as they are, as Go's Broadcast of []byte."""
        with Verb(self, "broadcast", timeout, root=root, kind=BYTES, root_only=True) as v:
            if self.rank != v.c.root:
                v.c.want = v.c.root
                return bytes(v.decode(bytes, v.cast(), 1)[0])
            v.brings(data_of(data))
            v.cast()
            return v.payload

    def all_gather(self, obj: Any, *, timeout: Optional[float] = None) -> List[Any]:
        """Returns the obj of every rank, in rank order, on every rank."""
        with Verb(self, "allgather", timeout, want=WANT_ALL) as v:
            v.pack(obj)
            return v.decode(_objects.unpacker(obj), v.cast(), self.size)

    def all_gather_bytes(self, data: Value, *, timeout: Optional[float] = None) -> List[bytes]:
        """Is all_gather of bytes that pass as they are, as Go's AllGather of []byte."""
        with Verb(self, "allgather", timeout, want=WANT_ALL, kind=BYTES) as v:
            v.brings(data_of(data))
            return v.decode(bytes, v.cast(), self.size)

    def gather(self, obj: Any, root: int = 0, *, timeout: Optional[float] = None) -> Optional[List[Any]]:
        """Returns the objects of all ranks, in rank order, on root, and None on the others."""
        with Verb(self, "gather", timeout, root=root) as v:
            v.pack(obj)
            if self.rank != v.c.root:
                v.cast()
                return None
            v.c.want = WANT_ALL
            return v.decode(_objects.unpacker(obj), v.cast(), self.size)

    def scatter(self, objs: Optional[Sequence[Any]] = None, root: int = 0, *, timeout: Optional[float] = None) -> Any:
        """Returns root's objs[i] on rank i.

        What the others pass does not count. The root does not wait for the others.
        """
        with Verb(self, "scatter", timeout, root=root, root_only=True, want=WANT_PART) as v:
            if self.rank == v.c.root:
                v.pack_parts(objs)
            return v.decode(_objects.unpacker(objs), v.cast(), 1)[0]

    def all_to_all(self, objs: Sequence[Any], *, timeout: Optional[float] = None) -> List[Any]:
        """Returns on rank i the objs[i] of every rank, in rank order."""
        with Verb(self, "alltoall", timeout, want=WANT_PART) as v:
            v.pack_parts(objs)
            return v.decode(_objects.unpacker(objs), v.cast(), self.size)

    @overload
    def all_reduce(self, numbers: Sequence[_N], op: str = "sum", *, timeout: Optional[float] = None) -> List[_N]: ...
    @overload
    def all_reduce(self, numbers: Any, op: str = "sum", *, timeout: Optional[float] = None) -> Any: ...
    def all_reduce(self, numbers: Any, op: str = "sum", *, timeout: Optional[float] = None) -> Any:
        """Returns the numbers of all ranks combined by op: sum, product, min, max or avg (mean).

        Each rank passes equally many, all of them int (64 bits, which wrap) or all of them float;
        or an array of numpy or torch of one dtype and shape, and gets a new one. They are combined
        in rank order, so that every rank has the same bits.
        """
        return _reduce.all_reduce(self, numbers, op, timeout)

    def export(
        self, parts: Mapping[str, Any], directory: Union[str, "os.PathLike[str]"], metadata: Optional[Mapping[str, str]] = None, *, timeout: Optional[float] = None
    ) -> None:
        """Writes a model, of whose tensors the ranks have parts, into a directory that all of them reach:
        safetensors files, and the index that transformers reads.

        parts has by name an array of numpy or torch that is a whole tensor, a DTensor of torch, as those
        of FSDP2, or a Part. Ranks may have the same part, which one of them writes; they are not compared.
        Each tensor is written by one rank that has a part of it, into a file of its own; the others send
        theirs, in pieces of at most 8 MiB, through the store. Of tied tensors, whose parts have the same
        memory on each rank, the first by name is written, and the metadata of its file names the others.
        metadata is that of each file; rank 0's counts.

        All ranks call it. Either the model is complete, and on the disk, or all raise the same RankError,
        which names the rank at fault, and nothing of it is left. The names of its files are new ones each
        time, and the index is renamed last: until then the directory has the older model, whose files are
        removed after it, as are those that killed jobs have left. If a rank closes the group, or rank 0
        dies, in the last step, an error does not say which of the two models the directory has; it has
        one of them, whole. Only one group may export to a directory at a time.
        """
        _export.export(self, parts, directory, metadata, timeout)

    def send(self, obj: Any, dst: int, *, timeout: Optional[float] = None) -> None:
        """Sends obj to dst, and returns when the store has it: dst need not have called recv.

        Messages from one rank to another on one channel arrive in the order of their sending. While
        64 of them, or 16 MiB, wait for dst, it waits. bytes pass as they are.
        """
        with self._span("send") as span:
            _stream.send(self, span, obj, dst, timeout)

    def recv(self, src: int, *, timeout: Optional[float] = None) -> Any:
        """Returns the next message from src: each once, in the order of sending.

        One that expired is Expired, in its turn.
        """
        with self._span("recv") as span:
            return _stream.recv(self, span, src, timeout)

    def expired(self, *, timeout: Optional[float] = None) -> int:
        """Returns how many messages of this rank have expired unread since the last call."""
        until = self._membership.until(self._membership.bad("expired"), timeout)
        with Span(self._membership.trace, "expire", self._membership):
            try:
                return self._membership.store._request(Request(Op.EXPIRED, group=self._membership.contribution()), until).n
            except StoreError as e:
                raise self._membership.fault("expire", self._channel, 0, e) from None

    def abort(self, cause: object) -> None:
        """Ends the group: pending and later verbs of all ranks are Aborted, with rank and cause."""
        with Span(self._membership.trace, "abort", self._membership) as span:
            span.error = clip(str(cause), _wire.MAX_KEY) or "no cause given"
            self._membership.leave(Code.ABORTED, span.error)

    def shrink(self, *, timeout: Optional[float] = None) -> "Group":
        """Returns the next generation of a group that lost ranks: the callers, in their old order.

        It has the phases of this one. This group is over then, and still to be closed. It cannot help if the rank is gone that
        hosted the store.
        """
        old = self._membership
        until = old.until(old.bad("shrink"), timeout)
        if old.closed or not old.shared.hold():
            raise old.closed_error("shrink")
        new = Membership(old.config, old.shared, old.name, old.run)
        new.rank, new.size, new.host = old.rank, old.size, old.host
        try:
            with Span(old.trace, "shrink", new) as span:
                span.waits()
                new.enter(until, "shrink", old.generation)
        except BaseException:
            old.shared.release()
            raise
        new.succeed(old)
        g = Group(new)
        _world.follow(self, g)
        return g

    def shutdown(self, *, timeout: Optional[float] = None) -> None:
        """Waits until all ranks have called it, and closes the group, even if it fails.

        shutdown of a channel is a barrier, after which the channel is closed.
        """
        try:
            if self._channel:
                self.barrier(timeout=timeout)
            else:
                with Verb(self.channel(SHUTDOWN), "shutdown", timeout) as v:
                    v.cast()
        finally:
            self.close()

    def close(self) -> None:
        """Leaves the group at once: ranks that wait for this one get Left.

        It ends every verb of this rank. It may be called twice.

        close of a channel ends this rank's use of that channel alone (see channel). A verb of this
        rank that is under way on it is cancelled; one of another rank that needs this rank on the
        channel is Skipped. It waits up to 10 s for a store that is busy or restarts. If the store
        cannot be reached, close raises the error, and the next use of the name continues the numbers
        of this one.
        """
        if self._channel:
            self._close_channel()
        else:
            self._membership.close()

    def _close_channel(self) -> None:
        with self._membership.lock:
            if self._closed:
                return
            self._closed = True
        with Span(self._membership.trace, "close", self._membership, self._channel):
            known = False
            try:
                self._calls._end("this rank has closed the channel")
                if self._used and not self._membership.closed:
                    c = self._membership.contribution()
                    c.channel = self._channel
                    self._membership.store._request(Request(Op.CLOSE_CHANNEL, group=c), time.monotonic() + CLOSE_WAIT)
                known = True
            except NoAnswer:
                pass  # this process is a fork: the channel is the parent's
            except StoreError as e:
                if not (self._membership.closed or isinstance(e, Unsupported)):
                    raise self._membership.fault("close", self._channel, 0, e) from None
            finally:
                self._forget(known)

    def _forget(self, known: bool) -> None:
        """Ends the use of the channel's name.

        One that the store does not know to be closed leaves its numbers to the next use.
        """
        with self._membership.lock:
            del self._channels[self._channel]
            if not known:
                g = self._open(self._channel)
                g._seq, g._boxes, g._used = self._seq, self._boxes, True

    def __enter__(self: _G) -> _G:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        channel = f" channel {quote(self._channel)}" if self._channel else ""
        return f"<muster_pg.Group {quote(self.name)}{channel} rank {self.rank} of {self.size}>"

    def _span(self, verb: str) -> Span:
        return Span(self._membership.trace, verb, self._membership, self._channel)

    def _begin(self, op: str) -> None:
        """Refuses a call on a handle that is closed."""
        if self._is_closed():
            raise self._closed_error(op)
        self._used = True

    def _is_closed(self) -> bool:
        return self._membership.closed or self._closed

    def _closed_error(self, op: str, also: Kinds = ()) -> Error:
        return self._membership.closed_error(op, self._shown(), also)

    def _fault(self, op: str, seq: int, e: StoreError) -> Error:
        """Is what the store's error means to this rank."""
        if self._is_closed():
            return self._closed_error(op, (Unknown,) if isinstance(e, Unknown) else ())
        return self._membership.fault(op, self._shown(), 0 if self._channel == SHUTDOWN else seq, e)

    def _shown(self) -> str:
        """Returns the channel as users know it."""
        return "" if self._channel[:1] == "\0" else self._channel

    def _busy_error(self, op: str) -> Error:
        says = "another verb of this group is in progress"
        return make(Busy, f"pgroup: {op} of group {quote(self.name)} on rank {self.rank}: {says}")
