"""Interrupts: the points at which a running turn can be stopped or handed back.

Only waiting for the outside world (a model, a tool) is interrupted. A write to the store never is: whether it
happened must not be in doubt.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Interrupted(Exception):
    """The turn was asked to stop or to leave."""


class Interrupts:
    """What a turn was asked to do from outside. A wish to stop outranks handing back."""

    def __init__(self) -> None:
        self.stopping = False
        self.leaving = False
        self._scopes: set[asyncio.Timeout] = set()

    def stop(self) -> None:
        """Cancel the turn; what was written stays."""
        self.stopping = True
        self._fire()

    def leave(self) -> None:
        """Hand the turn back; another process goes on."""
        self.leaving = True
        self._fire()

    def check(self) -> None:
        if self.stopping or self.leaving:
            raise Interrupted

    @asynccontextmanager
    async def point(self) -> AsyncIterator[None]:
        """What runs inside may be interrupted, and then raises `Interrupted`."""
        self.check()
        try:
            async with asyncio.timeout(None) as scope:
                self._scopes.add(scope)
                try:
                    yield
                finally:
                    self._scopes.discard(scope)
        except TimeoutError:
            if scope.expired():
                raise Interrupted from None
            raise

    def _fire(self) -> None:
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)
