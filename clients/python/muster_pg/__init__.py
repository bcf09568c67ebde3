"""Process groups of Python and Go, on a muster store.

    import muster_pg

    with muster_pg.Group.from_env() as group:            # or Group.join(rank, size, "node0:7070")
        config = group.broadcast(load() if group.rank == 0 else None, root=0)
        group.barrier(timeout=60)                     # or a RankError says which rank is missing

    with muster_pg.Store.connect("node0:7070") as store:
        store.set("model/ready", b"1", ttl=3600)

Times are in seconds. Everything that is raised is a muster_pg.Error.
"""

from ._arrays import Array
from ._checkpoint import Checkpoint
from ._elastic import ElasticMember
from ._errors import (
    Aborted,
    Busy,
    Cancelled,
    Closed,
    Compacted,
    Conflict,
    Denied,
    Error,
    Evicted,
    Excluded,
    Expired,
    Failed,
    Finished,
    Full,
    IDInUse,
    Invalid,
    InvalidType,
    Left,
    Lost,
    MemberError,
    Mismatch,
    NotFound,
    NotInView,
    ProtocolError,
    RankError,
    SessionLost,
    Skipped,
    Stale,
    Stalled,
    StateLost,
    StoreError,
    Timeout,
    TooLarge,
    Unavailable,
    Unknown,
    Unsupported,
    ViewOver,
)
from ._export import Part
from ._group import Group
from ._lease import Lease
from ._member import Member
from ._phase import Phase
from ._roster import Worker
from ._secure import TLS, read_secret
from ._server import Server
from ._store import Entry, Event, Store
from ._version import __version__
from ._view import View
from ._wire import Code, Failure
from ._world import barrier, phase

__all__ = [
    "Aborted",
    "Array",
    "Busy",
    "Cancelled",
    "Checkpoint",
    "Closed",
    "Code",
    "Compacted",
    "Conflict",
    "Denied",
    "ElasticMember",
    "Entry",
    "Error",
    "Event",
    "Evicted",
    "Excluded",
    "Expired",
    "Failed",
    "Failure",
    "Finished",
    "Full",
    "Group",
    "IDInUse",
    "Invalid",
    "InvalidType",
    "Lease",
    "Left",
    "Lost",
    "Member",
    "MemberError",
    "Mismatch",
    "NotFound",
    "NotInView",
    "Part",
    "Phase",
    "ProtocolError",
    "RankError",
    "Server",
    "SessionLost",
    "Skipped",
    "Stale",
    "Stalled",
    "StateLost",
    "Store",
    "StoreError",
    "TLS",
    "Timeout",
    "TooLarge",
    "Unavailable",
    "Unknown",
    "Unsupported",
    "View",
    "ViewOver",
    "Worker",
    "__version__",
    "barrier",
    "phase",
    "read_secret",
]
