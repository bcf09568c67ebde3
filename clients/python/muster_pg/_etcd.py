"""Stores in an etcd: which process leads one, as etcd knows it (docs/guides/high-availability.md).
etcd is asked over HTTP, through its JSON gateway.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

from ._connect import Attempt, connect
from ._errors import StoreError, quote, store_error
from ._secure import TLS, read_secret
from ._wire import Code

SCHEMES = ("etcd", "etcds")
PARAMETERS = ("password-file", "ca", "cert", "key", "server-name", "secret-file", "store-ca", "store-cert", "store-key", "store-server-name")
_ATTEMPT = 1.0  # seconds, for one member of etcd to answer before another one is asked
_MAX_ANSWER = 64 << 10  # bytes of an answer
_DEFAULT_ROOT = "muster/"
_DENIED = ("permission denied", "authentication failed", "user name is empty", "authentication is not enabled")  # what etcd says of users


class Away(ConnectionError):
    """Why the leader is not known: no member of etcd answers, or no process leads.

    Another attempt may find it.
    """


class _Refused(Exception):
    """An error that etcd answered."""


@dataclass(frozen=True)
class Etcd:
    """An etcd, and the store below a root in it."""

    members: Tuple[str, ...]  # host:port
    root: str = _DEFAULT_ROOT
    user: str = ""
    password: str = field(default="", repr=False)
    tls: Optional[TLS] = None

    def leader(self, until: float, attempt: Attempt) -> str:
        """Returns where the leader serves, host:port.

        The members are asked in turn, each for a second. Raises Away, or Denied.
        """
        said: Dict[str, str] = {}
        for member in self.members:
            if said and time.monotonic() >= until:
                break
            try:
                return self._ask(member, min(until, time.monotonic() + _ATTEMPT), attempt)
            except Away:
                raise
            except _Refused as e:
                if any(words in str(e) for words in _DENIED):
                    raise store_error("dial", self._name(), Code.DENIED, str(e)) from None
                said[member] = str(e)
            except (OSError, ValueError, http.client.HTTPException) as e:  # ValueError: what answers is no etcd
                if isinstance(e, StoreError):
                    raise
                said[member] = getattr(e, "strerror", None) or str(e) or type(e).__name__
        text = f"{self._name()}: " + "; ".join(f"{member}: {why}" if len(said) > 1 else why for member, why in said.items())
        raise socket.timeout(text) if time.monotonic() >= until else Away(text)

    def _name(self) -> str:
        return "etcd at " + ",".join(self.members)

    def _ask(self, member: str, until: float, attempt: Attempt) -> str:
        host, _, port = member.rpartition(":")
        context = self.tls.context() if self.tls is not None else None
        sock = connect(host.strip("[]"), int(port), until, attempt)
        try:
            sock.settimeout(max(until - time.monotonic(), 0.01))
            if context is not None and self.tls is not None:
                sock = context.wrap_socket(sock, server_hostname=self.tls.server_name or host.strip("[]"))
            client = http.client.HTTPConnection(member)
            client.sock = sock
            token = ""
            if self.user:
                token = _post(client, "/v3/auth/authenticate", {"name": self.user, "password": self.password}, "")["token"]
            key = base64.b64encode((self.root + "leader").encode()).decode()
            found = _post(client, "/v3/kv/range", {"key": key}, token).get("kvs") or []
            if not found:
                raise Away(f"{self._name()}: no process leads the store there")
            return str(json.loads(base64.b64decode(found[0]["value"]))["addr"])
        except (KeyError, TypeError) as e:
            raise ValueError(f"an answer that means nothing: {e}") from None
        finally:
            sock.close()


def _post(client: http.client.HTTPConnection, path: str, body: Dict[str, str], token: str) -> Dict[str, Any]:
    client.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **({"Authorization": token} if token else {})})
    reply = client.getresponse()
    text = reply.read(_MAX_ANSWER)
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ValueError(f"it is no etcd: it answered {reply.status} {quote(text[:100].decode('utf-8', 'replace'))}")
    if reply.status != http.client.OK:
        raise _Refused(str(answer.get("message") or answer.get("error") or reply.status))
    return answer


def parse(url: urllib.parse.SplitResult, values: Dict[str, str], bad: Callable[[str], StoreError]) -> Etcd:
    """Returns the etcd of a URL, etcd://user@host:port,host:port/root?name=value&…, or etcds://
    with TLS. values are its parameters.
    """
    user, at, hosts = url.netloc.rpartition("@")
    if not hosts:
        raise bad("it has no host: use etcd://host:2379,host2:2379/root")
    members: List[str] = hosts.split(",")
    for member in members:
        host, _, port = member.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
            raise bad(f"{member} is no host:port; etcd's port is 2379")
    path = urllib.parse.unquote(url.path).strip("/")
    name, password = _user(user, values, bad) if at else ("", "")
    if not at and "password-file" in values:
        raise bad("a password-file is for a user: etcd://user@host:port")
    tls = tls_of(values, "")
    if url.scheme != "etcds":
        if tls is not None:
            raise bad("ca, cert, key and server-name are of TLS: say etcds://")
    elif tls is None:
        tls = TLS()
    if tls is not None:
        tls.context()  # its files are there
    return Etcd(tuple(members), path + "/" if path else _DEFAULT_ROOT, name, password, tls)


def _user(user: str, values: Dict[str, str], bad: Callable[[str], StoreError]) -> Tuple[str, str]:
    name, given, password = (urllib.parse.unquote(part) for part in user.partition(":"))
    file = values.get("password-file")
    if given and file:
        raise bad("there are a password and a password-file")
    if file:
        try:
            with open(file, encoding="utf-8") as f:
                password = f.read().rstrip("\r\n")
        except OSError as e:
            raise bad(f"the password-file: {e}") from None
    elif not given:
        password = os.environ.get("MUSTER_ETCD_PASSWORD", "")
    if not name or not password:
        raise bad("a user needs a name and a password: put that into a file, and say ?password-file=FILE")
    return name, password


def tls_of(values: Dict[str, str], prefix: str) -> Optional[TLS]:
    """Returns the TLS whose files the parameters with that prefix name; None if there are none."""
    ca, cert, key, name = (values.get(prefix + p) for p in ("ca", "cert", "key", "server-name"))
    return TLS(ca, cert, key, name or "") if ca or cert or key or name else None
