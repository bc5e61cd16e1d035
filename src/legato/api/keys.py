"""Keys that were let in a moment ago, so that a busy client costs no look at the database for each request.

A key that was revoked is refused at once where that was done, and within `LIFE` seconds by other nodes. Only hashes are
kept, and only of keys that were good.
"""

import hashlib
import time
from collections.abc import Awaitable, Callable

from legato.api.wire import Caller

KeyCheck = Callable[[str], Awaitable[Caller | None]]

LIFE = 1.0
MOST = 1024


class RecentKeys:
    """A check of keys that remembers for a moment."""

    def __init__(self, check: KeyCheck, clock: Callable[[], float] = time.monotonic) -> None:
        self._check, self._clock = check, clock
        self._known: dict[bytes, tuple[Caller, float]] = {}
        self._revoked = 0

    async def __call__(self, key: str) -> Caller | None:
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        known = self._known.get(digest)
        asked = self._clock()
        if known is not None and asked < known[1]:
            return known[0]
        revoked = self._revoked
        caller = await self._check(key)
        if caller is not None and revoked == self._revoked:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[digest] = caller, asked + LIFE
        return caller

    def forget(self) -> None:
        """Ask again for every key: one was revoked."""
        self._revoked += 1
        self._known.clear()
