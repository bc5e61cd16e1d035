"""Carrying out tool calls. A tool that fails does not raise: its failure is a result the model can read."""

from collections.abc import Iterable

from msgspec import DecodeError, ValidationError, json

from legato.domain.entries import AnyBody, ToolCall, ToolResult
from legato.domain.turns import Turn
from legato.engine import recovery
from legato.engine.interrupts import Interrupted, Interrupts
from legato.engine.protocols import Invocation, ToolOutput, Toolset
from legato.engine.roster import Cast
from legato.errors import LegatoError
from legato.logs import logger


async def carry_out(
    turn: Turn, cast: Cast, call: ToolCall, interrupts: Interrupts, *, said: Iterable[AnyBody], again: bool
) -> ToolResult | None:
    """The result of a call, one of those that the turn has `said`. `again`: it may have run before, so it runs only if
    that is harmless. None when the turn leaves this process with the call in doubt."""
    most = turn.input.options.params.get("max_tool_calls")
    if most is not None and call.call_id in _made_here(said)[most:]:
        return ToolResult(call.call_id, f"It was not carried out: {most} calls are allowed in all.", is_error=True)
    if call.name not in cast.tools and again:
        return recovery.unknown_outcome(call)
    if call.name not in cast.tools:
        known = ", ".join(cast.tools) or "none"
        return ToolResult(call.call_id, f"There is no tool '{call.name}'. There are: {known}.", is_error=True)
    tool, toolset = cast.tools[call.name]
    if again and not tool.repeatable:
        return recovery.unknown_outcome(call)
    try:
        async with interrupts.point():
            output = await _output(turn, call, toolset)
    except Interrupted:
        return recovery.unknown_outcome(call) if interrupts.stopping else None
    whole = output.output.encode("utf-8", "replace").decode()  # half a letter, as names of files have, is no text
    return ToolResult(call.call_id, whole, output.is_error)


def _made_here(said: Iterable[AnyBody]) -> list[str]:
    return [body.call_id for body in said if isinstance(body, ToolCall) and not body.client]


async def _output(turn: Turn, call: ToolCall, toolset: Toolset) -> ToolOutput:
    try:
        arguments = json.decode(call.arguments or "{}", type=dict)
    except (DecodeError, ValidationError) as error:
        return ToolOutput(f"The arguments are not a JSON object: {error}", is_error=True)
    invocation = Invocation(turn.principal, turn.conversation_id, turn.id, call.call_id, call.name, arguments)
    try:
        return await toolset.call(invocation)
    except LegatoError as error:
        return ToolOutput(error.message, is_error=True)
    except Exception as error:
        logger.exception("a tool failed", tool=call.name)
        return ToolOutput(f"The tool failed: {type(error).__name__}: {error}", is_error=True)
