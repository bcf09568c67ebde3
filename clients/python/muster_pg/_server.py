"""The command muster as a child, which ends with this process: a store, or a relay."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import sysconfig
import time
import weakref
from pathlib import Path
from typing import IO, Any, Optional, Sequence, Union

from . import _arguments
from ._errors import Error, Invalid, Timeout, Unavailable, make

_STOP = 10.0  # seconds that close waits for the server to end, beyond the time for its clients
_Path = Union[str, "os.PathLike[str]"]


class Command:
    """A command "muster" that serves, and ends when its standard input does."""

    def __init__(self, what: str, binary: Optional[_Path], args: Sequence[str], until: float, stop: float) -> None:
        """Starts it, and returns when clients may connect. stop is for how many seconds close waits."""
        self._what, self._stop = what, stop
        command = find(binary)
        try:  # a separate session: Ctrl-C is this process's
            self._process: "subprocess.Popen[bytes]" = subprocess.Popen(
                [command, *args, "--until-eof", "--log-level", "warn"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as e:
            raise make(Unavailable, f"{what}: cannot start {command}: {e.strerror or e}") from None
        self._pid = os.getpid()
        assert self._process.stdin is not None and self._process.stdout is not None
        _pipes.update((self._process.stdin, self._process.stdout))
        try:
            self._address = self._first_line(command, self._process.stdout, until)
        except BaseException:
            self._process.kill()
            self.close()
            raise

    @property
    def address(self) -> str:
        """Its URL, for Store.connect, Group.join, and MUSTER_STORE of other processes."""
        return self._address

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def close(self) -> None:
        """Stops it, and waits until it has ended. It may be called twice."""
        process = self._process
        if os.getpid() != self._pid or process.stdin is None or process.stdout is None:
            return
        process.stdin.close()
        try:
            process.wait(self._stop)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _first_line(self, command: str, out: IO[bytes], until: float) -> str:
        """Reads the address, which is the first line of standard output."""
        line = b""
        with selectors.DefaultSelector() as ready:
            ready.register(out, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not ready.select(max(until - time.monotonic(), 0)):
                    raise make(Timeout, f"{self._what}: {command}: no address after the timeout")
                b = os.read(out.fileno(), 4096)
                if not b:
                    code = self._process.wait()
                    raise make(Unavailable, f"{self._what}: {command} has ended with code {code}: its log on standard error has the reason")
                line += b
        return line.decode().strip()


class Server(Command):
    """A store that this process hosts: the command "muster serve", which ends with this process,
    however that ends.

    It can be used in a with statement. The command is that of MUSTER_BINARY, or of the package
    muster-pg-server (pip install "muster-pg[server]"), or the muster on PATH.
    """

    def __init__(
        self,
        listen: str = "127.0.0.1:0",
        *,
        data: Optional[_Path] = None,
        options: Sequence[str] = (),
        drain: float = 1.0,
        timeout: float = 30.0,
        binary: Optional[_Path] = None,
    ) -> None:
        """Starts the server, and returns when clients may connect.

        listen is host:port; with port 0 the system chooses the port. data is a directory, in which
        the store survives; without it the store is in memory. options are more flags of "muster
        serve". drain is for how many seconds close waits for clients to disconnect. Unavailable: the
        command cannot be started, or has ended; its log on standard error has the reason.
        """
        self._drain = _arguments.seconds(_bad, "drain", drain, forever=False)
        until = time.monotonic() + _arguments.seconds(_bad, "timeout", timeout)
        args = ["serve", "--listen", _arguments.text(_bad, "listen", listen), "--drain", f"{self._drain:f}s"]
        args += ["--data", os.fspath(_arguments.file(_bad, "data", data))] if data is not None else []
        args += [_arguments.text(_bad, f"option {i}", o) for i, o in enumerate(_arguments.several(_bad, "options", options))]
        super().__init__("server", binary, args, until, self._drain + _STOP)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<muster_pg.Server {self.address}>"

class Relay(Command):
    """A relay on loopback for PyTorch: the TCPStore of the keys below prefix of the store at url.

    url is without a prefix. timeout is for how many seconds it waits for the store at start.
    """

    def __init__(self, url: str, prefix: str, timeout: int) -> None:
        args = ["relay", "--listen", "127.0.0.1:0", "--store", url, "--timeout", f"{timeout}s", "--torch-prefix", prefix]
        super().__init__("relay", None, args, time.monotonic() + timeout + _STOP, _STOP)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self._process.poll() is not None


_pipes: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _let_go() -> None:
    """Closes what a forked child has of its parent's servers: they would live as long as the child."""
    for pipe in list(_pipes):
        pipe.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def find(binary: Optional[_Path]) -> str:
    """Returns the path of the command."""
    named = os.fspath(_arguments.file(_bad, "binary", binary)) if binary is not None else os.environ.get("MUSTER_BINARY")
    installed = Path(sysconfig.get_path("scripts"), "muster")
    found = shutil.which(named) if named else str(installed) if installed.exists() else shutil.which("muster")
    if found is None:
        what = f"{named} is no command" if named else "there is no command muster"
        raise make(Unavailable, f'{what}: pip install "muster-pg[server]", or set MUSTER_BINARY')
    return found


def _bad(why: str, also: Any) -> Error:
    return make((*also, Invalid)[0], "server: " + why)
