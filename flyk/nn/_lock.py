"""A lock that modules may have: a copy or an unpickled one is a new lock."""

from __future__ import annotations

import threading


class Lock:
    """Held by one thread at a time, by that one any number of times."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[Lock], tuple[()]]:
        return Lock, ()
