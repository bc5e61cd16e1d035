"""The prompt: a byte-stable prefix from the log, then everything that is in the context.

The prefix comes from the setup entry, not from a living object: a restart, another node or a year of silence gives
the same bytes. It changes when the agent's spec changes, or for one turn when a request brings its own instructions.
"""

from collections.abc import Iterable, Mapping

from msgspec import structs

from legato.domain.attachments import Blob, attach
from legato.domain.entries import AnyBody, Compaction, Message, Setup, Text, Tool
from legato.domain.shape import Past, shape
from legato.domain.turns import Options, Turn
from legato.engine.protocols import ModelRequest
from legato.engine.roster import Cast

SUMMARY_HEAD = "Summary of the earlier part of this conversation:\n"


def build(turn: Turn, cast: Cast, past: Past, bodies: Iterable[AnyBody]) -> ModelRequest:
    """What the model is asked at this step."""
    options, setup = turn.input.options, cast.setup
    return ModelRequest(
        conversation_id=turn.conversation_id,
        instructions=options.instructions if options.instructions is not None else setup.instructions,
        tools=tools_of(setup, options),
        items=shape(bodies, past),
        params=options.params,
        model=cast.upstream,
    )


def tools_of(setup: Setup, options: Options) -> tuple[Tool, ...]:
    """What the model may call. Each name means one tool, and the client's goes before ours: it was asked for now, and
    whoever asked will answer the call."""
    return tuple(({tool.name: tool for tool in setup.tools} | options.tools_by_name).values())


def past_of(summary: Compaction | None) -> Past:
    """How a context begins: with the summary of what came before it, if there is one."""
    return Past((Message("system", (Text(SUMMARY_HEAD + told(summary)),)),) if summary is not None else ())


def attached(request: ModelRequest, blobs: Mapping[str, Blob]) -> ModelRequest:
    """The request with bytes where it refers to blobs."""
    if not blobs:
        return request
    return structs.replace(request, items=tuple(attach(item, blobs) for item in request.items))


def told(compaction: Compaction) -> str:
    """A compaction as the model reads it."""
    if not compaction.actions:
        return compaction.summary
    done = "\n".join(f"- {line}" for line in compaction.actions)
    return f"{compaction.summary}\n\nAlready carried out, not to be done again:\n{done}"
