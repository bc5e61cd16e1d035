"""What a model is sent: how much it would be, what it was, and a shorter way to say it.

The receipt of a response answers "why did you forget?": which entries the model read verbatim, which of them a summary
stood for, and which were hidden.
"""

import time
from typing import Any

from msgspec import Struct
from starlette.responses import Response

from legato.api import items
from legato.api.create_response import ConversationRef, ModelName
from legato.api.door import Call
from legato.api.response import usage_object
from legato.api.responses import find
from legato.api.submitting import parsed, previous, target_of
from legato.api.tools import parse_additional, parse_tools, tool_of
from legato.api.wire import answer
from legato.domain.ids import new_id
from legato.domain.turns import Input, Options, Submission
from legato.engine import prompt
from legato.errors import BadInput


class MeasureResponse(Struct):
    """The body of `POST /v1/responses/input_tokens`."""

    input: str | list[items.GivenItem] | None = None
    model: ModelName | None = None
    conversation: str | ConversationRef | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    tools: list[items.GivenTool] | None = None


class CompactResponse(Struct):
    """The body of `POST /v1/responses/compact`."""

    input: str | list[items.GivenItem] | None = None
    model: ModelName | None = None
    previous_response_id: str | None = None
    instructions: str | None = None
    conversation: str | ConversationRef | None = None


async def input_tokens(call: Call) -> Response:
    """`POST /v1/responses/input_tokens`: how many tokens a request would have."""
    body = await call.body(MeasureResponse)
    tools = tuple(map(tool_of, [*parse_tools(body.tools), *parse_additional(body.input)]))
    submission = await _submission(call, body, Options(instructions=body.instructions, tools=tools))
    with previous(submission):
        count = await call.gateway.measure(submission, call.api.roster.cast(body.model))
    return answer({"object": "response.input_tokens", "input_tokens": count})


async def compact(call: Call) -> Response:
    """`POST /v1/responses/compact`: what can be sent instead of a long history. Nothing is kept of it."""
    body = await call.body(CompactResponse)
    if body.input is None and body.previous_response_id is None and body.conversation is None:
        raise BadInput("Give 'input' or 'previous_response_id'.", param="input")
    submission = await _submission(call, body, Options())
    cast = call.api.roster.cast(body.model)
    with previous(submission):
        said, summary, usage = await call.gateway.condensed(submission, cast, body.instructions or "")
    output = [items.item(d.id, d.body) for d in said]
    output.append({"id": new_id("cmp_"), "type": "compaction", "encrypted_content": prompt.told(summary)})
    return answer(
        {
            "id": new_id("resp_"),
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": output,
            "usage": usage_object(usage),
        }
    )


async def receipt(call: Call) -> Response:
    """`GET /v1/responses/{id}/context`: what the model was sent for the last step of a response."""
    turn_id, turn = await find(call)
    seen, left_out = await call.gateway.receipt(turn)
    options = turn.input.options
    setup = call.api.roster.cast(options.agent).setup
    summary: dict[str, Any] | None = None
    if seen.summary is not None:
        summary = {
            "upto": seen.summary.upto,
            "text": seen.summary.summary,
            "actions": seen.summary.actions,
            "by": seen.summary.by,
            "why": seen.summary.why,
            "tokens_before": seen.summary.before,
            "tokens_after": seen.summary.after,
        }
    return answer(
        {
            "object": "response.context",
            "response": turn_id,
            "conversation": turn.conversation_id,
            "position": seen.head,
            "instructions": options.instructions if options.instructions is not None else setup.instructions,
            "tools": [tool.name for tool in prompt.tools_of(setup, options)],
            "summary": summary,
            "verbatim": [{"position": e.seq, "id": e.id, "item": items.render(e)} for e in seen.verbatim],
            "folded": seen.folded,
            "hidden": seen.hidden,
            "left_out": left_out,
        }
    )


async def _submission(call: Call, body: MeasureResponse | CompactResponse, options: Options) -> Submission:
    target = await target_of(call, body)
    drafts = await parsed(call, target, body.input) if body.input is not None else ()
    return Submission(principal=call.caller.principal, target=target, input=Input(drafts, options))
