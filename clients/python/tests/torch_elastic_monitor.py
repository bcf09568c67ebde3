"""Workers of an elastic training that hang, which their monitors kill, and what is left of monitors.

    torch_elastic_monitor.py HOST:PORT [CASE]...

As torch_elastic_cases.py, whose main also checks that no monitor is left when its worker has ended.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from typing import Callable

import torch_elastic_cases as cases
from torch_elastic_reports import monitors

import muster_pg.torch


def killed(hang: Callable[[], object]) -> Callable[[cases.Worker], str]:
    """Has a worker hang so that its lease ends: its monitor kills it."""

    def case(w: cases.Worker) -> str:
        def before(view: muster_pg.torch.JobView, step: int) -> None:
            if w.number == 1 and step == 2:
                hang()

        w.job(ttl=1, join_timeout=3)
        return w.run(before)

    return case


def stuck(w: cases.Worker) -> str:
    """Has a worker hang that the others exclude, and that would be well without."""
    w.job(ttl=1, join_timeout=3)
    logging.getLogger("muster_pg").addHandler(logging.StreamHandler())

    def before(view: muster_pg.torch.JobView, step: int) -> None:
        if w.number == 1 and step == 2:
            w.store.set("stuck", b"")
            time.sleep(60)
        if w.number == 0 and step == 2 and w.once():
            w.store.wait("stuck", timeout=60)
            assert not view.view.wait(4)  # longer than its monitor would wait: it is a member
            view.view.exclude(1)
            view.view.wait(60)

    return w.run(before)


def paused(w: cases.Worker) -> str:
    """Has a worker stopped for longer than its lease, but not for as long as its monitor waits."""
    w.job(ttl=1, join_timeout=20)

    def before(view: muster_pg.torch.JobView, step: int) -> None:
        if step == 2 and w.once():
            if w.number == 1:
                w.store.set("paused", str(os.getpid()).encode())
                os.kill(os.getpid(), signal.SIGSTOP)
            if w.number == 0:
                pid = int(w.store.wait("paused", timeout=60)[0])
                view.view.wait(60)  # the end of its lease
                os.kill(pid, signal.SIGCONT)
        if step == 3 and view.size < 3:
            view.view.wait(60)

    return w.run(before)


def forked(w: cases.Worker) -> str:
    """Has forks of the workers, which hold the pipe to the monitor, outlive them; one worker is killed."""
    w.job()

    def before(view: muster_pg.torch.JobView, step: int) -> None:
        if step != 2:
            return
        pid = os.getpid()
        assert monitors(pid) == 1
        if w.once() and os.fork() == 0:
            w.it.close()  # that of a fork leaves the worker alone
            until = time.monotonic() + 60
            while monitors(pid) and time.monotonic() < until:
                time.sleep(0.1)
            os.write(1, f"forked {w.number}: {monitors(pid)} monitors\n".encode())
            os._exit(0)
        if w.number == 1:
            os.kill(pid, signal.SIGKILL)

    return w.run(before)


CASES = {
    "lock": (killed(lambda: ctypes.PyDLL(None).sleep(60)), 3, 0),  # with the lock of the interpreter
    "stop": (killed(lambda: os.kill(os.getpid(), signal.SIGSTOP)), 3, 0),
    "stuck": (stuck, 3, 0),
    "paused": (paused, 3, 0),
    "forked": (forked, 3, 0),
}


if __name__ == "__main__":
    cases.CASES.clear()
    cases.CASES.update(CASES)
    cases.main(*sys.argv[1:])
