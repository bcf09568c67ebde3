"""Operations and codes of the protocol. docs/reference/protocol.md has their tables."""

from __future__ import annotations

import enum


class Op(enum.IntEnum):
    """What a frame asks for."""

    HELLO = 1
    GOODBYE = 2
    CANCEL = 3
    PING = 4
    GET = 5
    SET = 6
    WAIT = 7
    ADD = 8
    SWAP = 9
    APPEND = 10
    DELETE = 11
    LIST = 12
    WATCH = 13
    JOIN = 14
    LEAVE = 15
    FOLLOW = 16
    COLLECT = 17
    SEND = 18
    RECV = 19
    EXPIRED = 20
    LOST = 21
    MEMBERS = 22
    SEND_READY = 23
    GRANT = 24
    KEEP_ALIVE = 25
    REVOKE = 26
    SKIP = 27
    PROBE = 28
    PROOF = 29
    BACKUP = 30
    STATUS = 33
    PUSH = 34
    POP = 35
    CLOSE_CHANNEL = 36
    ACK = 37
    STACKS = 38
    PROGRESS = 39
    STALLED = 40  # only in the log of a store

    @property
    def text(self) -> str:
        """What errors call it."""
        return _OP_TEXT.get(self, self.name.lower().replace("_", " "))


_OP_TEXT = {Op.GRANT: "lease", Op.ACK: "acknowledge"}


class Code(enum.IntEnum):
    """The outcome of a call."""

    OK = 0
    NOT_FOUND = 1
    EXPIRED = 2
    CONFLICT = 3
    LOST = 4
    TIMEOUT = 5
    TOO_LARGE = 6
    FULL = 7
    DENIED = 8
    UNAVAILABLE = 9
    UNSUPPORTED = 10
    COMPACTED = 11
    CLOSED = 12
    INVALID = 13
    MISMATCH = 14
    ABORTED = 15
    LEFT = 16
    CANCELLED = 17
    STALE = 18
    AGAIN = 19
    WOULD_BLOCK = 20
    FAILED = 21
    SKIPPED = 22
    STALLED = 23

    @property
    def text(self) -> str:
        """The code in words."""
        return _CODE_TEXT.get(self, self.name.lower().replace("_", " "))


_CODE_TEXT = {Code.TIMEOUT: "timed out"}

WAITS = frozenset({Op.WAIT, Op.WATCH, Op.JOIN, Op.FOLLOW, Op.COLLECT, Op.RECV, Op.SEND_READY})
NUMBERED = frozenset(
    {
        Op.SET, Op.ADD, Op.SWAP, Op.APPEND, Op.DELETE, Op.LEAVE, Op.SEND, Op.EXPIRED, Op.GRANT, Op.REVOKE, Op.SKIP, Op.PUSH, Op.POP, Op.CLOSE_CHANNEL,
    }
)  # fmt: skip
