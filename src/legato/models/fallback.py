"""A model with others behind it: where it does not answer, the next one is asked.

Only before it has said anything: what was said stays said by the one who said it.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import structs

from legato.engine.protocols import Model, ModelEvent, ModelRequest, Sized
from legato.errors import ModelUnavailable
from legato.logs import logger


class Fallback:
    """Asks one model after the other."""

    def __init__(self, first: Model, others: Sequence[Model]) -> None:
        self._first, self._others = first, others

    async def window(self, name: str | None) -> int | None:
        """What the first one takes."""
        return await self._first.window(name) if isinstance(self._first, Sized) else None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        left = [self._first, *self._others]
        while left:
            model, begun = left.pop(0), False
            try:
                async with aclosing(model.stream(request)) as events:
                    async for event in events:
                        begun = True
                        yield event
                return
            except ModelUnavailable as error:
                if begun or not left:
                    raise
                logger.warning("the model does not answer; the next one is asked", error=error.message)
            request = structs.replace(request, model=None)  # by its own name only the first one knows it
