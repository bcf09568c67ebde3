"""One rank's place in one generation of a group, and how it gets there."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple, Union

from . import _arguments, _member
from ._arguments import Bad
from ._errors import (
    Denied,
    Error,
    Invalid,
    Kinds,
    ProtocolError,
    RankError,
    SessionLost,
    StoreError,
    Unavailable,
    Unknown,
    make,
    quote,
    rank_error,
    store_error,
)
from ._member import Member
from ._phase import Progress
from ._secure import TLS
from ._span import Joining, Span
from ._store import Store, unknown
from ._wire import MAX_KEY, Code, Contribution, Op, Phase, Request, Failure, text

if TYPE_CHECKING:
    from ._trace import Trace

REPORT_WAIT = 1.0  # seconds for which the store may be busy; the next report has the same
LEAVE_WAIT = 1.0  # seconds that a close or an abort of a group waits for the store to receive it
CLOSE_WAIT = 10.0  # seconds that a close of a channel waits: the group goes on, with a store that is busy
_GONE = (Code.UNAVAILABLE, Code.LEFT)


class _Claim:
    """One process's claim to a rank.

    A join whose outcome is not known may hold membership at the store: the next one of this process
    has the same token and one more try, and so replaces it.
    """

    _unsettled: Dict[Tuple[str, str, int, int], Tuple[bytes, int]] = {}  # claims whose outcome is not known; a dict's own calls are atomic

    def __init__(self, name: str, run: str, rank: int, old: int) -> None:
        self._key = name, run, rank, old
        self.token, tries = self._unsettled.pop(self._key, (os.urandom(16), 0))
        self.tries = tries + 1

    def keep(self) -> None:
        """Keeps the claim for the next join."""
        self._unsettled[self._key] = self.token, self.tries


class Config:
    """The rank of this process, and the store of its group."""

    def __init__(
        self,
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
    ) -> None:
        self.rank, self.size = _arguments.whole(_bad, "rank", rank), _arguments.whole(_bad, "size", size)
        self.name, self.run, self.host, self.trace_dir = (
            _arguments.text(_bad, what, v) for what, v in (("name", name), ("run", run), ("host", host), ("trace_dir", trace_dir))
        )  # fmt: skip
        self.timeout = _arguments.seconds(_bad, "timeout", timeout, zero=False)
        self.stall = _arguments.stall(_bad, stall)
        self.expiry = _arguments.seconds(_bad, "expiry", expiry, zero=False)
        self.liveness_timeout = None if liveness_timeout is None else _arguments.seconds(_bad, "liveness_timeout", liveness_timeout, zero=False, forever=False)
        if tls is not None and not isinstance(tls, TLS):
            raise _arguments.of_type(_bad, "tls", "a muster_pg.TLS", tls)
        if not isinstance(store, (str, Store)):
            raise _arguments.of_type(_bad, "store", "an address or a muster_pg.Store", store)
        self.store, self.tls, self.secret = store, tls, _arguments.secret(_bad, secret)
        self.trace: Optional[Trace] = None  # of trace_dir, while it is open
        self._check()

    def _check(self) -> None:
        if self.size == 0:
            raise invalid("size is 0: is the environment of the launcher missing? A group of one has size 1")
        if not 0 < self.size < 1 << 31:
            raise invalid(f"size is {self.size}")
        if not 0 <= self.rank < self.size:
            raise invalid(f"rank is {self.rank}, with a size of {self.size}")
        for what, v in (("name", self.name), ("run", self.run)):
            if len(text(v)) > MAX_KEY // 4:
                raise invalid(f"{what} has {len(text(v))} bytes, the limit is {MAX_KEY // 4}")
        if not self.store:
            raise invalid(f"there is no store: {self.size} ranks need one to meet")


class SharedStore:
    """Where groups meet.

    Every group holds it; a store that was connected to for them goes with the last one.
    """

    def __init__(self, store: Store, own: bool) -> None:
        self.store = store
        self._own = own
        self._lock = threading.Lock()  # protects refs
        self._refs = 1

    def hold(self) -> bool:
        """Counts one more group; False if the last one is gone."""
        with self._lock:
            self._refs += self._refs > 0
            return self._refs > 0

    def release(self) -> None:
        """Counts one group less."""
        with self._lock:
            self._refs -= 1
            last = self._refs == 0
        if last and self._own:
            self.store.close()


class Membership:
    """One rank's place. The channels of its group share it."""

    def __init__(self, config: Config, shared: SharedStore, name: str, run: str) -> None:
        self.config, self.shared, self.store, self.name, self.run = config, shared, shared.store, name, run
        self.rank, self.size = config.rank, config.size
        self.generation = 0
        self.trace = config.trace
        self.id = 0  # distinguishes this generation from that number on another store; for the trace
        self.local: List[int] = []  # the ranks on this rank's node
        self.host = -1  # the rank that hosts the store; -1 if none does
        self.lock = threading.Lock()  # protects the fields below
        self._members: Optional[List[Member]] = None  # None until they are known
        self.closed = False
        self.progress = Progress("")

    def _adopt(self, progress: Progress) -> None:
        """Makes this generation the one in which progress is reported."""
        self.progress, progress.who = progress, f"rank {self.rank}"
        progress.reports(self.size, self._report, lambda: self.store._connection)

    def succeed(self, old: Membership) -> None:
        """Takes over the phases of the generation before."""
        progress, old.progress = old.progress, self.progress
        self._adopt(progress)

    def _report(self, phase: Phase) -> None:
        self.store._request(Request(Op.PROGRESS, group=self.contribution(), phase=phase), time.monotonic() + REPORT_WAIT)

    def contribution(self) -> Contribution:
        """Returns what each request of this member has: its generation and rank."""
        return Contribution(generation=self.generation, rank=self.rank)

    def bad(self, op: str) -> Bad:
        """Makes the errors of a verb's arguments."""
        return lambda why, also: make((*also, Invalid)[0], f"pgroup: {op} of group {quote(self.name)} on rank {self.rank}: {why}")

    def until(self, bad: Bad, timeout: Optional[float]) -> float:
        """Returns the deadline of a verb."""
        return time.monotonic() + (self.config.timeout if timeout is None else _arguments.seconds(bad, "timeout", timeout))

    def enter(self, until: float, op: str, old: int = 0) -> None:
        """Joins the group, or with a generation the group of its survivors."""
        label = f"pid {os.getpid()} on {_member.host_name(self.config.host)}"
        c = Contribution(group=self.name, run=self.run, rank=self.rank, size=self.size, generation=old, label=label)
        claim = _Claim(self.name, self.run, self.rank, old)
        req = Request(Op.JOIN, value=_member.encode(self.config.host), claim=claim.token, attempt=claim.tries, group=c)
        try:
            rep = self.store._request(req, until)
        except StoreError as err:
            e = unknown(err)
            if isinstance(e, Unknown):
                claim.keep()
            if op == "" and went_away(e):
                raise e from None
            raise self.fault(op or "create", "", 0, e) from None
        self.generation = rep.rev
        try:
            self.id, self.rank, self.size, self.host, self.local = _member.formed(rep, self.rank)
            self._adopt(self.progress)
            if rep.values is not None:
                self._members = self._parse_members(rep.values)
        except Error:
            self.leave()
            raise
        if self.trace is not None:
            self.trace.hold()

    def members(self) -> List[Member]:
        """Returns the ranks, which a large group asks the store for when they are first needed."""
        with self.lock:
            known = self._members
        if known is None:
            req = Request(Op.MEMBERS, group=self.contribution())
            try:
                rep = self.store._request(req, self.until(self.bad("members"), None))
            except StoreError as e:
                raise self.fault("members", "", 0, e) from None
            known = self._parse_members(rep.values or [])
            with self.lock:
                self._members = known
        return list(known)

    def _parse_members(self, members: Sequence[Optional[bytes]]) -> List[Member]:
        if len(members) != self.size:
            raise make(ProtocolError, f"not a muster store: {len(members)} members of a group of {self.size}")
        return _member.parse([m or b"" for m in members])

    def leave(self, no: Code = Code.OK, reason: str = "") -> None:
        """Sends the goodbye. A store that cannot be reached detects the end itself."""
        c = self.contribution()
        c.no, c.reason = no, reason
        try:
            self.store._request(Request(Op.LEAVE, group=c), time.monotonic() + LEAVE_WAIT)
        except Error:
            pass

    def close(self) -> None:
        """Leaves the group, and lets go of the store if it was made for it."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
        with Span(self.trace, "close", self):
            self.leave()  # ends this rank's own calls too
        self.progress.close()
        if self.trace is not None:
            self.trace.release()
        self.shared.release()

    def error(self, op: str, failure: Failure, channel: str = "", seq: int = 0, also: Kinds = (), cause: str = "") -> RankError:
        return rank_error(op, self.name, channel, self.rank, self.size, seq, failure, also, cause)

    def closed_error(self, op: str, channel: str = "", also: Kinds = ()) -> RankError:
        """Returns the error of a verb of a handle that was closed."""
        reason = "this rank has closed it"
        if Unknown in also:  # it was sent: a message may be delivered
            reason += ": outcome unknown"
        return self.error(op, Failure(Code.CLOSED, reason=reason), channel, also=also)

    def fault(self, op: str, channel: str, seq: int, e: StoreError) -> RankError:
        """Is what the store's error means to a rank."""
        if self.closed:
            return self.closed_error(op)
        also = tuple(k for k in (Unknown, Unavailable, SessionLost) if isinstance(e, k))
        return self.error(op, e.failure or self._failure(e), channel, seq, also, str(e))

    def _failure(self, e: StoreError) -> Failure:
        """Returns the failure for a store error that carries none, with the rank at fault if it is
        known.
        """
        v = Failure(e.code, reason=e.detail)
        hosted = f"it hosted the store at {self.store.address}"
        failed = f": {self.store._failed}" if self.store._failed else ""
        if isinstance(e, SessionLost):  # the others have that result
            v.code, v.lost, v.reason = Code.LOST, [self.rank], "its session has expired: it was disconnected, or sent nothing, for too long"
        elif e.code == Code.LEFT and self.host >= 0:
            v.left, v.reason = [self.host], hosted
        elif e.code in _GONE and self.host >= 0:
            v.code, v.lost, v.reason = Code.LOST, [self.host], hosted + failed
        elif e.code in _GONE:
            v.code, v.reason = Code.UNAVAILABLE, f"{self.store.address} is gone{failed}"
        elif e.code in (Code.TIMEOUT, Code.CANCELLED):
            state = f": {e.detail}" if e.detail else ""  # of the connection
            v.reason = f"no answer from the store at {self.store.address}: outcome unknown{state}"
        return v


def went_away(e: Error) -> bool:
    """Reports whether the store became unreachable, without a failure of the group."""
    return isinstance(e, StoreError) and e.op != "dial" and e.failure is None and e.code in _GONE


def join(config: Config) -> Membership:
    """Joins a group, and begins its trace."""
    trace = config.trace = _open_trace(config)
    try:
        with Span(trace, "create", Joining(config.name, config.rank, config.size)) as span:
            span.waits()
            span.member = membership = _join(config)
        return membership
    finally:
        if trace is not None:
            trace.release()


def _open_trace(config: Config) -> Optional[Trace]:
    if not config.trace_dir:
        return None
    from . import _trace  # only here: what it needs takes longer to load than the rest

    try:
        return _trace.create(config.trace_dir, config.rank, _member.host_name(config.host))
    except (OSError, ValueError, RuntimeError) as e:  # no such place, no name of a file, no room for a thread
        why = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        raise invalid(f"trace_dir (MUSTER_TRACE) {quote(config.trace_dir)}: {why}: is it a directory that rank {config.rank} may write to?") from None


def _join(config: Config) -> Membership:
    """Joins a group.

    A store that goes away meanwhile may be the last run's, which still ends: it is looked for
    again.
    """
    began = time.monotonic()
    until, pause = began + config.timeout, 0.01
    before: Optional[Error] = None
    while True:
        try:
            return _join_once(config, until)
        except StoreError as e:
            if not (isinstance(config.store, str) and "://" not in config.store and went_away(e)) or time.monotonic() + pause > until:
                raise _create_error(config, e, before, time.monotonic() - began) from None
            before = e
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def _join_once(config: Config, until: float) -> Membership:
    store = config.store
    own = isinstance(store, str)
    if isinstance(store, str):
        left = max(until - time.monotonic(), 0.001)
        store = Store.connect(store, tls=config.tls, secret=config.secret, liveness_timeout=config.liveness_timeout, timeout=left, wait=True).within(config.timeout)
    membership = Membership(config, SharedStore(store, own), config.name, config.run)
    try:
        membership.enter(until, "")
    except BaseException:
        membership.shared.release()
        raise
    return membership


def _create_error(config: Config, e: StoreError, before: Optional[Error], took: float) -> Error:
    """Says at which step it failed."""
    says = f"pgroup: create of group {quote(config.name)} on rank {config.rank} of {config.size}"
    if e.op == "dial" and e.code in (Code.TIMEOUT, Code.CANCELLED):
        what, do = "no process listens at", "start rank 0 or the store, or check its address (MASTER_ADDR and MASTER_PORT, or MUSTER_STORE)"
        if "it has not answered" in str(e):
            what, do = "no answer from", "check that rank 0 or a store listens there, and is not frozen"
        says += f": {what} {e.key} after {took:.1f}s: {do}"
        if config.rank == 0:
            says += ' (a Python rank 0 does not host the store: "muster serve" does)'
    says += f": {e}{_access_hint(e)}"
    if before is not None:
        says += f"; the store that was there before went away: {before}"
    op, key, code, detail, failure, also, what, _ = e._parts
    return store_error(op, key, code, detail, failure, also, what, says)


def _access_hint(e: StoreError) -> str:
    """Returns what to check if a store and a rank do not accept each other."""
    if e.op != "dial" or not isinstance(e, Denied) or "relay" in e.detail:  # whose own settings are wrong
        return ""
    if "secret" in e.detail:
        return ": check secret (MUSTER_SECRET_FILE), which all ranks and the store share"
    return ": check tls (MUSTER_TLS_CA, MUSTER_TLS_CERT, MUSTER_TLS_KEY)"


def _bad(why: str, also: Kinds) -> Error:
    return make((*also, Invalid)[0], "pgroup: join: " + why)


def invalid(why: str) -> Error:
    """Is an argument that makes no sense."""
    return make(Invalid, "pgroup: " + why)
