"""Authentication: TLS, secrets, and the proof of a secret."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import shutil
import ssl
import stat
import tempfile
from dataclasses import dataclass
from typing import Callable, Iterator, Optional, Union

from . import _arguments
from ._arguments import Bad
from ._errors import StoreError, store_error
from ._wire import Code

NONCE_LEN = 32
_BINDING_LEN = 32
_MIN_SECRET, _MAX_SECRET = 16, 4096
_MAKE = '"(umask 077; head -c 32 /dev/urandom | base64 > secret)" makes one'
_CLIENT, _SERVER = b"muster 1 client", b"muster 1 server"

File = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class TLS:
    """PEM files for TLS 1.3.

    They are read for each connection, so that changed files apply to the next one.
    """

    ca: Optional[File] = None  # CA bundle that verifies the store's certificate; None: the system's
    cert: Optional[File] = None  # the client's certificate, with its key
    key: Optional[File] = None
    server_name: str = ""  # name in the store's certificate; "": the host that is dialed

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            if getattr(self, name) is not None:
                _arguments.file(_wrong("tls"), name, getattr(self, name))
        _arguments.text(_wrong("tls"), "server_name", self.server_name)
        if (self.cert is None) != (self.key is None):
            raise store_error("tls", "", Code.INVALID, what="a certificate and a key go together")

    def context(self) -> ssl.SSLContext:
        """Reads the files, for one connection."""
        c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        c.minimum_version = ssl.TLSVersion.TLSv1_3
        at: object = ""
        try:
            if self.ca is None:
                c.load_default_certs()
            else:
                at = self.ca
                c.load_verify_locations(os.fspath(self.ca))
            if self.cert is not None and self.key is not None:
                at = f"{self.cert} {self.key}"
                c.load_cert_chain(os.fspath(self.cert), os.fspath(self.key))
        except OSError as e:  # an ssl.SSLError is one
            raise store_error("tls", str(at), Code.INVALID, what=str(e)) from e
        return c


def read_secret(file: File) -> bytes:
    """Reads the secret in a file, without a line end.

    Only the owner may have the right to read the file.
    """
    _arguments.file(_wrong("secret"), "file", file)
    try:
        with open(file, "rb") as f:
            mode = stat.S_IMODE(os.fstat(f.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise _bad(file, f'others than its owner may read it: "chmod 600 {file}", and if they have read it, {_MAKE}')
            b = f.read(_MAX_SECRET + 3)
    except OSError as e:
        raise store_error("secret", str(file), Code.INVALID, what=str(e)) from e
    for end in (b"\n", b"\r"):
        if b.endswith(end):
            b = b[:-1]
    check_secret(b, file)
    return b


def check_secret(secret: bytes, file: File = "") -> None:
    """Refuses a secret that could be guessed."""
    if len(secret) < _MIN_SECRET:
        raise _bad(file, f"{len(secret)} bytes are too few, it needs {_MIN_SECRET}: {_MAKE}")
    if len(secret) > _MAX_SECRET:
        raise _bad(file, f"more than {_MAX_SECRET} bytes: {_MAKE}")


def _wrong(op: str) -> Bad:
    return lambda why, also: store_error(op, "", Code.INVALID, why, also=also)


def _bad(file: File, why: str) -> StoreError:
    return store_error("secret", str(file), Code.INVALID, why)


def prove(secret: bytes, mine: bytes, theirs: bytes, binding: bytes) -> bytes:
    """Returns what shows the store that this side holds the secret."""
    return _proof(secret, _CLIENT, mine, theirs, binding)


def proves(given: bytes, secret: bytes, mine: bytes, theirs: bytes, binding: bytes) -> bool:
    """Reports whether the store has shown that it holds the secret too."""
    return len(theirs) == NONCE_LEN and hmac.compare_digest(given, _proof(secret, _SERVER, mine, theirs, binding))


def _proof(secret: bytes, side: bytes, client_nonce: bytes, server_nonce: bytes, binding: bytes) -> bytes:
    return hmac.new(secret, side + b"\0" + client_nonce + server_nonce + binding, hashlib.sha256).digest()


@contextlib.contextmanager
def exporting(context: ssl.SSLContext) -> Iterator[Callable[[], bytes]]:
    """Gives the binding of the connection whose handshake is done within: what only both its ends
    know.

    Module ssl has no exporter of keys (RFC 8446, 7.5), but it logs the secret that exporters are
    made of. It does so into a pipe of this process: nothing of it is on a disk.
    """
    if not hasattr(os, "mkfifo") or not hasattr(context, "keylog_filename"):
        what = "TLS together with a secret is not to be had in this Python: use a client certificate"
        raise store_error("dial", "", Code.UNSUPPORTED, what=what)
    folder = tempfile.mkdtemp(prefix="muster-")  # its owner's alone
    reader = -1
    try:
        pipe = os.path.join(folder, "keys")
        os.mkfifo(pipe, 0o600)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        context.keylog_filename = pipe
        yield lambda: _binding(os.read(reader, 1 << 16))
    finally:
        setattr(context, "keylog_filename", None)
        if reader >= 0:
            os.close(reader)
        shutil.rmtree(folder, ignore_errors=True)


def _binding(log: bytes) -> bytes:
    """Exports "EXPORTER-muster-1" of the one connection in a log of keys."""
    for line in log.splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == b"EXPORTER_SECRET":
            return _export(bytes.fromhex(words[2].decode()), b"EXPORTER-muster-1")
    raise store_error("dial", "", Code.UNSUPPORTED, what="this Python's TLS has no exporter secret: use a client certificate")


def _export(master: bytes, label: bytes) -> bytes:
    name = {32: "sha256", 48: "sha384"}[len(master)]
    nothing = hashlib.new(name).digest()  # of no context, and of no messages
    secret = _expand(name, master, label, nothing, len(master))
    return _expand(name, secret, b"exporter", nothing, _BINDING_LEN)


def _expand(name: str, secret: bytes, label: bytes, context: bytes, length: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446, 7.1, for no more than one block."""
    label = b"tls13 " + label
    info = length.to_bytes(2, "big") + bytes([len(label)]) + label + bytes([len(context)]) + context
    return hmac.new(secret, info + b"\x01", name).digest()[:length]
