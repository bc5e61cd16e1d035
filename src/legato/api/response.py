"""The Response object: a turn, in the words of the Responses API.

Every field that the API promises is there, with the value of the request or its default, at any time: while the turn
waits, runs, and for ever after.
"""

from typing import Any

from legato.api import items
from legato.api.wire import failed
from legato.domain.entries import Entry
from legato.domain.turns import Turn, Usage, cut_by

DEFAULTS: dict[str, Any] = {
    "tools": [],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "store": True,
    "background": False,
    "service_tier": "default",
    "metadata": {},
    "previous_response_id": None,
    "reasoning": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
    "user": None,
}
_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
_STATUS = {
    "queued": "queued",
    "running": "in_progress",
    "joined": "in_progress",  # as it began; how it ends is told by the other
    "failed": "failed",
    "cancelled": "cancelled",
}


def response_object(turn: Turn, entries: list[Entry], name: str | None) -> dict[str, Any]:
    """A turn as a Response. `entries` are what it wrote, `name` the slug of its conversation."""
    options = turn.input.options
    brought = {draft.id for draft in turn.input.drafts}
    output = [entry for entry in entries if entry.id not in brought]
    status, details = status_of(turn, output)
    usage = turn.usage
    return {
        **DEFAULTS,
        **options.echo,
        "id": turn.id,
        "object": "response",
        "created_at": int(turn.created_at),
        "completed_at": int(turn.ended_at) if turn.ended_at is not None and status == "completed" else None,
        "status": status,
        "incomplete_details": details,
        "error": _error(turn),
        "instructions": options.instructions,
        "model": options.echo.get("model") or "default",
        "output": [item for entry in output if (item := items.render(entry)) is not None],
        "usage": usage_object(usage) if usage is not None else None,
        "conversation": {"id": turn.conversation_id, "name": name},
    }


def status_of(turn: Turn, output: list[Entry]) -> tuple[str, dict[str, str] | None]:
    """The status, and why it is incomplete."""
    if turn.status != "done":
        return _STATUS[turn.status], None
    why = cut_by(entry.body for entry in output)
    return ("incomplete", {"reason": why}) if why is not None else ("completed", None)


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _error(turn: Turn) -> dict[str, str | None] | None:
    """Clients know few codes; ours is told in the message. Some read an error as they do one in the envelope."""
    if turn.failure is None:
        return None
    status, kind = failed(turn.failure.code)
    message = f"{turn.failure.message} ({turn.failure.code})"
    return {"code": _CODES.get(status, "server_error"), "message": message, "type": kind, "param": None}
