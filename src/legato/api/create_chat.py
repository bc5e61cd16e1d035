"""What a client sends to Chat Completions: the body of `POST /v1/chat/completions`, as OpenAI's clients write it."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from legato.api import items, unheeded
from legato.api.create_response import (
    ConversationRef,
    FunctionName,
    JsonObject,
    Metadata,
    ModelName,
    PlainText,
    SchemaName,
    ServiceTier,
)


class ChatText(Struct):
    type: Literal["text"]
    text: str


class ChatRefusal(Struct):
    type: Literal["refusal"]
    refusal: str


class ImageUrl(Struct):
    url: str
    detail: Literal["low", "high", "auto"] | None = None


class ChatImage(Struct):
    type: Literal["image_url"]
    image_url: ImageUrl


class FileBody(Struct):
    file_data: str
    filename: str | None = None


class ChatFile(Struct):
    type: Literal["file"]
    file: FileBody


PARTS = (ChatText, ChatRefusal, ChatImage, ChatFile)
ChatPart = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/ChatPart"})]


class GivenFunction(Struct):
    name: Annotated[str, Meta(min_length=1, max_length=255)]
    arguments: str = "{}"


class GivenToolCall(Struct):
    id: items.Id
    function: GivenFunction
    type: Literal["function"] = "function"


class ChatMessage(Struct):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ChatPart] | None = None
    refusal: str | None = None
    tool_calls: list[GivenToolCall] | None = None
    tool_call_id: items.Id | None = None
    name: str | None = None


class FunctionSpec(Struct):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenName(Struct):
    name: FunctionName


class ChatTool(Struct, tag="function", tag_field="type"):
    function: FunctionSpec


class ChosenTool(Struct, tag="function", tag_field="type"):
    function: ChosenName


class AllowedSet(Struct):
    mode: Literal["auto", "required"]
    tools: list[ChosenTool]


class AllowedTools(Struct, tag="allowed_tools", tag_field="type"):
    allowed_tools: AllowedSet


class SchemaSpec(Struct):
    name: SchemaName
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class SchemaFormat(Struct, tag="json_schema", tag_field="type"):
    json_schema: SchemaSpec


CHOICES = (ChosenTool, AllowedTools)
FORMATS = (PlainText, JsonObject, SchemaFormat)
ToolChoice = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/ChatToolChoice"})]
ResponseFormat = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/ChatFormat"})]
"""A provider is sent these as they came."""


class Choices(Struct):
    """What they must look like."""

    tool_choice: Literal["none", "auto", "required"] | ChosenTool | AllowedTools | None = None
    response_format: PlainText | JsonObject | SchemaFormat | None = None


class StreamOptions(Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CreateChat(Struct):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    model: ModelName | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ChatTool] | None = None
    functions: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    n: Literal[1] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    service_tier: ServiceTier | None = None
    metadata: Metadata | None = None
    user: str | None = None
    conversation: str | ConversationRef | None = None
    previous_response_id: str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    store: bool | None = None
    modalities: list[Literal["text"]] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: unheeded.CacheRetention | None = None
    prompt_cache_options: unheeded.CacheOptions | None = None
    moderation: unheeded.Moderation | None = None
