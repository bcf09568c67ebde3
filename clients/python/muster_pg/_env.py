"""What a launcher sets in the environment, read as Go's pgroup.FromEnv does."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import Callable, Mapping, Optional, Tuple

from ._connect import Attempt, connect
from ._errors import Error, Unavailable, make, quote
from ._membership import Config, invalid
from ._secure import TLS, read_secret

_AGENT = "TORCHELASTIC_USE_AGENT_STORE"  # set by torchrun if its agent serves MASTER_PORT
_MPI_RUN = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")


class _Env:
    """Reads variables. Empty is as good as not set."""

    def __init__(self, environ: Mapping[str, str], launcher: str) -> None:
        self._environ, self._launcher = environ, launcher

    def get(self, *names: str) -> str:
        """Returns the first that is set."""
        return next((v for v in (self._environ.get(n, "") for n in names) if v), "")

    def bad(self, why: str) -> Error:
        return invalid(f"the environment of {self._launcher}: {why}")

    def missing(self, *names: str) -> Error:
        return self.bad(f"{' or '.join(names)} is not set")

    def number(self, *names: str) -> int:
        for name in names:
            v = self.get(name)
            if v:
                if not re.fullmatch(r"\+?[0-9]+", v) or int(v) >= 1 << 31:
                    raise self.bad(f"{name} is {quote(v)}, which is not an integer ≥ 0")
                return int(v)
        raise self.missing(*names)

    def duration(self, name: str, default: float) -> float:
        v = self.get(name)
        if not v:
            return default
        found = seconds(v)
        if found is None:
            raise self.bad(f"{name} is {quote(v)}, which is not a duration, such as 30s or 5m")
        return found or default

    def at(self, host: str, job: str) -> str:
        """Returns MASTER_ADDR, if it is set, or host; and MASTER_PORT, or one that the job's id
        makes: the same on every rank.
        """
        host = self.get("MASTER_ADDR") or host
        port = self.get("MASTER_PORT")
        return self.master(host, port) if port else _join(host, 15000 + _fnv32(job.encode()) % 16000)

    def master(self, host: str, port: str) -> str:
        """Returns MASTER_ADDR:MASTER_PORT, or the next port if torchrun's agent has that one."""
        n = self.number("MASTER_PORT")
        if not 1 <= n <= 65535:
            raise self.bad(f"MASTER_PORT is {quote(port)}, which is not a port")
        if self.get(_AGENT) in ("1", "t", "T", "TRUE", "true", "True"):
            n += 1
        return _join(host, n)


@dataclass(frozen=True)
class _Launcher:
    name: str
    rank: str  # is set by this launcher, and by no other that comes before
    size: Tuple[str, ...]  # the first that is set counts
    run: Callable[[_Env], str]  # the run's id
    address: Optional[Callable[[_Env], str]] = None  # where to meet, if MASTER_ADDR does not say


def _mpi_address(e: _Env) -> str:
    """Returns loopback, if all ranks are on one node: mpirun does not publish where rank 0 is."""
    if e.get("MASTER_ADDR") or e.number("OMPI_COMM_WORLD_LOCAL_SIZE") == e.number("OMPI_COMM_WORLD_SIZE"):
        return e.at("127.0.0.1", e.get(*_MPI_RUN))
    raise e.missing("MASTER_ADDR")


def _slurm_run(e: _Env) -> str:
    """Is the id of this job step: one allocation may run several at a time."""
    job, step = e.get("SLURM_JOB_ID", "SLURM_JOBID"), e.get("SLURM_STEP_ID", "SLURM_STEPID")
    return f"{job}.{step}" if step else job


def _slurm_address(e: _Env) -> str:
    """Is a port of the step's first node, which is where rank 0 runs."""
    host = e.get("MASTER_ADDR") or _first_node(e, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    run = _slurm_run(e)
    if not run and not e.get("MASTER_PORT"):
        raise e.missing("SLURM_JOB_ID")
    return e.at(host, run)


def _first_node(e: _Env, *names: str) -> str:
    for name in names:
        nodes = e.get(name)
        if nodes:
            try:
                return first_host(nodes)
            except ValueError as why:
                raise e.bad(f"{name} is {quote(nodes)}: {why}") from None
    raise e.missing(*names)


def first_host(nodes: str) -> str:
    """Returns the first host of a list as Slurm writes it: "login,node[03-07,9]-ib,…" has ranges in
    brackets.
    """
    host, rest = "", nodes
    while rest:
        m = re.search(r"[\[\],]", rest)
        if m is None:
            host += rest
            break
        host += rest[: m.start()]
        if m.group() == ",":
            break
        if m.group() == "]":
            raise ValueError("a ] without a [")
        rest = rest[m.end() :]
        ranges, closing, rest = rest.partition("]")
        if not closing:
            raise ValueError("a [ without a ]")
        first = re.split("[,-]", ranges)[0]
        if not re.fullmatch("[0-9]+", first):
            raise ValueError(f"[{ranges}] is not a range of numbers")
        host += first
    if not host:
        raise ValueError("it has no host")
    return host


# The innermost first: torchrun under Slurm counts as torchrun.
_LAUNCHERS = (
    _Launcher("torchrun", "RANK", ("WORLD_SIZE",), lambda e: e.get("TORCHELASTIC_RUN_ID")),
    _Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), lambda e: e.get(*_MPI_RUN), _mpi_address),
    _Launcher("Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), _slurm_run, _slurm_address),
    _Launcher("a Kubernetes indexed job", "JOB_COMPLETION_INDEX", ("WORLD_SIZE",), lambda e: ""),
)


def config(environ: Mapping[str, str] = os.environ) -> Config:
    """Returns the rank of this process, and the store of its group."""
    for launcher in _LAUNCHERS:
        if environ.get(launcher.rank):
            name = launcher.name
            if name == "torchrun" and environ.get("MUSTER_RUN") and not environ.get("TORCHELASTIC_RUN_ID"):
                name = "muster run"  # it sets the variables of torchrun
            return _config(_Env(environ, name), launcher)
    if environ.get("MUSTER_ELASTIC"):
        raise invalid("a worker of an elastic job (MUSTER_ELASTIC is set) has no rank before a view forms: run without --elastic, or join the job, in Go with dataparallel.WorkerFromEnv")
    known = ", ".join(f"{launcher.rank} ({launcher.name})" for launcher in _LAUNCHERS)
    raise invalid(f'no launcher\'s environment: none of {known} is set; "muster run -n 4 -- PROGRAM" sets it, or give rank and size in the program')


def _config(e: _Env, launcher: _Launcher) -> Config:
    rank, size = e.number(launcher.rank), e.number(*launcher.size)
    timeout, stall, expiry = e.duration("MUSTER_TIMEOUT", 300.0), e.duration("MUSTER_STALL", 0.0), e.duration("MUSTER_EXPIRY", 3600.0)
    liveness = e.duration("MUSTER_LIVENESS_TIMEOUT", 0.0)
    tls, secret = _credentials(e)
    return Config(
        rank,
        size,
        _place(e, launcher),
        name=e.get("MUSTER_NAME") or "world",
        run=e.get("MUSTER_RUN") or launcher.run(e),
        timeout=timeout,
        stall=stall,
        expiry=expiry,
        liveness_timeout=liveness or None,
        host=e.get("MUSTER_HOST"),
        tls=tls,
        secret=secret,
        trace_dir=e.get("MUSTER_TRACE"),
    )


_HOSTED = 1.0  # seconds for a connection to a store that no launcher starts


def check_hosted(config: Config) -> None:
    """Refuses rank 0 if no process listens where its launcher has the ranks meet.

    There a Go rank 0 hosts the store. A Python rank cannot, so all ranks would wait for nothing.
    """
    if config.rank != 0 or not isinstance(config.store, str) or "://" in config.store:
        return
    host, _, port = config.store.rpartition(":")
    until = time.monotonic() + _HOSTED
    while True:
        try:
            connect(host.strip("[]"), int(port), until, Attempt()).close()
            return
        except OSError as e:
            if time.monotonic() + 0.05 < until:
                time.sleep(0.05)
                continue
            raise make(
                Unavailable,
                f"pgroup: create: rank 0 finds no store at {config.store}, and Python ranks host none: "
                f"set MUSTER_STORE to one, such as muster://host:7070, or start the ranks with muster run: {e}",
            ) from None


def credentials(environ: Mapping[str, str]) -> Tuple[Optional[TLS], Optional[bytes]]:
    """Returns what MUSTER_TLS_* and MUSTER_SECRET_FILE name."""
    return _credentials(_Env(environ, "this process"))


def _credentials(e: _Env) -> Tuple[Optional[TLS], Optional[bytes]]:
    file = e.get("MUSTER_SECRET_FILE")
    try:
        secret = read_secret(file) if file else None
    except Error as why:
        raise e.bad(f"MUSTER_SECRET_FILE: {why}") from None
    ca, cert, key = (e.get(f"MUSTER_TLS_{n}") or None for n in ("CA", "CERT", "KEY"))
    if (cert is None) != (key is None):
        raise e.bad("MUSTER_TLS_CERT and MUSTER_TLS_KEY go together")
    return (TLS(ca, cert, key) if ca or cert else None), secret


def _place(e: _Env, launcher: _Launcher) -> str:
    """Returns where the group meets."""
    url = e.get("MUSTER_STORE")
    if url:
        if "://" not in url and not url.startswith("mem:"):
            raise e.bad(f"MUSTER_STORE is {quote(url)}, which is not a URL, such as muster://host:port")
        return url
    host, port = e.get("MASTER_ADDR"), e.get("MASTER_PORT")
    if host and port:
        return e.master(host, port)
    if launcher.address is not None:
        return launcher.address(e)
    raise e.missing("MASTER_PORT" if host else "MASTER_ADDR")


_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


def seconds(v: str) -> Optional[float]:
    """Returns the seconds of a duration as Go writes it, "1h5m30.5s"; None if it is none."""
    v = v[1:] if v.startswith("+") else v
    if v == "0":
        return 0.0
    total, at = 0.0, 0
    while at < len(v):
        m = _PART.match(v, at)
        if m is None:
            return None
        total += float(m.group(1)) * _UNITS[m.group(2)]
        at = m.end()
    return total if v else None


def _join(host: str, port: int) -> str:
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _fnv32(b: bytes) -> int:
    """FNV-1a of 32 bits."""
    h = 0x811C9DC5
    for c in b:
        h = (h ^ c) * 0x01000193 & 0xFFFFFFFF
    return h
