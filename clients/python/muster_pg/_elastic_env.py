"""What a launcher of an elastic job sets in the environment of its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Set, Tuple

from . import _env
from ._errors import Error, Invalid, make, quote

finished: Set[str] = set()  # jobs that this process has seen the end of


@dataclass(frozen=True)
class Worker:
    """One process of a worker, which is a unit of unit_size."""

    store: str  # URL
    job: str
    id: str
    least: int
    most: int
    unit_rank: int
    unit_size: int
    ttl: Optional[float]
    launch: str


def worker(environ: Mapping[str, str], least: int, most: int) -> Worker:
    """Reads what muster run --elastic sets, or a torchrun whose processes are one worker. least and
    most are those of the program, 0 if it leaves them to the launcher.
    """
    env = {k: v for k, v in environ.items() if v}
    torchrun = "MUSTER_WORKER" not in env and "TORCHELASTIC_RUN_ID" in env
    missing = [name for name in ("MUSTER_STORE", "MUSTER_JOB", "MUSTER_WORKER") if name not in env and not (torchrun and name == "MUSTER_WORKER")]
    if "MUSTER_ELASTIC" not in env and not least:
        missing.append("MUSTER_ELASTIC")
    if missing:
        raise bad(f"{' and '.join(missing)} not set: start the program with muster run --elastic MIN:MAX, or set them")
    if "MUSTER_ELASTIC" in env:
        low, _, high = env["MUSTER_ELASTIC"].partition(":")
        if not (low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high)):
            raise bad(f"MUSTER_ELASTIC is {quote(env['MUSTER_ELASTIC'])}: set MIN:MAX, with 1 ≤ MIN ≤ MAX, as in 2:8")
        if (least or int(low), most or int(high)) != (int(low), int(high)):
            raise bad(f"MUSTER_ELASTIC is {low}:{high}, and the program has {least}:{most}: leave min_units and max_units out")
        least, most = int(low), int(high)
    ttl = None
    if "MUSTER_LEASE" in env:
        ttl = _env.seconds(env["MUSTER_LEASE"])
        if not ttl:
            raise bad(f"MUSTER_LEASE is {quote(env['MUSTER_LEASE'])}: set a duration, as 30s")
    id, unit_rank, unit_size = _torchrun(env) if torchrun else (env["MUSTER_WORKER"], *_place(env, "MUSTER_UNIT_RANK", "MUSTER_UNIT_SIZE"))
    return Worker(env["MUSTER_STORE"], _job(env["MUSTER_JOB"]), id, least, most, unit_rank, unit_size, ttl, env.get("MUSTER_LAUNCH", ""))


def _job(first: str) -> str:
    """Returns the name of the program's next job: it may have several, one after the other. A worker
    that has finished one must not meet those that have yet to leave it.
    """
    name, n = first, 1
    while name in finished:
        n += 1
        name = f"{first}.{n}"
    return name


def _torchrun(env: Mapping[str, str]) -> Tuple[str, int, int]:
    """Returns the worker that the processes of a torchrun are: after each restart another one."""
    run = env["TORCHELASTIC_RUN_ID"]
    if run == "none":
        raise bad("the processes of one torchrun are one worker, which its run id names: start it with --standalone, or with another --rdzv-id than other workers")
    return (f"{run}.{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", *_place(env, "RANK", "WORLD_SIZE"))


def _place(env: Mapping[str, str], rank: str, size: str) -> Tuple[int, int]:
    r, n = env.get(rank, "0"), env.get(size, "1")
    if not (r.isdecimal() and n.isdecimal() and int(r) < int(n)):
        raise bad(f"{rank} is {quote(r)} and {size} {quote(n)}: set the number of a process in its worker, from 0, and the number of its processes")
    return int(r), int(n)


def bad(why: str) -> Error:
    return make(Invalid, "muster_pg.torch: elastic job: " + why)
