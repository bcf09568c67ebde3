"""What an error of a group says of its failure, in the words of Go."""

from __future__ import annotations

from typing import List, Sequence

from ._wire import Code, Contribution, Failure


def why(v: Failure, rank: int, cause: str) -> str:
    if v.code in (Code.TIMEOUT, Code.CANCELLED):
        return _overdue(v, rank)
    if v.code == Code.STALLED:
        return _join(v.code.text + _after(v), _stalled(v), v.reason)
    if v.code == Code.LOST:
        return _join("lost " + ranks(v.lost), v.reason)
    if v.code == Code.LEFT:
        return _join(ranks(v.left) + " left", v.reason)
    if v.code == Code.MISMATCH:
        return _join("ranks disagree", _clash(v.clash), v.reason)
    if v.by >= 0:
        return f"rank {v.by}: " + _join(v.code.text, v.reason)
    if not v.reason and cause:
        return _join(cause, _late(v))
    return _join(v.code.text, v.reason, _late(v))


def _overdue(v: Failure, rank: int) -> str:
    what, reason = v.code.text, v.reason
    if reason == "context canceled" or v.by >= 0 and v.code == Code.TIMEOUT:
        reason = ""  # the words of that rank's own context, which what says
    if v.by >= 0:
        if v.code == Code.TIMEOUT:
            what = f"the deadline of rank {v.by} had passed when it called"
        else:
            what = "cancelled here" if v.by == rank else f"cancelled by rank {v.by}"
    return _join(what + _after(v), _late(v), reason)


def _after(v: Failure) -> str:
    return f" after {(v.waited + 5_000_000) // 10_000_000 / 100:.2f}s" if v.waited > 0 else ""


def _stalled(v: Failure) -> str:
    """Names the ranks that have stalled, and the progress that each has made."""
    parts = [f"rank {rank}: {doing}" for rank, doing in zip(v.missing, v.doing)]
    more = v.missing[len(parts) :]
    return "; ".join(parts + [ranks(more)] * bool(more))


def _late(v: Failure) -> str:
    """Names the ranks that others wait for, and what they do instead."""
    if not v.missing:
        return ""
    most = 8
    says = "missing " + ranks(v.missing)
    for rank, doing in list(zip(v.missing, v.doing))[:most]:
        says += f"; {rank}: {doing}"
    if len(v.missing) > most and v.doing:
        says += f"; and {len(v.missing) - most} more"
    return says


def _join(*parts: str) -> str:
    return ": ".join(p for p in parts if p)


def _clash(cs: Sequence[Contribution]) -> str:
    """Names the two calls of a mismatch: their ranks, the verb, and what differs."""
    if len(cs) != 2:
        return ""
    a, b = cs
    root = a.root != b.root or a.verb != b.verb
    kind = a.type != b.type and bool(a.type) and bool(b.type)
    return ", ".join(f"rank {c.rank} called {_called(c, root, kind, a.label != b.label)}" for c in cs)


def _called(c: Contribution, root: bool, kind: bool, label: bool) -> str:
    args = []
    if root and c.root >= 0:
        args.append(f"root {c.root}")
    if kind and c.type:
        args.append(c.type)
    if label and c.label:
        args.append(c.label)
    return f"{c.verb}({', '.join(args)})" if args else c.verb


def ranks(rs: Sequence[int]) -> str:
    """Returns a list of ranks in words: "rank 2", "ranks 2 and 3", "ranks 3–17, 20"."""
    most = 16
    parts: List[str] = []
    i = 0
    while i < len(rs):
        n = 1
        while i + n < len(rs) and rs[i + n] == rs[i + n - 1] + 1:
            n += 1
        if len(parts) == most:
            return f"ranks {', '.join(parts)} and {len(rs) - i} more"
        if n > 2:
            parts.append(f"{rs[i]}–{rs[i + n - 1]}")
        else:
            n = 1
            parts.append(str(rs[i]))
        i += n
    if not rs:
        return "no rank"
    if len(rs) == 1:
        return "rank " + parts[0]
    if len(rs) == 2:
        return f"ranks {parts[0]} and {parts[1]}"
    return "ranks " + ", ".join(parts)
