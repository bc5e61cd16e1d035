"""The clock: the smallest useful toolset. Telling the time twice is harmless, so the tool is repeatable."""

from datetime import UTC, datetime

from legato.domain.entries import Tool
from legato.engine.protocols import Invocation, ToolOutput


class Clock:
    """Tells the time."""

    tools = (
        Tool(
            name="now",
            description="The current date and time in UTC.",
            parameters={"type": "object", "properties": {}, "additionalProperties": False},
            repeatable=True,
        ),
    )

    async def call(self, invocation: Invocation) -> ToolOutput:
        return ToolOutput(datetime.now(UTC).isoformat(timespec="seconds"))
