"""What a client sends to make a response: the body of `POST /v1/responses`, as OpenAI's clients write it.

What is not a field here is not read; of what is, a value that means nothing is refused by name (`unheeded` says what is
taken and not acted on).
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from legato.api import items, unheeded
from legato.api.wire import matching

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
SchemaName = Annotated[str, Meta(min_length=1, max_length=64)]
ModelName = Annotated[str, matching(r"[^\x00-\x1f]*", most=255)]
FunctionName = Annotated[str, matching(r"[a-zA-Z0-9_.-]{1,128}")]


class ConversationRef(Struct):
    id: str


class FunctionTool(Struct, tag="function", tag_field="type"):
    name: FunctionName
    parameters: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class PlainText(Struct, tag="text", tag_field="type"):
    pass


class Grammar(Struct, tag="grammar", tag_field="type"):
    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(Struct, tag="custom", tag_field="type", omit_defaults=True):
    name: FunctionName
    description: str | None = None
    format: PlainText | Grammar | None = None


class ChosenFunction(Struct, tag="function", tag_field="type"):
    name: FunctionName


class ChosenCustom(Struct, tag="custom", tag_field="type"):
    name: FunctionName


class AllowedTools(Struct, tag="allowed_tools", tag_field="type"):
    mode: Literal["auto", "required"]
    tools: list[ChosenFunction | ChosenCustom]


class Functions(Struct, tag="namespace", tag_field="type"):
    tools: list[FunctionTool | CustomTool]


TOOLS = (FunctionTool, CustomTool, unheeded.HostedTool)
CHOICES = (ChosenFunction, ChosenCustom, AllowedTools)
GivenChoice = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/GivenChoice"})]


class JsonObject(Struct, tag="json_object", tag_field="type"):
    pass


class JsonSchema(Struct, tag="json_schema", tag_field="type"):
    name: SchemaName
    schema: dict[str, Any]
    strict: bool | None = None
    description: str | None = None


class TextConfig(Struct, omit_defaults=True):
    format: PlainText | JsonObject | JsonSchema | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


class ContextManagement(Struct, tag="compaction", tag_field="type"):
    compact_threshold: Annotated[int, Meta(ge=1_000)] | None = None


class CreateResponse(Struct):
    """The body of `POST /v1/responses`."""

    input: str | list[items.GivenItem]
    model: ModelName | None = None
    conversation: str | ConversationRef | None = None
    previous_response_id: str | None = None
    conversation_history: list[items.GivenItem] | None = None
    instructions: str | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    metadata: Metadata | None = None
    tools: list[items.GivenTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | GivenChoice | None = None
    parallel_tool_calls: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    service_tier: ServiceTier | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    context_management: list[ContextManagement] | None = None
    include: list[unheeded.Includable] | None = None
    stream_options: unheeded.StreamOptions | None = None
    prompt: unheeded.Prompt | None = None
    prompt_cache_retention: unheeded.CacheRetention | None = None
    prompt_cache_options: unheeded.CacheOptions | None = None
    moderation: unheeded.Moderation | None = None
