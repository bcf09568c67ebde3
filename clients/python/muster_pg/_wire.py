"""The protocol as bytes: no sockets, locks or clocks.

docs/reference/protocol.md is the normative description; the names are its names. Integers are
little-endian, durations are in nanoseconds.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import List, NamedTuple, Optional, Sequence, Union

from ._op import NUMBERED as NUMBERED, WAITS as WAITS, Code as Code, Op as Op

PREFACE = b"\x8dMUSTER\x02\r\n\r\n"
HEADER_LEN = 16
NUMBER_AT = HEADER_LEN  # where a numbered request has its number, and what is acknowledged
MAX_KEY = 8 << 10
MAX_VALUE = 16 << 20
MAX_KEYS = 10_000
MAX_REPLY = 1 << 30
MAX_PHASE = 128  # bytes of the name of a phase
ABSENT = 0xFFFFFFFF  # the length of a value that is not there, which is not an empty one


# What of a decided record comes back; a number ≥ 0 is that rank's payload.
WANT_NOTHING, WANT_ALL, WANT_PART, WANT_REDUCED = -1, -2, -3, -4


class Malformed(ValueError):
    """Bytes that are no frame."""


class TooLong(Malformed):
    """A frame that is longer than may be."""


@dataclass(unsafe_hash=True)
class Contribution:
    """One rank's part of a group verb."""

    group: str = ""
    run: str = ""
    generation: int = 0
    channel: str = ""
    seq: int = 0
    rank: int = 0
    size: int = 0
    root: int = 0
    verb: str = ""
    type: str = ""
    label: str = ""
    want: int = 0
    root_only: bool = False
    reduce_op: int = 0
    reduce_kind: int = 0
    no: int = 0
    reason: str = ""
    stall: int = 0


class Phase(NamedTuple):
    """What a rank does, and how far it is."""

    id: int = 0  # differs between two phases of a rank; 0: none
    name: str = ""
    done: int = 0
    total: int = 0  # 0: unknown
    stall: int = 0
    ago: int = 0  # since it made progress


_NONE = Contribution()  # of requests that are of no group


@dataclass
class Request:
    """One call. Which fields an operation has is a table of docs/reference/protocol.md."""

    op: Op
    id: int = 0
    number: int = 0
    acked: int = 0
    timeout: int = 0
    key: str = ""
    keys: Sequence[str] = ()
    value: Optional[bytes] = None
    expect: Optional[bytes] = None
    claim: Optional[bytes] = None
    token: Optional[bytes] = None
    add: int = 0
    length: int = 0
    first: int = 0
    limit: int = 0
    keys_only: bool = False
    ttl: int = 0
    after: int = 0
    offset: int = 0
    attempt: int = 0
    count: int = 0
    lease: int = 0
    resume: int = 0
    incarnation: int = 0
    group: Contribution = _NONE
    phase: Phase = Phase()


@dataclass
class Failure:
    """What the store decided about a group verb, the same for every rank."""

    code: Code
    by: int = -1
    waited: int = 0
    reason: str = ""
    missing: List[int] = field(default_factory=list)
    doing: List[str] = field(default_factory=list)
    lost: List[int] = field(default_factory=list)
    left: List[int] = field(default_factory=list)
    clash: List[Contribution] = field(default_factory=list)


@dataclass
class Reply:
    """The answer to a request. Which fields are there follows from the operation and the code."""

    code: Code = Code.OK
    detail: str = ""
    rev: int = 0
    n: int = 0
    value: Optional[bytes] = None
    values: Optional[List[Optional[bytes]]] = None
    keys: Optional[List[str]] = None
    nums: Optional[List[int]] = None
    type: str = ""
    failure: Optional[Failure] = None


class Header(NamedTuple):
    """The first bytes of a frame."""

    length: int
    op: Op
    flags: int
    code: Code
    id: int


_OPS = {int(op): op for op in Op}
_ALL_CODES = {int(code): code for code in Code}
_HEADER = struct.Struct("<IBBHQ")
_REV_N = struct.Struct("<Qq")
_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U64 = struct.Struct("<Q")
_I64 = struct.Struct("<q")
_NUMBERS = struct.Struct("<QQ")
_PLACES = struct.Struct("<qQ")
_DONE = struct.Struct("<qqqq")  # done, total, stall and ago of a phase
_MOST = (1 << 63) - 1
_VOTE_TAIL = struct.Struct("<iBBB")

# Parts of a request's body.
_TIMEOUT, _KEY, _KEYS, _VALUE, _BYTES, _INT, _TTL, _UINT, _PLACE = (1 << i for i in range(9))
_MEMBER, _FORM, _CALL, _VOTE, _NO, _NUMBER, _LEASE, _RESUME, _OPTIONAL_TTL, _STALL, _PHASE = (1 << i for i in range(9, 20))

_OF_GROUP = _MEMBER | _FORM | _CALL | _VOTE | _STALL | _NO

_FIELDS = {
    Op.HELLO: _TIMEOUT | _KEY | _VALUE | _BYTES | _RESUME,
    Op.CANCEL: _NO,
    Op.GET: _KEY,
    Op.SET: _NUMBER | _KEY | _VALUE | _TTL | _LEASE,
    Op.WAIT: _TIMEOUT | _KEYS,
    Op.ADD: _NUMBER | _KEY | _INT | _OPTIONAL_TTL,
    Op.SWAP: _NUMBER | _KEY | _VALUE | _BYTES | _OPTIONAL_TTL,
    Op.APPEND: _NUMBER | _KEY | _VALUE | _OPTIONAL_TTL,
    Op.DELETE: _NUMBER | _KEYS,
    Op.LIST: _KEY | _KEYS | _INT,
    Op.WATCH: _TIMEOUT | _KEY | _UINT,
    Op.JOIN: _TIMEOUT | _VALUE | _BYTES | _UINT | _MEMBER | _FORM,
    Op.LEAVE: _NUMBER | _MEMBER | _NO,
    Op.FOLLOW: _TIMEOUT | _MEMBER,
    Op.COLLECT: _TIMEOUT | _VALUE | _MEMBER | _CALL | _VOTE | _STALL | _NO,
    Op.SEND: _NUMBER | _VALUE | _TTL | _MEMBER | _CALL,
    Op.RECV: _TIMEOUT | _MEMBER | _CALL,
    Op.EXPIRED: _NUMBER | _MEMBER,
    Op.LOST: _TTL,
    Op.SEND_READY: _TIMEOUT | _INT | _MEMBER | _CALL,
    Op.GRANT: _NUMBER | _TTL,
    Op.KEEP_ALIVE: _LEASE,
    Op.REVOKE: _NUMBER | _LEASE,
    Op.SKIP: _NUMBER,
    Op.PROOF: _VALUE,
    Op.BACKUP: _UINT,
    Op.STATUS: _KEY | _PLACE,
    Op.PUSH: _NUMBER | _KEY | _VALUE,
    Op.POP: _NUMBER | _KEY,
    Op.CLOSE_CHANNEL: _NUMBER | _MEMBER | _CALL,
    Op.ACK: _MEMBER | _CALL,
    Op.STACKS: _VALUE | _PLACE,
    Op.MEMBERS: _INT | _UINT | _MEMBER,
    Op.PROGRESS: _MEMBER | _PHASE,
    Op.STALLED: _VALUE,
}

# Which field of a request the part is.
_BYTES_NAME = {Op.HELLO: "token", Op.SWAP: "expect", Op.JOIN: "claim"}
_INT_NAME = {Op.ADD: "add", Op.LIST: "limit", Op.SEND_READY: "length", Op.MEMBERS: "first"}
_UINT_NAME = {Op.WATCH: "after", Op.JOIN: "attempt", Op.BACKUP: "offset", Op.MEMBERS: "count"}

# Which optional parts a request's body has.
_FLAG_VALUE, _FLAG_BYTES, _FLAG_NO, _FLAG_NUMBER, _FLAG_LEASE, _FLAG_RESUME, _FLAG_TTL, _FLAG_STALL = (1 << i for i in range(8))


def text(s: str) -> bytes:
    """Gives the bytes of a string. One that came as other bytes than UTF-8 has those again."""
    return s.encode("utf-8", "surrogateescape")


def _bytes(v: bytes) -> bytes:
    return _U32.pack(len(v)) + v


def _string(s: str) -> bytes:
    return _bytes(text(s))


def encode(r: Request) -> bytearray:
    """Returns r as one frame."""
    f = _FIELDS.get(r.op, 0)
    out = bytearray(HEADER_LEN)
    flags = 0
    if f & _NUMBER and r.number:
        flags |= _FLAG_NUMBER
        out += _NUMBERS.pack(r.number, r.acked)
    if f & _TIMEOUT:
        out += _I64.pack(r.timeout)
    if f & _KEY:
        out += _string(r.key)
    if f & _KEYS:
        out += _U32.pack(len(r.keys)) + b"".join([_string(k) for k in r.keys])
    if f & _VALUE and r.value is not None:
        flags |= _FLAG_VALUE
        out += _bytes(r.value)
    if f & _BYTES:
        second = getattr(r, _BYTES_NAME[r.op])
        if second is not None:
            flags |= _FLAG_BYTES
            out += _bytes(second)
    if f & _INT:
        n = getattr(r, _INT_NAME[r.op])
        out += _I64.pack(-(n or _MOST) if r.keys_only else n)
    if f & _TTL:
        out += _I64.pack(r.ttl)
    if f & _OPTIONAL_TTL and r.ttl:
        flags |= _FLAG_TTL
        out += _I64.pack(r.ttl)
    if f & _UINT:
        out += _U64.pack(getattr(r, _UINT_NAME[r.op]))
    if f & _PLACE:
        out += _PLACES.pack(r.group.rank, r.group.generation)
    if f & _LEASE and r.lease:
        flags |= _FLAG_LEASE
        out += _U64.pack(r.lease)
    if f & _RESUME and r.resume:
        flags |= _FLAG_RESUME
        out += _NUMBERS.pack(r.resume, r.incarnation)
    if f & _OF_GROUP:
        if f & _NO and r.group.no:
            flags |= _FLAG_NO
        if f & _STALL and r.group.stall:
            flags |= _FLAG_STALL
        _contribution(out, r.group, f)
    if f & _PHASE:
        out += _U64.pack(r.phase.id) + _string(r.phase.name) + _DONE.pack(*r.phase[2:])
    _HEADER.pack_into(out, 0, len(out) - HEADER_LEN, r.op, flags, 0, r.id)
    return out


def _contribution(out: bytearray, c: Contribution, f: int) -> None:
    if f & _MEMBER:
        out += _U64.pack(c.generation) + _I32.pack(c.rank)
    if f & _FORM:
        out += _string(c.group) + _string(c.run) + _I32.pack(c.size) + _string(c.label)
    if f & _CALL:
        out += _string(c.channel) + _U64.pack(c.seq) + _I32.pack(c.root) + _string(c.verb) + _string(c.type)
    if f & _VOTE:
        out += _string(c.label) + _VOTE_TAIL.pack(c.want, c.root_only, c.reduce_op, c.reduce_kind)
    if f & _STALL and c.stall:
        out += _I64.pack(c.stall)
    if f & _NO and c.no:
        out += _U16.pack(c.no) + _string(c.reason)


def address(frame: bytearray, call: int, number: int = 0, acked: int = 0) -> None:
    """Gives an encoded request its id, and its number if it was encoded with one."""
    _U64.pack_into(frame, 8, call)
    if number:
        _NUMBERS.pack_into(frame, NUMBER_AT, number, acked)


def parse_header(b: Union[bytes, bytearray], limit: int = MAX_REPLY) -> Header:
    """Parses the header at the front of b."""
    if len(b) < HEADER_LEN:
        raise Malformed("truncated frame")
    length, op, flags, code, call = _HEADER.unpack_from(b)
    if length > limit:
        raise TooLong(f"frame too large: op({op}) of {length} bytes, the limit is {limit}")
    try:
        return Header(length, _OPS[op], flags, _ALL_CODES[code], call)
    except KeyError as e:
        raise Malformed(f"unknown operation or code {e}") from None


class _Parser:
    """Takes values from the front of a body."""

    def __init__(self, b: bytes) -> None:
        self._b = b
        self._at = 0

    def take(self, n: int) -> bytes:
        at = self._at
        if n > len(self._b) - at:
            raise Malformed("truncated frame")
        self._at = at + n
        return self._b[at : at + n]

    def num(self, s: struct.Struct) -> int:
        at = self._at
        self._at = at + s.size
        if self._at > len(self._b):
            raise Malformed("truncated frame")
        n: int = s.unpack_from(self._b, at)[0]
        return n

    def flag(self) -> bool:
        n = self.num(_U8)
        if n > 1:
            raise Malformed("unknown flags")
        return n == 1

    def value(self) -> bytes:
        return self.take(self.num(_U32))

    def string(self) -> str:
        return self.value().decode("utf-8", "surrogateescape")

    def count(self, size: int) -> int:
        """Is the number of elements that follow, each of at least size bytes."""
        n = self.num(_U32)
        if n * size > len(self._b) - self._at:
            raise Malformed("truncated frame")
        return n

    def strings(self) -> List[str]:
        return [self.string() for _ in range(self.count(4))]

    def ranks(self) -> List[int]:
        return [self.num(_I32) for _ in range(self.count(4))]

    def optional(self) -> Optional[bytes]:
        n = self.num(_U32)
        return None if n == ABSENT else self.take(n)

    def values(self) -> List[Optional[bytes]]:
        return [self.optional() for _ in range(self.count(4))]

    def code(self) -> Code:
        try:
            return Code(self.num(_U16))
        except ValueError as e:
            raise Malformed(str(e)) from None

    def contribution(self) -> Contribution:
        c = Contribution(generation=self.num(_U64), rank=self.num(_I32))
        c.channel, c.seq, c.root = self.string(), self.num(_U64), self.num(_I32)
        c.verb, c.type, c.label = self.string(), self.string(), self.string()
        c.want, c.root_only = self.num(_I32), self.flag()
        c.reduce_op, c.reduce_kind = self.num(_U8), self.num(_U8)
        return c

    def failure(self) -> Failure:
        v = Failure(code=self.code(), by=self.num(_I32), waited=self.num(_I64), reason=self.string())
        v.missing, v.doing, v.lost, v.left = self.ranks(), self.strings(), self.ranks(), self.ranks()
        v.clash = [self.contribution() for _ in range(self.num(_U8))]
        return v

    def end(self) -> None:
        if self._at != len(self._b):
            raise Malformed("bytes after the end of a body")


def parse_reply(h: Header, body: bytes) -> Reply:
    """Parses the body of the frame with header h."""
    r = Reply(h.code)
    if h.flags == 1 and len(body) == _REV_N.size:  # that of most changes
        r.rev, r.n = _REV_N.unpack(body)
        return r
    p = _Parser(body)
    if h.flags & 1:
        r.rev, r.n = _REV_N.unpack(p.take(_REV_N.size))
    if h.flags & 2:
        r.detail = p.string()
    if h.flags & 4:
        r.value = p.value()
    if h.flags & 8:
        r.values = p.values()
    if h.flags & 16:
        r.keys = p.strings()
    if h.flags & 32:
        r.nums = [p.num(_I64) for _ in range(p.count(8))]
    if h.flags & 64:
        r.type = p.string()
    if h.flags & 128:
        r.failure = p.failure()
    p.end()
    return r


def encode_parts(parts: Sequence[bytes]) -> bytes:
    """Returns a payload made of one part for each rank, for WANT_PART."""
    return _U32.pack(len(parts)) + b"".join(_bytes(p) for p in parts)
