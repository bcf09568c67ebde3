"""The process of _monitor.py: kills the worker that has started it, when that has been silent for too long.

    _monitor_main.py PID SECONDS JOB WORKER

Standard input is a pipe. Each line is a beat, whose text says what is wrong with the worker; it is
empty if nothing is. The process ends with the worker. It is a script that imports little.
"""

import os
import select
import sys
import time

_SLICE = 0.25  # seconds


def main(pid: int, seconds: float, job: str, worker: str) -> None:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    silent, why = 0.0, b""
    while os.getppid() == pid:  # another one: the worker has ended, and forks of it may hold the pipe open
        began = time.monotonic()
        if poll.poll(_SLICE * 1000):
            beats = os.read(0, 1 << 16)
            if not beats:
                return
            silent, why = 0.0, beats.splitlines()[-1]
            continue
        silent += min(time.monotonic() - began, _SLICE)  # not the time for which both have been suspended
        if silent >= seconds and _traced(pid):
            silent = 0.0
        if silent >= seconds:
            says = why.decode("utf-8", "replace") + ", and has not come back from the program's code" if why else "has not run"
            text = f"muster: elastic job {job}: worker {worker} (pid {pid}) {says} for {seconds:g} s: killing it, so that it can be replaced\n"
            if os.getppid() == pid:
                try:
                    os.write(2, text.encode("utf-8", "backslashreplace"))
                except OSError:
                    pass  # nobody reads it
                os.kill(pid, 9)
            return


def _traced(pid: int) -> bool:
    """Reports whether a debugger is attached, on Linux."""
    try:
        with open(f"/proc/{pid}/status", "rb") as f:
            return any(line.startswith(b"TracerPid:") and line.split()[1] != b"0" for line in f)
    except OSError:
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4])
