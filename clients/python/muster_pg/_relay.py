"""A relay on loopback, as a child of this process: the command muster."""

from __future__ import annotations

import logging
import os
import select
import shutil
import subprocess
import sysconfig
import threading
import time
import urllib.parse
from collections import deque
from typing import Deque

LOOPBACK = "127.0.0.1"
_START = 10.0  # seconds that a relay has to start, besides those that it waits for the store
_END = 5.0  # seconds that it has to end

_log = logging.getLogger("muster_pg")


class RelayError(Exception):
    """The relay has not started."""


def find() -> str:
    """Returns the command muster: MUSTER_BINARY, the one on PATH, or that of muster-pg-server."""
    named = os.environ.get("MUSTER_BINARY")
    found = shutil.which(named or "muster") or (None if named else shutil.which("muster", path=sysconfig.get_path("scripts")))
    if found is None:
        what = f"MUSTER_BINARY is {named}, which is no program" if named else "the command muster is not on PATH"
        raise RelayError(f"{what}: pip install 'muster-pg[server]', or set MUSTER_BINARY to the path of the command")
    return found


class Relay:
    """muster relay for PyTorch, at a free port of loopback.

    It serves the keys of the store at url below prefix. timeout is in seconds, for the store to
    answer at start. The relay ends with this process, however that ends: its standard input does.
    """

    def __init__(self, binary: str, url: str, prefix: str, timeout: int) -> None:
        u = urllib.parse.urlsplit(url)
        if u.scheme == "muster":
            url = u._replace(path="").geturl()  # the prefix in the path is a part of prefix
        args = [binary, "relay", "--listen", f"{LOOPBACK}:0", "--store", url, "--timeout", f"{timeout}s"]
        args += ["--torch-prefix", prefix, "--exit-on-eof", "--log-level", "warn"]
        self._said: Deque[str] = deque(maxlen=20)
        try:
            self._process = subprocess.Popen(  # in a session of its own: Ctrl-C in a terminal is for this process alone
                args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
        except OSError as e:
            raise RelayError(f"cannot run {binary}: {e.strerror}") from None
        self._reader = threading.Thread(target=self._read, name="muster relay", daemon=True)
        self._reader.start()
        try:
            self.port = self._started(time.monotonic() + timeout + _START)
        except BaseException:
            self.close()
            raise

    def _started(self, until: float) -> int:
        """Waits for the first line on standard output, the relay's address, and returns its port."""
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise RelayError("muster relay has not started in time")
            b = os.read(self._process.stdout.fileno(), 4096)
            if not b:
                self._process.wait(_END)
                self._reader.join(_END)
                raise RelayError(f"muster relay has ended with status {self._process.returncode}: {'; '.join(self._said)}")
            line += b
        return int(line.rpartition(b":")[2])

    def _read(self) -> None:
        """Logs what the relay writes to standard error."""
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                self._said.append(text)
                _log.warning("muster relay: %s", text)

    def close(self) -> None:
        """Ends the relay, and the connections of its clients."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._reader.join(_END)
