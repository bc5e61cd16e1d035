"""What clients of OpenAI's API may ask for that changes no answer here: its own tools, caches and templates.

It is checked all the same, so that a slip is told where it is made and not when the same request is sent elsewhere.
"""

from typing import Any, Literal, get_args

from msgspec import Struct

from legato.api.door import Call
from legato.errors import BadInput

Includable = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
CacheRetention = Literal["in_memory", "in-memory", "24h"]
HostedKind = Literal[
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "namespace",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
]


class HostedTool(Struct):
    """A tool that OpenAI's servers run, or hand on in a way of their own. The model is not offered it here."""

    type: HostedKind


class StreamOptions(Struct):
    include_obfuscation: bool | None = None


class Prompt(Struct):
    id: str
    variables: dict[str, Any] | None = None
    version: str | None = None


class CacheOptions(Struct):
    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None


class Moderation(Struct):
    model: str
    policy: dict[str, Any] | None = None


def check_include(call: Call) -> None:
    """`include` of a query, in either way of writing a list there."""
    given = call.request.query_params
    for value in given.getlist("include") + given.getlist("include[]"):
        if value not in get_args(Includable):
            raise BadInput(f"'include' must be of {', '.join(get_args(Includable))}.", param="include")
