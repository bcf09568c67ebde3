"""The stacks of this process, which the store asks for if another process wants to know why it hangs."""

from __future__ import annotations

import sys
import threading
import traceback

_MOST = 64 << 10  # bytes


def text() -> bytes:
    """Returns the frames of all threads of this process, the main thread first, cut to 64 KiB."""
    names = {t.ident: t.name for t in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda of: of[0] != main)
    parts = []
    for ident, frame in frames:
        parts.append(f"thread {names.get(ident, ident)}:\n")
        parts += traceback.format_stack(frame)
        parts.append("\n")
    return "".join(parts).encode("utf-8", "replace")[:_MOST]
